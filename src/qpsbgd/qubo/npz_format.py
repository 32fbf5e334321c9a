"""numpy's `.npz` archives, their sizes checked before anything is loaded."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

_LONGEST_HEADER = 1 << 16  # bytes; numpy's own limit is 10,000

Array = np.ndarray[Any, Any]


def read_arrays(path: Path, *, most: int) -> dict[str, Array]:
    """All arrays of a file: those in single precision as they are, the others in double.

    Args:
        path: The file.
        most: How many numbers one array may have; a compressed file of a few megabytes can hold many gigabytes.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is not an archive of real arrays, or is damaged.
        MemoryError: An array has more than `most` numbers.
    """
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("is not a complete .npz archive of numpy; is the file cut off?")
        try:
            with zipfile.ZipFile(file) as archive:
                return dict(_array(archive, member, most) for member in archive.infolist())
        except (MemoryError, _Refused):
            raise
        # What a damaged archive raises depends on where it is damaged: NotImplementedError, EOFError, zlib.error, …
        except Exception as error:
            raise ValueError(f"is a damaged .npz archive: {type(error).__name__}: {error}") from error


class _Refused(ValueError):
    """An archive in order, but not of arrays that we take."""


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> tuple[str, Array]:
    """Name and content of a member, read only if its header, the archive and the limit agree."""
    name = member.filename.removesuffix(".npy")
    if name == member.filename:
        raise _Refused(f"must hold numpy arrays only, but has a member {member.filename!r}; remove it")
    with archive.open(member) as stream:
        begin = io.BytesIO(stream.read(_LONGEST_HEADER))
    shape, dtype = _header(begin)
    if dtype.kind not in "biuf":
        raise _Refused(f"array {name!r} must hold real numbers, got {dtype}")
    count = math.prod(shape)
    if count > most:
        raise MemoryError(
            f"array {name!r} of shape {shape} takes {8e-9 * count:.3g} GB; at most {8e-9 * most:.3g} GB are read"
        )
    if begin.tell() + count * dtype.itemsize != member.file_size:
        raise ValueError(
            f"array {name!r} has shape {shape} and type {dtype}, but {member.file_size} bytes with its header"
        )
    with archive.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
    return name, array if dtype == np.float32 else array.astype(np.float64)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array; headers of version 3 are for names of fields, which plain numbers do not have."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"an array has a header of version {version}")
    shape, _, dtype = read(stream)
    return shape, dtype
