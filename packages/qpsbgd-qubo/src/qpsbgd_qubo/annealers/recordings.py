"""Every problem that was sent to an annealer and every answer, in one file, from which they can be given again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qpsbgd_qubo.annealers.budget import Budget
from qpsbgd_qubo.annealers.frame_file import FrameFile, RecordingError
from qpsbgd_qubo.annealers.submissions import Answer, Link, Submission
from qpsbgd_qubo.solvers.options import AT_LEAST_ONE, COUNT, POSITIVE

Chains = list[list[list[int]]]

_ANSWER = {"digest": str, "structure": str, "parameters": dict, "timing": dict, "seconds": object, "shape": list}


class Recording(Link):
    """Answers from a file as long as it lasts, and then from a live link, whose answers it adds to the file.

    So a run that was killed gets the same answers again and goes on from there, without more QPU time and with the same
    weights. Every problem must be the one that was recorded in its place.

    Args:
        path: The file; made when the first answer comes, if it is not there.
        live: Where further answers come from, or None to answer from the file alone.
        header: What must be equal between the run that recorded and this one: options, chip. None takes any.
    """

    def __init__(self, path: str | Path, live: Link | None = None, *, header: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path).expanduser()
        self.tiles: dict[int, Chains] = {}
        self._file = FrameFile(self.path, kinds=("header", "tiles", "graph", "answer"))
        self._live = live
        self._answers: list[int] = []
        self._structures: dict[str, int] = {}
        self._new_tiles: list[int] = []
        self._position = 0
        if self.path.exists():
            self.header = self._scan()
            for name, value in json.loads(json.dumps(header or {})).items():
                if self.header.get(name) != value:
                    was, now = (repr(v)[:80] for v in (self.header.get(name), value))
                    raise RecordingError(
                        f"{self.path} was recorded with {name} = {was}, but now {name} = {now}; go on with the same, "
                        "or record into a new file"
                    )
        elif live is None:
            raise FileNotFoundError(f"there is no recording {self.path}; make one with a solver's option `record`")
        else:
            self.header = dict(header or {})

    def __len__(self) -> int:
        return len(self._answers)

    def answers(self, problems: Sequence[Submission], budget: Budget) -> Iterator[Answer]:
        """Recorded answers first, then live ones; each counts once, however often it is given."""
        known = max(0, min(len(problems), len(self) - self._position))
        for problem in problems[:known]:
            answer = self._recorded(problem)
            self._position += 1
            budget.count_recorded(self.path, self._position, answer.seconds)
            yield answer
        rest = problems[known:]
        if rest and self._live is None:
            cut = f", or the file was cut off: they are followed by {self.torn} bytes of an incomplete answer"
            raise RecordingError(
                f"{self.path} ends after {len(self)} answers, but the run needs another; the recorded run was shorter"
                f"{cut if self.torn else ''}"
            )
        for problem, answer in zip(rest, self._live.answers(rest, budget) if self._live else (), strict=True):
            self._add(problem, answer)
            self._position = len(self)
            budget.mark_recorded(self.path, self._position)
            yield answer

    def keep_tiles(self, spins: int, chains: Chains) -> None:
        """Remember the tiles in use, so that a replay needs neither their search nor the same version of it."""
        if spins not in self.tiles:
            self.tiles[spins] = chains
            self._new_tiles.append(spins)  # written with the next answer: no file is made before something was sent

    def verify(self) -> float:
        """Read every answer; returns the QPU time that was counted for them, in seconds."""
        for at in self._structures.values():
            self._file.read(at)
        return sum(self._answer(at)[1].seconds for at in self._answers)

    @property
    def torn(self) -> int:
        """Bytes after the last good frame: what a killed run or a crashed file system left."""
        return self._file.torn

    def close(self) -> None:
        """Close the live link; the file is complete after every answer."""
        if self._live is not None:
            self._live.close()

    def state_dict(self) -> dict[str, Any]:
        """How many answers have been given."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after as many answers."""
        position = COUNT.checked("position", state.get("position", 0))
        if not 0 <= position <= len(self):
            raise RecordingError(
                f"the run was saved after answer {position}, but {self.path} has {len(self)} answers; "
                "resume with the recording that the run wrote"
            )
        self._position = position

    def _recorded(self, problem: Submission) -> Answer:
        meta, answer = self._answer(self._answers[self._position])
        if meta["digest"] != problem.digest:
            raise RecordingError(
                f"answer {self._position} of {self.path} belongs to another problem: "
                f"{self._difference(problem, meta)}; replay with the data, seeds and options of the recorded run, or "
                "record into a new file"
            )
        if answer.spins.shape[1] != len(problem.qubits):
            raise RecordingError(
                f"answer {self._position} of {self.path} must have {len(problem.qubits)} qubits as its problem has, "
                f"got {answer.spins.shape[1]}; use another copy of it"
            )
        return answer

    def _answer(self, at: int) -> tuple[dict[str, Any], Answer]:
        """The frame of an answer, its parts checked: a file may have a right checksum and be made by hand."""
        meta, arrays = self._meta(at, _ANSWER)
        try:
            seconds = POSITIVE.checked("seconds", meta["seconds"])
            reads, qubits = (AT_LEAST_ONE.checked("reads and qubits", number) for number in meta["shape"])
            timing = {name: float(value) for name, value in meta["timing"].items()}
            spins = arrays["spins"]
            if spins.dtype != np.uint8 or spins.shape != (reads, -(-qubits // 8)):
                raise ValueError(f"spins must be {reads} × {qubits} bits, got shape {spins.shape} of {spins.dtype}")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise self._file.damaged(at, str(error)) from error
        bits = np.unpackbits(spins, axis=1, count=qubits)
        return meta, Answer(2 * bits.astype(np.int8) - 1, timing, seconds)

    def _meta(self, at: int, parts: Mapping[str, type]) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """The frame at that byte, if its content has these parts."""
        meta, arrays = self._file.read(at)
        for name, kind in parts.items():
            if not isinstance(meta.get(name), kind):
                raise self._file.damaged(at, f"{name} must be of type {kind.__name__}, got {meta.get(name)!r:.40}")
        return meta, arrays

    def _difference(self, problem: Submission, meta: dict[str, Any]) -> str:
        if meta["structure"] != problem.structure:
            return "it uses other qubits or couplers (another chip, other tiles or layers)"
        if meta["parameters"] != dict(problem.parameters):
            return f"it was sent with {meta['parameters']}, not {dict(problem.parameters)}"
        return "its fields or couplings differ"

    def _add(self, problem: Submission, answer: Answer) -> None:
        if not self._file.size:
            self._file.append("header", self.header)
        while self._new_tiles:
            spins = self._new_tiles[-1]
            self._file.append("tiles", {"spins": spins, "chains": self.tiles[spins]})
            self._new_tiles.pop()
        if problem.structure not in self._structures:
            at = self._file.append("graph", {"digest": problem.structure}, qubits=problem.qubits, edges=problem.edges)
            self._structures[problem.structure] = at
        meta = {
            "digest": problem.digest,
            "structure": problem.structure,
            "parameters": dict(problem.parameters),
            "timing": dict(answer.timing),
            "seconds": answer.seconds,
            "shape": list(answer.spins.shape),
        }
        bits = np.packbits(answer.spins > 0, axis=1)
        at = self._file.append("answer", meta, fields=problem.fields, couplings=problem.couplings, spins=bits)
        self._answers.append(at)

    def _scan(self) -> dict[str, Any]:
        """Find the frames; returns the header's content."""
        header: dict[str, Any] | None = None
        for kind, at in self._file.scan():
            if kind == "header":
                header = self._file.read(at)[0]
            elif kind == "answer":
                self._answers.append(at)
            elif kind == "graph":
                self._structures[self._meta(at, {"digest": str})[0]["digest"]] = at
            elif kind == "tiles":
                meta = self._meta(at, {"spins": int, "chains": list})[0]
                self.tiles[meta["spins"]] = meta["chains"]
        if header is None:
            raise RecordingError(
                f"{self.path} has no complete header: it was cut off before the first answer; delete it"
            )
        return header
