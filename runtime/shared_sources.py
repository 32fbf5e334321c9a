"""The build of qpsbgd-runtime: scikit-build-core on sources that a clone has in ../src, and an archive of its own."""

import shutil
from pathlib import Path

from scikit_build_core import build
from scikit_build_core.build import (  # noqa: F401
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

HERE = Path(__file__).parent
CLONE = HERE.parent
FOLDERS = ("native_common", "qpsbgd_files", "qpsbgd_runtime")


def copy_sources() -> None:
    """Copy the sources beside this file; where there is no clone around it, they are there already."""
    if not (CLONE / "src" / "qpsbgd_runtime").is_dir():
        return
    shutil.rmtree(HERE / "src", ignore_errors=True)
    for name in FOLDERS:
        shutil.copytree(CLONE / "src" / name, HERE / "src" / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("CMakeLists.txt", "LICENSE"):
        shutil.copy(CLONE / name, HERE)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Write the metadata, which name the licence's file: pip asks for them before anything is built."""
    copy_sources()
    return build.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the wheel."""
    copy_sources()
    return build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    """Build the source archive."""
    copy_sources()
    return build.build_sdist(sdist_directory, config_settings)
