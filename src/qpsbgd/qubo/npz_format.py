"""numpy's `.npz` archives, their sizes checked before anything is loaded, and scipy's sparse matrices in them."""

from __future__ import annotations

import io
import math
import zipfile
from typing import IO, Any

import numpy as np

_LONGEST_HEADER = 1 << 16  # bytes; numpy's own limit is 10,000

Array = np.ndarray[Any, Any]


def read_arrays(file: IO[bytes], *, most: int) -> dict[str, Array]:
    """All arrays of a file: those in single precision as they are, other numbers in double.

    Args:
        file: The open file.
        most: How many numbers one array may have; a compressed file of a few megabytes can hold many gigabytes.

    Raises:
        ValueError: It is not an archive of real arrays, or is damaged.
        MemoryError: An array has more than `most` numbers.
    """
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
    is_word = name == "format" and dtype.kind == "S" and shape == () and dtype.itemsize < 10  # as scipy writes it
    if dtype.kind not in "biuf" and not is_word:
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
    return name, array if is_word or dtype == np.float32 else array.astype(np.float64)


def sparse_entries(arrays: dict[str, Array]) -> tuple[int, Array, Array, Array]:
    """n, rows, columns and values of a matrix (n, n) that `scipy.sparse.save_npz` wrote.

    Raises:
        ValueError: It is not square, in a form other than csr, csc or coo, or its parts do not fit together.
    """
    form = arrays["format"].item().decode(errors="replace")
    parts = {"csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "coo": ("row", "col")}.get(form)
    if parts is None:
        raise ValueError(f"a sparse matrix must be in the form csr, csc or coo, got {form!r}; convert it with .tocsr()")
    missing = {"data", "shape", *parts} - set(arrays)
    if missing:
        raise ValueError(f"a sparse matrix in the form {form} must have arrays {sorted(missing)}")
    shape, first, second = (_whole(arrays[name], name) for name in ("shape", *parts))
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"a sparse matrix must have shape (n, n), got {tuple(shape.tolist())}")
    if form != "coo":
        if len(second) != shape[0] + 1 or second[0] != 0 or second[-1] != len(first) or (np.diff(second) < 0).any():
            raise ValueError("indptr must ascend from 0 to the number of entries, one step per row or column")
        second = np.repeat(np.arange(len(second) - 1), np.diff(second))
    return int(shape[0]), second, first, arrays["data"]


def _whole(array: Array, name: str) -> Array:
    if (
        array.ndim != 1
        or not np.isfinite(array).all()
        or (array != np.floor(array)).any()
        or (abs(array) > 2**53).any()
    ):
        raise ValueError(f"{name} must be a list of whole numbers")
    return array.astype(np.int64)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array; headers of version 3 are for names of fields, which plain numbers do not have."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"an array has a header of version {version}")
    shape, _, dtype = read(stream)
    return shape, dtype
