"""Every problem that a chip was sent and every answer it gave, in one file, from which they can be given again.

The file is a row of frames, each packed JSON and an `.npz` without pickles, under a checksum. Frames are only
ever added at the end, so that a killed run leaves at worst one torn frame there, which is dropped.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qpsbgd.atomic import writing
from qpsbgd.solvers.annealer.submissions import Answer, Link, Submission

_MAGIC = b"qpsbgd-chip-record-1\n"
_HEAD = struct.Struct("<8sQ32s")  # kind, bytes of the body, their SHA-256; a CRC-32 of these three follows
_HEAD_SIZE = _HEAD.size + 4

Array = np.ndarray[Any, Any]
Chains = list[list[list[int]]]


class RecordingError(RuntimeError):
    """A recording that is broken, at its end, or of another run."""


class Recording(Link):
    """A link that answers from a file as long as it lasts, and then from the chip, whose answers it adds to the file.

    So a run that was killed is given again what it had been given and goes on from there, at no cost on the chip and
    with the same weights. Every problem must be the one that was recorded in its place.

    Args:
        path: The file; made when the first answer comes, if it is not there.
        live: The chip, or None to answer from the file alone.
        header: What must be equal between the run that recorded and this one: options, chip. None takes any.
    """

    def __init__(self, path: str | Path, live: Link | None = None, *, header: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path).expanduser()
        self._live = live
        self._answers: list[int] = []
        self._structures: dict[str, int] = {}
        self.tiles: dict[int, Chains] = {}
        self._new_tiles: list[int] = []
        self._position = 0
        self._end = self._size = 0
        if self.path.exists():
            self.header = self._scan()
            self._compare(header)
        elif live is None:
            raise FileNotFoundError(f"there is no recording {self.path}; make one with `record` of a solver on a chip")
        else:
            self.header = dict(header or {})

    @property
    def outstanding(self) -> int:
        """Of the chip's link; answers from the file are never outstanding."""
        return 0 if self._live is None else self._live.outstanding

    def __len__(self) -> int:
        return len(self._answers)

    def ask(self, problems: Sequence[Submission]) -> Iterator[Answer]:
        """Recorded answers first, then live ones."""
        known = max(0, min(len(problems), len(self) - self._position))
        for problem in problems[:known]:
            answer = self._recorded(problem)
            self._position += 1
            yield answer
        rest = problems[known:]
        if rest and self._live is None:
            raise RecordingError(
                f"{self.path} ends after {len(self)} answers, but one more was asked for; the recorded run was shorter"
                + (f", or the file was cut off: {self.torn} bytes of an unfinished answer follow" if self.torn else "")
            )
        for problem, answer in zip(rest, self._live.ask(rest) if self._live else (), strict=True):
            self._add(problem, answer)
            self._position += 1
            yield answer

    def keep_tiles(self, spins: int, chains: Chains) -> None:
        """Remember the tiles in use, so that a replay needs neither their search nor the same version of it."""
        if spins not in self.tiles:
            self.tiles[spins] = chains
            self._new_tiles.append(spins)  # written with the next answer: nothing is, before something was sent

    def verify(self) -> float:
        """Read every answer; returns the seconds of the chip that they took.

        Raises:
            RecordingError: One is broken.
        """
        for at in self._structures.values():
            self._body(at)
        return sum(Answer(np.empty(0), self._body(at)[0]["timing"]).seconds or 0.0 for at in self._answers)

    @property
    def torn(self) -> int:
        """Bytes of an unfinished frame at the end of the file, which a killed run left."""
        return self._size - self._end

    def close(self) -> None:
        """Close the chip's link; the file is whole after every answer."""
        if self._live is not None:
            self._live.close()

    def state_dict(self) -> dict[str, Any]:
        """How many answers were given."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after as many answers."""
        position = state.get("position", 0)
        if not 0 <= position <= len(self):
            raise RecordingError(
                f"the run was saved after answer {position}, but {self.path} holds {len(self)} answers; "
                "resume with the recording that the run wrote"
            )
        self._position = position

    def _recorded(self, problem: Submission) -> Answer:
        meta, arrays = self._body(self._answers[self._position])
        if meta["digest"] != problem.digest:
            raise RecordingError(
                f"answer {self._position} of {self.path} belongs to another problem: "
                f"{self._difference(problem, meta)}; replay with the data, seeds and options of the recorded run, or "
                "record into a new file"
            )
        reads, qubits = meta["shape"]
        bits = np.unpackbits(arrays["spins"], axis=1, count=qubits)[:reads]
        return Answer(2 * bits.astype(np.int8) - 1, meta["timing"])

    def _difference(self, problem: Submission, meta: dict[str, Any]) -> str:
        if meta["structure"] != problem.structure:
            return "it uses other qubits or couplers (another chip, other tiles or layers)"
        if meta["parameters"] != dict(problem.parameters):
            return f"it was sent with {meta['parameters']}, not {dict(problem.parameters)}"
        return "its fields or couplings differ"

    def _add(self, problem: Submission, answer: Answer) -> None:
        while self._new_tiles:
            spins = self._new_tiles[-1]
            self._append("tiles", {"spins": spins, "chains": self.tiles[spins]})
            self._new_tiles.pop()
        if problem.structure not in self._structures:
            at = self._append("graph", {"digest": problem.structure}, qubits=problem.qubits, edges=problem.edges)
            self._structures[problem.structure] = at
        meta = {
            "digest": problem.digest,
            "structure": problem.structure,
            "parameters": dict(problem.parameters),
            "timing": dict(answer.timing),
            "shape": list(answer.spins.shape),
        }
        arrays = {
            "fields": problem.fields,
            "couplings": problem.couplings,
            "spins": np.packbits(answer.spins > 0, axis=1),
        }
        self._answers.append(self._append("answer", meta, **arrays))

    def _append(self, kind: str, meta: Mapping[str, Any], **arrays: Array) -> int:
        """Add a frame; returns where it begins."""
        if not self._end:
            self._begin()
        at, frame = self._end, _frame(kind, meta, arrays)
        with self.path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != self._size:
                raise self._shared()
            try:
                file.truncate(at)  # what a killed run left half-written
                file.seek(at)
                file.write(frame)
                file.flush()
                os.fsync(file.fileno())
                self._end = at + len(frame)
            finally:
                self._size = os.fstat(file.fileno()).st_size
        return at

    def _begin(self) -> None:
        if self.path.exists():
            raise self._shared()
        begin = _MAGIC + _frame("header", self.header, {})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with writing(self.path) as file:
            file.write(begin)
        self._end = self._size = len(begin)

    def _shared(self) -> RecordingError:
        return RecordingError(
            f"{self.path} was changed by another run, or by a copy of this solver; give every run a file of its own"
        )

    def _scan(self) -> dict[str, Any]:
        """Find the frames; returns the header's content."""
        size = self.path.stat().st_size
        header: dict[str, Any] | None = None
        with self.path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise RecordingError(f"{self.path} is no recording of a chip, or its beginning is broken")
            at = len(_MAGIC)
            while at + _HEAD_SIZE <= size:
                file.seek(at)
                kind, length = self._head(file.read(_HEAD_SIZE), at)
                if at + _HEAD_SIZE + length > size:
                    break
                if kind == "header":
                    header = self._body(at)[0]
                elif kind == "answer":
                    self._answers.append(at)
                elif kind == "graph":
                    self._structures[self._body(at)[0]["digest"]] = at
                elif kind == "tiles":
                    meta = self._body(at)[0]
                    self.tiles[meta["spins"]] = meta["chains"]
                at += _HEAD_SIZE + length
            self._end, self._size = at, size
        if header is None:
            raise RecordingError(f"{self.path} has no whole header: it was cut off before the first answer; delete it")
        return header

    def _head(self, head: bytes, at: int) -> tuple[str, int]:
        if zlib.crc32(head[: _HEAD.size]) != struct.unpack("<I", head[_HEAD.size :])[0]:
            raise RecordingError(f"{self.path} is broken at byte {at}; use another copy of it")
        kind, length, _ = _HEAD.unpack(head[: _HEAD.size])
        return kind.rstrip(b"\0").decode(), length

    def _body(self, at: int) -> tuple[dict[str, Any], dict[str, Array]]:
        """Content of the frame at byte `at`."""
        with self.path.open("rb") as file:
            file.seek(at)
            head = file.read(_HEAD_SIZE)
            _, length = self._head(head, at)
            data = file.read(length)
        if hashlib.sha256(data).digest() != _HEAD.unpack(head[: _HEAD.size])[2]:
            raise RecordingError(f"{self.path} is broken at byte {at}; use another copy of it")
        split = 4 + struct.unpack("<I", data[:4])[0]
        meta: dict[str, Any] = json.loads(zlib.decompress(data[4:split]))
        rest = data[split:]
        if not rest:
            return meta, {}
        try:
            with np.load(io.BytesIO(rest), allow_pickle=False) as arrays:
                return meta, dict(arrays)
        except (ValueError, zipfile.BadZipFile) as error:
            raise RecordingError(f"{self.path} is broken at byte {at}; use another copy of it") from error

    def _compare(self, header: Mapping[str, Any] | None) -> None:
        if header is None:
            return
        wanted = json.loads(json.dumps(header))
        for name, value in wanted.items():
            if self.header.get(name) != value:
                was, now = (repr(v)[:80] for v in (self.header.get(name), value))
                raise RecordingError(
                    f"{self.path} was recorded with {name} = {was}, but now {name} = {now}; go on with the same, or "
                    "record into a new file"
                )


def _frame(kind: str, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    body = io.BytesIO()
    packed = zlib.compress(json.dumps(meta).encode())
    body.write(struct.pack("<I", len(packed)) + packed)
    if arrays:
        np.savez_compressed(body, allow_pickle=False, **arrays)
    data = body.getvalue()
    head = _HEAD.pack(kind.encode(), len(data), hashlib.sha256(data).digest())
    return head + struct.pack("<I", zlib.crc32(head)) + data
