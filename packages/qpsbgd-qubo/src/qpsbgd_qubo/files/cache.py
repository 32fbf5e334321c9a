"""Where the library keeps what it can make or fetch again."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The folder named by `QPSBGD_CACHE`, or `qpsbgd` in the system's folder for user caches."""
    named = os.environ.get("QPSBGD_CACHE")
    if named:
        return Path(named).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    if not caches:
        caches = str(Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache"))
    return Path(caches) / "qpsbgd"
