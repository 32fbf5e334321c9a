"""Files that are complete or not there at all."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # on Windows, where what killed writers left is not removed
    fcntl = None  # type: ignore[assignment]

MACHINE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
"""This machine in the names of temporary files: locks on some network file systems hold on one machine only."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` once it is complete; until then, and on failure, nothing changes there.

    A symbolic link stays, and its target is replaced; an existing file keeps its permissions; a device is written
    directly. The temporary file next to it is locked while its writer lives, so that the next one can remove what
    killed writers left.
    """
    if _is_device(path):
        try:
            with path.open("wb") as device:
                yield device
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        return
    target = Path(os.path.realpath(path))
    with _temporary(path, target) as (file, name):
        yield file
        file.flush()
        os.fsync(file.fileno())
        if fcntl is None:
            file.close()  # Windows cannot rename an open file
        name.replace(target)
    # The file is in place. Some folders cannot be opened or synchronised, which is no reason to fail.
    with contextlib.suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_new(path: Path, *, force: bool, option: str = "--out") -> None:
    """Raise FileExistsError for a file that is there already, unless `force`; devices such as /dev/stdout may be."""
    if path.is_file() and not force:
        raise FileExistsError(f"{path} is there already: --force overwrites it, or name another place with {option}")


def check_folder(path: Path) -> None:
    """Raise NotADirectoryError where a folder cannot be made because there is a file."""
    place = next((place for place in (path, *path.parents) if place.exists()), path.parent)
    if not place.is_dir():
        raise NotADirectoryError(f"--out must be a folder, but {place} is a file")


def check_writable(path: Path) -> None:
    """Raise the OSError that `writing` would raise; for long work, so that it fails at its beginning."""
    if not _is_device(path):
        with _temporary(path, Path(os.path.realpath(path))):
            pass


@contextlib.contextmanager
def _temporary(path: Path, target: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A locked file next to `target`, removed at the end if it still has its name; errors name `path`."""
    name = target.with_name(f".{target.name}.{MACHINE}{secrets.token_hex(4)}.part")
    try:
        if target.is_symlink():  # even after `realpath`: the link leads back to itself
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        _remove_leftovers(target)
        file = _create(name)
        try:
            with file:
                if target.exists():
                    name.chmod(stat.S_IMODE(target.stat().st_mode))
                yield file, name
        finally:
            with contextlib.suppress(OSError):
                name.unlink()
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(name), str(target)):
            raise  # from something else that happened while the file was open
        hint = "nothing was changed; choose another path, or check that its folder exists, is writable and has space"
        raise OSError(error.errno, f"{os.strerror(error.errno)}; {hint}", str(path)) from error


def _create(name: Path) -> IO[bytes]:
    while True:
        file = os.fdopen(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666), "wb")
        _lock(file, wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another writer took it for a leftover before it was locked


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary files of this machine's writers that were killed: those that nobody has locked."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{MACHINE}[0-9a-f]{{8}}\.part")
    try:
        with os.scandir(target.parent) as entries:  # far faster than `iterdir` in a folder of thousands
            leftovers = [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:
        return  # the folder is not there or cannot be listed; if it matters, creating the file says so
    for leftover in leftovers:
        # Another writer may be faster, or the file may be another user's, who then removes it.
        with contextlib.suppress(OSError), leftover.open("r+b") as file:
            if _lock(file, wait=False):
                leftover.unlink()


def _lock(file: IO[bytes], *, wait: bool) -> bool:
    """Lock the file until it is closed, if the system can; False if it cannot or another process has the lock."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_device(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
