"""Every problem that was sent to an annealer and every answer, in one file, from which they can be given again."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qpsbgd_qubo.annealers.budget import Budget
from qpsbgd_qubo.annealers.sqlite_file import (
    Database,
    Format,
    changing,
    copy_rows,
    create,
    missing_bytes,
    readable_part,
    reading,
)
from qpsbgd_qubo.annealers.submissions import Answer, Link, Submission
from qpsbgd_qubo.solvers.options import AT_LEAST_ONE, COUNT, POSITIVE

Chains = list[list[list[int]]]


class RecordingError(RuntimeError):
    """A recording that is damaged, too short, or of another run."""


FORMAT = Format(
    kind="recording",
    application_id=0x51505243,
    version=1,
    tables={
        "header": {"content": str},  # JSON, as all texts here but digests
        "tiles": {"spins": int, "chains": str},
        "graphs": {"digest": str, "qubits": bytes, "edges": bytes},  # arrays of `Submission` as they are in memory
        "answers": {
            "digest": str,
            "structure": str,  # digest of the graph
            "parameters": str,
            "fields": bytes,  # compressed by zlib, as couplings: only people look at them
            "couplings": bytes,
            "spins": bytes,  # a bit per read and qubit; every read begins with a new byte
            "shape": str,  # reads and qubits
            "timing": str,
            "seconds": float,
        },
    },
    error=RecordingError,
    advice="use another copy of it",
)


class Recording(Link):
    """Answers from a file as long as it lasts, and then from a live link, whose answers it adds to the file.

    So a run that was killed gets the same answers again and goes on from there, without more QPU time and with the same
    weights. Every problem must be the one that was recorded in its place.

    Args:
        path: An SQLite file; if it is not there, it is made before anything is sent.
        live: Where further answers come from, or None to answer from the file alone.
        header: What must be equal between the run that recorded and this one: options, chip. None takes any.
    """

    def __init__(self, path: str | Path, live: Link | None = None, *, header: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path).expanduser()
        self.tiles: dict[int, Chains] = {}
        self.missing_bytes = 0
        """Bytes at the end that a file lacks that was cut, perhaps while it was copied."""
        self._live = live
        self._remains: Database | None = None  # of a file that was cut
        self._exists = self.path.exists()
        self._writable = False  # not tried yet
        self._count = 0
        self._structures: list[str] = []
        self._written_tiles = 0
        self._position = 0
        if self._exists:
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
        return self._count

    def answers(self, problems: Sequence[Submission], budget: Budget) -> Iterator[Answer]:
        """Recorded answers first, then live ones; each counts once, however often it is given."""
        known = max(0, min(len(problems), len(self) - self._position))
        for problem in problems[:known]:
            answer = self._recorded(problem)
            self._position += 1
            budget.count_recorded(self.path, self._position, answer.seconds)
            yield answer
        rest = problems[known:]
        if not rest:
            return
        if self._live is None:
            cut = f", or the file was cut: {self.missing_bytes} bytes are missing at its end"
            raise RecordingError(
                f"{self.path} ends after {len(self)} answers, but the run needs another; the recorded run was shorter"
                f"{cut if self.missing_bytes else ''}"
            )
        self._prepare(rest)
        for problem, answer in zip(rest, self._live.answers(rest, budget), strict=True):
            self._add(problem, answer)
            self._position = len(self)
            budget.mark_recorded(self.path, self._position)
            yield answer

    def keep_tiles(self, spins: int, chains: Chains) -> None:
        """Remember the tiles in use, so that a replay needs neither their search nor the same version of it."""
        self.tiles.setdefault(spins, chains)  # written with the next problem

    def verify(self) -> float:
        """Read every answer; returns the QPU time that was counted for them, in seconds."""
        with self._reading() as database:
            for number in range(len(self._structures)):
                database.get("graphs", number + 1)
            return sum(self._answer(database, number)[1].seconds for number in range(len(self)))

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
        with self._reading() as database:
            row, answer = self._answer(database, self._position)
        if row["digest"] != problem.digest:
            raise RecordingError(
                f"answer {self._position} of {self.path} belongs to another problem: "
                f"{self._difference(problem, row)}; replay with the data, seeds and options of the recorded run, or "
                "record into a new file"
            )
        if answer.spins.shape[1] != len(problem.qubits):
            raise RecordingError(
                f"answer {self._position} of {self.path} must have {len(problem.qubits)} qubits as its problem has, "
                f"got {answer.spins.shape[1]}; use another copy of it"
            )
        return answer

    def _answer(self, database: Database, position: int) -> tuple[dict[str, Any], Answer]:
        """An answer's row and the answer, its parts checked: a file may have right checksums and be made by hand."""
        row = dict(zip(FORMAT.tables["answers"], database.get("answers", position + 1), strict=True))
        try:
            row["parameters"] = json.loads(row["parameters"])
            seconds = POSITIVE.checked("seconds", row["seconds"])
            reads, qubits = (AT_LEAST_ONE.checked("reads and qubits", number) for number in json.loads(row["shape"]))
            timing = {name: float(value) for name, value in json.loads(row["timing"]).items()}
            width = -(-qubits // 8)
            if len(row["spins"]) != reads * width:
                raise ValueError(f"spins must be {reads} × {qubits} bits, got {len(row['spins'])} bytes")
        except (AttributeError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise database.damaged(f"answer {position}: {error}") from error
        bits = np.unpackbits(np.frombuffer(row["spins"], np.uint8).reshape(reads, width), axis=1, count=qubits)
        return row, Answer(2 * bits.astype(np.int8) - 1, timing, seconds)

    def _difference(self, problem: Submission, row: dict[str, Any]) -> str:
        if row["structure"] != problem.structure:
            return "it uses other qubits or couplers (another chip, other tiles or layers)"
        if row["parameters"] != dict(problem.parameters):
            return f"it was sent with {row['parameters']}, not {dict(problem.parameters)}"
        return "its fields or couplings differ"

    def _prepare(self, problems: Sequence[Submission]) -> None:
        """Make sure that answers can be written, before problems are sent; write what they refer to."""
        if not self._exists:
            if self.path.exists():
                raise self._shared()
            create(self.path, FORMAT, lambda database: database.put("header", 1, json.dumps(self.header)))
            self._exists = True
        elif self._remains is not None:
            create(self.path, FORMAT, self._restore)
            self._remains, self.missing_bytes = None, 0
        tiles = list(self.tiles.items())
        structures = {problem.structure: problem for problem in problems if problem.structure not in self._structures}
        with self._changing() as database:
            if not self._writable:
                database.check_pages()
                database.check_writable()
            for number, (spins, chains) in enumerate(tiles[self._written_tiles :], self._written_tiles + 1):
                database.put("tiles", number, spins, json.dumps(chains))
            for number, (structure, problem) in enumerate(structures.items(), len(self._structures) + 1):
                database.put("graphs", number, structure, problem.qubits.tobytes(), problem.edges.tobytes())
        self._writable = True
        self._written_tiles = len(tiles)
        self._structures += structures

    def _restore(self, database: Database) -> None:
        assert self._remains is not None
        for table in FORMAT.tables:
            copy_rows(table, self._remains, database)

    def _add(self, problem: Submission, answer: Answer) -> None:
        with self._changing() as database:
            database.put(
                "answers",
                self._count + 1,
                problem.digest,
                problem.structure,
                json.dumps(dict(problem.parameters)),
                zlib.compress(problem.fields.tobytes()),
                zlib.compress(problem.couplings.tobytes()),
                np.packbits(answer.spins > 0, axis=1).tobytes(),
                json.dumps(answer.spins.shape),
                json.dumps(dict(answer.timing)),
                answer.seconds,
            )
        self._count += 1

    @contextmanager
    def _reading(self) -> Iterator[Database]:
        if self._remains is not None:
            yield self._remains
        else:
            with reading(self.path, FORMAT) as database:
                yield database

    @contextmanager
    def _changing(self) -> Iterator[Database]:
        """The file, if it is as this run left it."""
        with changing(self.path, FORMAT) as database:
            if database.last("answers") != self._count:
                raise self._shared()
            yield database

    def _shared(self) -> RecordingError:
        return RecordingError(
            f"{self.path} was changed by another run, or by a copy of this solver; give every run a file of its own"
        )

    def _scan(self) -> dict[str, Any]:
        """Read everything but the answers; returns the header's content."""
        try:
            with reading(self.path, FORMAT) as database:
                database.check_format()
                self.missing_bytes = database.missing_bytes()
                if not self.missing_bytes:
                    return self._contents(database)
        except RecordingError:
            self.missing_bytes = missing_bytes(self.path)
            if not self.missing_bytes:
                raise
        self._remains = readable_part(self.path, FORMAT)
        return self._contents(self._remains)

    def _contents(self, database: Database) -> dict[str, Any]:
        if not database.count("header"):
            raise RecordingError(f"{self.path} has no complete header: it was cut before the first answer; delete it")
        try:
            header = json.loads(database.get("header", 1)[0])
            for number in range(database.count("tiles")):
                spins, chains = database.get("tiles", number + 1)
                self.tiles[spins] = json.loads(chains)
        except (RecursionError, ValueError) as error:
            raise database.damaged(f"{error}") from error
        if not isinstance(header, dict):
            raise database.damaged(f"its header must be an object, got {type(header).__name__}")
        self._written_tiles = len(self.tiles)
        self._structures = [database.get("graphs", number + 1)[0] for number in range(database.count("graphs"))]
        self._count = database.count("answers")
        return header
