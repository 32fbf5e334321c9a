"""Files that are complete or not there at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that takes the place of `path` once it is complete; on failure, nothing changes there.

    A symbolic link stays, and the file that it points to is replaced. An existing file keeps its permissions.

    Raises:
        OSError: The file cannot be written; the message names `path`.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():  # a device or pipe, such as /dev/stdout
            target.write_bytes(data)
            return
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
        file, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            Path(name).chmod(mode)
            Path(name).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}; nothing was changed", str(path)) from error


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
