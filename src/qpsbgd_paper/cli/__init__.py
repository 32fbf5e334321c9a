"""The paper's commands: `qpsbgd demo`, `run`, `report` and `data`."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDED = ("sklearn", "scipy", "skimage", "matplotlib", "pooch", "torch_geometric", "dwave.system", "minorminer")


def require(command: str) -> None:
    """Raise ImportError, with the line to install, where packages of the extra `paper` are missing."""
    missing = [name for name in _NEEDED if not _installed(name)]
    if missing:
        raise ImportError(
            f"`qpsbgd {command}` is part of the paper's experiments and needs {', '.join(missing)}: "
            "pip install 'qpsbgd[paper]'"
        )


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False
