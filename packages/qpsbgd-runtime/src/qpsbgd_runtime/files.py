"""Files that are complete or not there at all."""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

_HINT = "nothing was changed; choose another path, or check that its folder exists, is writable and has space"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that takes the place of `path` once it is complete; on failure, nothing changes there."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    target = Path(os.path.realpath(path))
    try:
        if target.is_symlink():  # even after `realpath`: the link leads back to itself
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        _replace(target, data)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; {_HINT}", str(path)) from error


def _replace(target: Path, data: bytes) -> None:
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
