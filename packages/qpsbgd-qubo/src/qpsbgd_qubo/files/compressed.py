"""Compressed files, read up to one limit: a few kilobytes can stand for many gigabytes."""

from __future__ import annotations

import gzip
import io
import zipfile
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_BYTES = 1 << 28
"""What a compressed file may expand to, in all: 268 MB, about a dense matrix of 5,800 variables in double precision."""

Array = np.ndarray[Any, Any]


def gunzip(file: IO[bytes], *, most: int = MOST_BYTES) -> io.BufferedReader:
    """The content of a `.gz` file as a stream, which raises MemoryError beyond `most` bytes."""
    return io.BufferedReader(_Limited(gzip.GzipFile(fileobj=file), most))


def read_arrays(file: IO[bytes], *, most: int = MOST_BYTES) -> dict[str, Array]:
    """The real arrays of an `.npz` archive, single precision as it is, all others in double.

    They may take `most` bytes, or as many as the file itself.
    """
    most = max(most, file.seek(0, io.SEEK_END))
    try:
        needed = sum(member.file_size for member in zipfile.ZipFile(file).infolist())
        file.seek(0)
        arrays: dict[str, Any] = {} if needed > most else dict(np.load(file, allow_pickle=False).items())
    except MemoryError:
        raise
    except Exception as error:  # NotImplementedError, EOFError, zlib.error and others, by where the damage is
        raise ValueError(f"is not a complete .npz archive of numpy: {type(error).__name__}: {error}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            hint = "; write scipy's sparse matrices to .mtx with scipy.io.mmwrite" if name == "format" else ""
            raise ValueError(f"{name!r} must be an array of real numbers, got {getattr(array, 'dtype', 'bytes')}{hint}")
    needed = max(needed, sum(array.size * (4 if array.dtype == np.float32 else 8) for array in arrays.values()))
    if needed > most:
        raise MemoryError(
            f"its arrays take {1e-9 * needed:.3g} GB; a compressed file may take {1e-9 * most:.3g} GB: save it "
            "with numpy.savez, or a sparse matrix with scipy.io.mmwrite"
        )
    return {name: array if array.dtype == np.float32 else array.astype(np.float64) for name, array in arrays.items()}


class _Limited(io.RawIOBase):
    """A stream that may give up to `most` bytes."""

    def __init__(self, stream: gzip.GzipFile, most: int) -> None:
        self._stream, self._most, self._given = stream, most, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count: int = self._stream.readinto(buffer)
        self._given += count
        if self._given > self._most:
            raise MemoryError(
                f"the compressed file expands to more than {1e-9 * self._most:.3g} GB; if it is what you expect, "
                "decompress it first: gunzip FILE"
            )
        return count
