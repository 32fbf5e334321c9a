"""The build of qpsbgd-runtime: scikit-build-core, on the files that it shares with qpsbgd.

Out of a clone, those files are copied from ../src, and their imports renamed; a source archive already has them.
"""

import re
import shutil
from pathlib import Path

from scikit_build_core import build
from scikit_build_core.build import (  # noqa: F401
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

HERE = Path(__file__).parent
SOURCE, TARGET = HERE.parent / "src" / "qpsbgd", HERE / "qpsbgd_runtime"
DEPLOY = (
    *("checks", "integer_steps", "operations", "packed_file", "packed_model"),
    *("real_steps", "stages", "tensor_operations", "tensor_steps", "unit_operations"),
)
FILES = ("py.typed", "atomic.py", *(f"deploy/{name}.py" for name in DEPLOY))
IMPORT = re.compile(r'^(\s*(?:from|import) |.*find_spec\(")qpsbgd\.', re.MULTILINE)


def copy_shared() -> None:
    """Put the shared files beside this one."""
    if not SOURCE.is_dir():
        return
    for name in ("deploy", "native"):
        shutil.rmtree(TARGET / name, ignore_errors=True)
        (TARGET / name).mkdir(parents=True)
    (TARGET / "deploy" / "__init__.py").write_text('"""The files of qpsbgd.deploy that run packed networks."""\n')
    native = [path for path in (SOURCE / "native").iterdir() if path.suffix in (".py", ".pyi", ".cpp", ".hpp")]
    for path in (*(SOURCE / name for name in FILES), *native):
        text = path.read_text(encoding="utf-8")
        target = TARGET / path.relative_to(SOURCE)
        target.write_text(IMPORT.sub(r"\1qpsbgd_runtime.", text) if path.suffix == ".py" else text, encoding="utf-8")
    for name in ("CMakeLists.txt", "LICENSE"):
        shutil.copy(HERE.parent / name, HERE)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the wheel."""
    copy_shared()
    return build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    """Build the source archive."""
    copy_shared()
    return build.build_sdist(sdist_directory, config_settings)
