"""A file of frames under checksums, to which frames are only ever added.

A frame is packed JSON and an `.npz` without pickles. A killed run or a crashed file system leaves bytes that are no
complete frame only after the last good one; those are dropped. Damage before a good frame is an error.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qpsbgd_qubo.files.atomic import writing
from qpsbgd_qubo.files.compressed import Arrays, inflated
from qpsbgd_qubo.kernels import Array

_MAGIC = b"qpsbgd-chip-record-2\n"
_HEAD = struct.Struct("<8sQ32s")  # kind, bytes of the body, their SHA-256; a CRC-32 of these three follows
_HEAD_SIZE = _HEAD.size + 4
_MOST_META = 1 << 24  # bytes of JSON: a chip with 40,000 couplers takes one megabyte


class RecordingError(RuntimeError):
    """A recording that is damaged, too short, or of another run."""


class FrameFile:
    """Frames in the order in which they were written, each of a kind of at most 8 letters; one writer at a time.

    The file is made with the first frame, if it is not there; `size` is the number of its bytes, 0 before.
    """

    def __init__(self, path: Path, *, kinds: tuple[str, ...]) -> None:
        self.path = path
        self._kinds = kinds
        self._end = self.size = 0

    @property
    def torn(self) -> int:
        """Bytes after the last good frame."""
        return self.size - self._end

    def scan(self) -> list[tuple[str, int]]:
        """Kind and first byte of every frame up to the last good one.

        Only that one's body is read; `read` finds damage in the others.
        """
        found: list[tuple[str, int]] = []
        with self.path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise RecordingError(f"{self.path} is not a recording, or its beginning is damaged")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                at, self.size = len(_MAGIC), len(data)
                while (head := _head(data, at)) is not None and head.end <= self.size:
                    if head.kind not in self._kinds:
                        raise self.damaged(at, f"there are no frames of kind {head.kind!r}")
                    found.append((head.kind, at))
                    at = head.end
                if head is None and self._good_frame_after(at, data):
                    raise self.damaged(at)
                while found and not _good(data, found[-1][1]):
                    at = found.pop()[1]
        self._end = at
        return found

    def read(self, at: int) -> tuple[dict[str, Any], dict[str, Array]]:
        """Content of the frame that begins at byte `at`."""
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            head = _head(data, at)
            if head is None or not _good(data, at):
                raise self.damaged(at)
            body = data[head.begin : head.end]
        split = 4 + int.from_bytes(body[:4], "little")
        try:
            meta = json.loads(inflated(body[4:split], most=_MOST_META))
            arrays = dict(Arrays(io.BytesIO(body[split:]), as_stored=True)) if body[split:] else {}
        except (MemoryError, RecursionError, ValueError) as error:
            raise self.damaged(at, str(error)) from error
        if not isinstance(meta, dict):
            raise self.damaged(at, f"its content must be an object, got {type(meta).__name__}")
        return meta, arrays

    def append(self, kind: str, meta: Mapping[str, Any], **arrays: Array) -> int:
        """Add a frame after the last good one; returns where it begins."""
        frame = _frame(kind, meta, arrays)
        if not self._end:
            if self.path.exists():
                raise self._shared()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with writing(self.path) as new:
                new.write(_MAGIC + frame)
            self._end = self.size = len(_MAGIC) + len(frame)
            return len(_MAGIC)
        at = self._end
        with self.path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != self.size:
                raise self._shared()
            try:
                file.truncate(at)
                file.seek(at)
                file.write(frame)
                file.flush()
                os.fsync(file.fileno())
                self._end = at + len(frame)
            finally:
                self.size = os.fstat(file.fileno()).st_size
        return at

    def damaged(self, at: int, reason: str = "its checksum is wrong") -> RecordingError:
        """The error for damage at that byte."""
        return RecordingError(f"{self.path} is damaged at byte {at} ({reason}); use another copy of it")

    def _shared(self) -> RecordingError:
        return RecordingError(
            f"{self.path} was changed by another run, or by a copy of this solver; give every run a file of its own"
        )

    def _good_frame_after(self, at: int, data: mmap.mmap) -> bool:
        for kind in self._kinds:
            name, place = kind.encode().ljust(8, b"\0"), at
            while (place := data.find(name, place + 1)) >= 0:
                if _good(data, place):
                    return True
        return False


class _Head(NamedTuple):
    """What a frame's head says of its body: first byte, end, and SHA-256."""

    kind: str
    begin: int
    end: int
    digest: bytes


def _head(data: mmap.mmap, at: int) -> _Head | None:
    """The head at byte `at`, or None where there is none."""
    head = data[at : at + _HEAD_SIZE]
    if len(head) < _HEAD_SIZE or zlib.crc32(head[: _HEAD.size]) != struct.unpack("<I", head[_HEAD.size :])[0]:
        return None
    kind, length, digest = _HEAD.unpack(head[: _HEAD.size])
    return _Head(kind.rstrip(b"\0").decode("ascii", "replace"), at + _HEAD_SIZE, at + _HEAD_SIZE + length, digest)


def _good(data: mmap.mmap, at: int) -> bool:
    """Whether a frame that begins at byte `at` is as it was written."""
    head = _head(data, at)
    return head is not None and hashlib.sha256(data[head.begin : head.end]).digest() == head.digest


def _frame(kind: str, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    body = io.BytesIO()
    packed = zlib.compress(json.dumps(meta).encode())
    body.write(struct.pack("<I", len(packed)) + packed)
    if arrays:
        np.savez_compressed(body, allow_pickle=False, **arrays)
    data = body.getvalue()
    head = _HEAD.pack(kind.encode(), len(data), hashlib.sha256(data).digest())
    return head + struct.pack("<I", zlib.crc32(head)) + data
