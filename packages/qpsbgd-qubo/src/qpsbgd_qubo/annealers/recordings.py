"""Every problem that was sent to an annealer and every answer, in one file, from which they can be given again."""

import json
import math
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qpsbgd_qubo.annealers.budget import Budget, RecordingError
from qpsbgd_qubo.annealers.sqlite_file import Kind, check, is_new, transaction
from qpsbgd_qubo.annealers.submissions import Answer, Link, Submission
from qpsbgd_qubo.options import AT_LEAST_ONE, COUNT, POSITIVE

Chains = list[list[list[int]]]


_KIND = Kind(
    "recording",
    RecordingError,
    "use a copy, or save what can be read into a new file: sqlite3 FILE .recover | sqlite3 NEW",
    application_id=0x51505243,  # "QPRC"
    version=1,
    statements=(
        # Texts are JSON, apart from digests, and blobs are arrays of `Submission`; fields and couplings, which only
        # people read, are compressed by zlib. Spins have a bit each, and every read begins with a new byte. The header
        # is number 1; number 2 takes space and is removed again.
        "CREATE TABLE header (number INTEGER PRIMARY KEY, content TEXT NOT NULL)",
        "CREATE TABLE tiles (spins INTEGER PRIMARY KEY, chains TEXT NOT NULL)",
        "CREATE TABLE graphs (structure TEXT PRIMARY KEY, qubits BLOB NOT NULL, edges BLOB NOT NULL)",
        "CREATE TABLE answers (number INTEGER PRIMARY KEY, digest TEXT NOT NULL, structure TEXT NOT NULL, "
        "parameters TEXT NOT NULL, fields BLOB NOT NULL, couplings BLOB NOT NULL, "
        "reads INTEGER NOT NULL, spins BLOB NOT NULL, timing TEXT NOT NULL, seconds REAL NOT NULL)",
    ),
)


