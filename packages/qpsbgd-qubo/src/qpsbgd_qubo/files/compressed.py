"""Compressed files, read up to one limit: a few kilobytes can stand for many gigabytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_BYTES = 1 << 28
"""What a compressed file may expand to, in all: 268 MB, about a dense matrix of 5,800 variables in double precision."""

_LONGEST_HEADER = 1 << 16  # bytes; numpy's own limit is 10,000

Array = np.ndarray[Any, Any]


def gunzip(file: IO[bytes], *, most: int = MOST_BYTES) -> io.BufferedReader:
    """The content of a `.gz` file as a stream, which raises MemoryError beyond `most` bytes."""
    return io.BufferedReader(_Limited(gzip.GzipFile(fileobj=file), most))


class Arrays(Mapping[str, Array]):
    """The arrays of an `.npz` archive in single or double precision, each loaded when it is asked for.

    Their size is known from the headers before anything is allocated: `most` bytes, or as much as the file itself.
    """

    def __init__(self, file: IO[bytes], *, most: int = MOST_BYTES) -> None:
        if not zipfile.is_zipfile(file):
            raise ValueError("is not a complete .npz archive of numpy; is the file cut off?")
        most = max(most, file.seek(0, io.SEEK_END))
        self._members: dict[str, tuple[zipfile.ZipInfo, np.dtype[Any]]] = {}
        with _damage():
            self._archive = zipfile.ZipFile(file)
            total = sum(self._size(member) for member in self._archive.infolist())
        if total > most:
            raise MemoryError(
                f"its arrays take {1e-9 * total:.3g} GB; a compressed file may take {1e-9 * most:.3g} GB: save it "
                "with numpy.savez, or a sparse matrix with scipy.io.mmwrite"
            )

    def __getitem__(self, name: str) -> Array:
        member, dtype = self._members[name]
        with _damage(), self._archive.open(member) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
        return array if dtype == np.float32 else array.astype(np.float64)

    def __contains__(self, name: object) -> bool:
        return name in self._members  # without loading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def _size(self, member: zipfile.ZipInfo) -> int:
        """Bytes that the array takes once it is loaded; raises unless its header, the archive and our types agree."""
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise _Refused(f"must hold numpy arrays only, but has a member {member.filename!r}; remove it")
        if name in self._members:
            raise _Refused(f"must hold every array once, but has {name!r} twice")
        with self._archive.open(member) as stream:
            begin = io.BytesIO(stream.read(_LONGEST_HEADER))
        shape, dtype = _header(begin)
        if dtype.kind not in "biuf":
            hint = "; write scipy's sparse matrices to .mtx with scipy.io.mmwrite" if name == "format" else ""
            raise _Refused(f"array {name!r} must hold real numbers, got {dtype}{hint}")
        count = math.prod(shape)
        if begin.tell() + count * dtype.itemsize != member.file_size:
            raise ValueError(
                f"array {name!r} has shape {shape} and type {dtype}, but {member.file_size} bytes with its header"
            )
        self._members[name] = member, dtype
        return count * (4 if dtype == np.float32 else 8)


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


class _Refused(ValueError):
    """An archive in order, but not of arrays that we take."""


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """What a damaged archive raises depends on where: NotImplementedError, EOFError, zlib.error and others."""
    try:
        yield
    except (MemoryError, _Refused):
        raise
    except Exception as error:
        raise ValueError(f"is a damaged .npz archive: {type(error).__name__}: {error}") from error


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array; headers of version 3 are for names of fields, which plain numbers do not have."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"an array has a header of version {version}")
    shape, _, dtype = read(stream)
    return shape, dtype
