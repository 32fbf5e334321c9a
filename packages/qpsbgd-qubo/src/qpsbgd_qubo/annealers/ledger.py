"""The count of what was charged or may be, in memory or in a file that several processes share."""

import dataclasses
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qpsbgd_qubo.annealers.sqlite_file import Kind, check, is_new, transaction
from qpsbgd_qubo.options import COUNT, NOT_NEGATIVE

_KIND = Kind(
    "ledger",
    ValueError,
    "nothing is sent: restore a copy, or choose another file to count from zero",
    application_id=0x51504C44,  # "QPLD"
    version=1,
    statements=(
        "CREATE TABLE spent (number INTEGER PRIMARY KEY, submissions INTEGER NOT NULL, qpu_seconds REAL NOT NULL)",
        "CREATE TABLE recorded (recording TEXT PRIMARY KEY, answers INTEGER NOT NULL)",
        "INSERT INTO spent VALUES (1, 0, 0.0)",
    ),
)


_TOUCHING = ("INSERT OR IGNORE INTO recorded VALUES ('', 0)", "DELETE FROM recorded WHERE recording = ''")
"""Changes of a new file that have its journal take the space of all later ones: none fails once a problem is sent."""


@dataclass
class Counts:
    """Submissions, their QPU time, and how many answers of each recording are among them."""

    submissions: int = 0
    qpu_seconds: float = 0.0
    recorded: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.submissions = COUNT.checked("submissions", self.submissions)
        self.qpu_seconds = NOT_NEGATIVE.checked("qpu_seconds", self.qpu_seconds)
        self.recorded = {name: COUNT.checked("recorded", number) for name, number in self.recorded.items()}


class Ledger:
    """Counts submissions and QPU time of all solvers that are given it.

    Args:
        path: An SQLite file that several processes can share; it is made with the first submission. Every change is a
            transaction, committed before anything is sent, so what a killed process had sent stays counted. On network
            file systems whose locks do not reach other machines, give each machine a ledger of its own. None counts in
            memory, for the threads and solvers of one process.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path).expanduser().resolve()
        self._counts = Counts()
        self._lock = threading.Lock()

    @property
    def submissions(self) -> int:
        """Problems sent, or about to be."""
        return self._read().submissions

    @property
    def qpu_seconds(self) -> float:
        """QPU time of these problems; an estimate where no answer came."""
        return self._read().qpu_seconds

    @contextmanager
    def changing(self) -> Iterator[Counts]:
        """The counts, to be changed by one thread of one process at a time; an error leaves them as they were."""
        if self.path is None:
            with self._lock:
                counts = dataclasses.replace(self._counts)
                yield counts
                self._counts = counts
            return
        if is_new(self.path):
            for statement in _TOUCHING:
                with transaction(self.path, _KIND, write=True) as connection:
                    connection.execute(statement)
                    connection.execute("UPDATE spent SET number = 1")
        with transaction(self.path, _KIND, write=True) as connection:
            counts = _counts(connection, self.path)
            before = set(counts.recorded.items())
            yield counts
            connection.execute("REPLACE INTO spent VALUES (1, ?, ?)", (counts.submissions, counts.qpu_seconds))
            connection.executemany("REPLACE INTO recorded VALUES (?, ?)", counts.recorded.items() - before)

    def _read(self) -> Counts:
        if self.path is None or is_new(self.path):
            return self._counts
        with transaction(self.path, _KIND) as connection:
            return _counts(connection, self.path)


def _counts(connection: sqlite3.Connection, path: Path) -> Counts:
    check(connection, path, _KIND)
    try:
        [(submissions, qpu_seconds)] = connection.execute("SELECT submissions, qpu_seconds FROM spent")
        return Counts(submissions, qpu_seconds, dict(connection.execute("SELECT recording, answers FROM recorded")))
    except (TypeError, ValueError) as error:
        raise _KIND.damaged(path, error) from error