class Recording(Link):
    """Answers from a file as long as it lasts, and then from a live link, whose answers it adds to the file.

    So a run that was killed gets the same answers again and goes on from there, without more QPU time and with the same
    weights. Every problem must be the one that was recorded in its place.

    Args:
        path: An SQLite file; it is opened, or made, and written to before anything is sent.
        live: Where further answers come from, or None to answer from the file alone.
        header: What must be equal between the run that recorded and this one: options, chip. None takes any.
    """

    def __init__(self, path: str | Path, live: Link | None = None, *, header: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path).expanduser()
        self.tiles: dict[int, Chains] = {}
        self._live = live
        self._exists = not is_new(self.path)
        self._count = self._position = 0
        self._written: set[int | str] = set()  # sizes of tiles, and structures, that this run knows to be in the file
        if self._exists:
            self.header = self._read()
            for name, value in json.loads(json.dumps(header or {})).items():
                if self.header.get(name) != value:
                    was, now = (repr(v)[:80] for v in (self.header.get(name), value))
                    raise RecordingError(
                        f"{self.path} was recorded with {name} = {was}, but now {name} = {now}; go on with the same, "
                        "or record into a new file"
                    )
        elif live is None:
            raise FileNotFoundError(f"there is no recording in {self.path}; make one with a solver's option `record`")
        else:
            self.header = dict(header or {})

    def __len__(self) -> int:
        return self._count

    def answers(self, problems: Sequence[Submission], budget: Budget) -> Iterator[Answer]:
        """Recorded answers first, then live ones; each counts once, however often it is given."""
        known = max(0, min(len(problems), len(self) - self._position))
        for problem in problems[:known]:
            answer = self._next_answer(problem)
            self._position += 1
            budget.count_recorded(self.path, self._position, answer.seconds)
            yield answer
        rest = problems[known:]
        if rest and self._live is None:
            raise RecordingError(
                f"{self.path} ends after {len(self)} answers, but the run needs another; the recorded run was shorter"
            )
        if rest:
            self._prepare(rest)
        for problem, answer in zip(rest, self._live.answers(rest, budget) if self._live else (), strict=True):
            self._add(problem, answer)
            self._position = len(self)
            budget.mark_recorded(self.path, self._position)
            yield answer

    def keep_tiles(self, spins: int, chains: Chains) -> None:
        """Remember the tiles in use, so that a replay needs neither their search nor the same version of it."""
        self.tiles.setdefault(spins, chains)  # written with the next problem

    @property
    def qpu_seconds(self) -> float:
        """QPU time that was counted for all answers."""
        with transaction(self.path, _KIND) as connection:
            return float(connection.execute("SELECT TOTAL(seconds) FROM answers").fetchone()[0])

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

    def _next_answer(self, problem: Submission) -> Answer:
        query = "SELECT digest, structure, parameters, reads, spins, timing, seconds FROM answers WHERE number = ?"
        with transaction(self.path, _KIND) as connection:
            row = connection.execute(query, (self._position + 1,)).fetchone()
        try:
            digest, structure, parameters, reads, packed, timing, seconds = row
            if digest != problem.digest:
                raise RecordingError(
                    f"answer {self._position} of {self.path} belongs to another problem: "
                    f"{_difference(problem, structure, json.loads(parameters))}; replay with the data, seeds and "
                    "options of the recorded run, or record into a new file"
                )
            shape = AT_LEAST_ONE.checked("reads", reads), -(-len(problem.qubits) // 8)
            bits = np.unpackbits(np.frombuffer(packed, np.uint8).reshape(shape), axis=1, count=len(problem.qubits))
            timing = {name: float(value) for name, value in json.loads(timing).items()}
            return Answer(2 * bits.astype(np.int8) - 1, timing, POSITIVE.checked("seconds", seconds))
        except (AttributeError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise _KIND.damaged(self.path, f"answer {self._position}: {error}") from error

    def _prepare(self, problems: Sequence[Submission]) -> None:
        """Write what the answers will refer to, and take the space that they need; without it nothing is sent."""
        tiles = {spins: json.dumps(chains) for spins, chains in self.tiles.items() if spins not in self._written}
        graphs = {each.structure: each for each in problems if each.structure not in self._written}
        with self._changing() as connection:
            if tiles or graphs:  # always before the first problems, so that the file is tried
                connection.execute("REPLACE INTO header VALUES (1, ?)", (json.dumps(self.header),))
                connection.executemany("INSERT OR IGNORE INTO tiles VALUES (?, ?)", tiles.items())
                rows = [(name, each.qubits.tobytes(), each.edges.tobytes()) for name, each in graphs.items()]
                connection.executemany("INSERT OR IGNORE INTO graphs VALUES (?, ?, ?)", rows)
        self._exists = True
        self._written.update(tiles, graphs)
        needed = sum(map(_most_bytes, problems))
        with self._changing() as connection:
            free = math.prod(
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "freelist_count")
            )
            if free < needed:
                connection.execute("REPLACE INTO header VALUES (2, zeroblob(?))", (needed,))
        if free < needed:
            with self._changing() as connection:  # not before: a file keeps the pages that it had before a transaction
                connection.execute("DELETE FROM header WHERE number = 2")

    def _add(self, problem: Submission, answer: Answer) -> None:
        spins = np.packbits(answer.spins > 0, axis=1).tobytes()
        arrays = [zlib.compress(array.tobytes()) for array in (problem.fields, problem.couplings)]
        parameters, timing = json.dumps(dict(problem.parameters)), json.dumps(dict(answer.timing))
        row = problem.digest, problem.structure, parameters, *arrays, len(answer.spins), spins, timing, answer.seconds
        with self._changing() as connection:
            connection.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (self._count + 1, *row))
        self._count += 1

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """The file, if it is as this run left it."""
        with transaction(self.path, _KIND, write=True) as connection:
            query = "SELECT EXISTS (SELECT * FROM header WHERE number = 1), COALESCE(MAX(number), 0) FROM answers"
            if connection.execute(query).fetchone() != (self._exists, self._count):
                raise RecordingError(
                    f"{self.path} was changed by another run, or by a copy of this solver; give every run its own file"
                )
            yield connection

    def _read(self) -> dict[str, Any]:
        """Check the file, and read everything but the answers; returns the header."""
        with transaction(self.path, _KIND) as connection:
            check(connection, self.path, _KIND)
            try:
                [(content,)] = connection.execute("SELECT content FROM header WHERE number = 1")
                tiles = connection.execute("SELECT spins, chains FROM tiles")
                self.tiles = {spins: json.loads(chains) for spins, chains in tiles}
                [(self._count,)] = connection.execute("SELECT COALESCE(MAX(number), 0) FROM answers")
                return dict(json.loads(content).items())
            except (AttributeError, RecursionError, TypeError, ValueError) as error:
                raise _KIND.damaged(self.path, error) from error


def _most_bytes(problem: Submission) -> int:
    """What the answer takes in the file, if the sampler returns as many reads as it is told."""
    arrays = problem.fields.nbytes + problem.couplings.nbytes
    reads = int(problem.parameters.get("num_reads", 1)) * -(-len(problem.qubits) // 8)
    return reads + arrays + arrays // 64 + MORE_BYTES


MORE_BYTES = 16384  # for the service's times and parameters, and for pages that are not full


def _difference(problem: Submission, structure: str, parameters: dict[str, Any]) -> str:
    if structure != problem.structure:
        return "it uses other qubits or couplers (another chip, other tiles or layers)"
    if parameters != dict(problem.parameters):
        return f"it was sent with {parameters}, not {dict(problem.parameters)}"
    return "its fields or couplings differ"
