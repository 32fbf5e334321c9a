"""The count of what was charged or may be, in memory or in a file that several processes share."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qpsbgd_qubo.annealers.sqlite_file import Database, Format, changing, create, reading
from qpsbgd_qubo.files.atomic import locked
from qpsbgd_qubo.solvers.options import COUNT, NOT_NEGATIVE

_FORMAT = Format(
    kind="ledger",
    application_id=0x51504C44,
    version=1,
    tables={"spent": {"submissions": int, "qpu_seconds": float}, "recorded": {"recording": str, "answers": int}},
    error=ValueError,
    advice="nothing is sent: restore it, or choose another file to count from zero",
)


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
        path: An SQLite file that several processes can share, also on several machines; it is made with the first
            submission. Every change is one transaction, committed before anything is sent, so what a killed process
            had sent stays counted. None counts in memory, for the threads and solvers of one process.

    SQLite's locks are those of the file system, and on some network file systems these hold on one machine only; so
    other machines are kept out by `locked`, also while the file is read.
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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            if not self.path.exists():
                create(self.path, _FORMAT, lambda database: _write(database, Counts(), Counts()))
            with changing(self.path, _FORMAT) as database:
                before = _counts(database)
                counts = dataclasses.replace(before)
                yield counts
                _write(database, before, counts)

    def _read(self) -> Counts:
        if self.path is None:
            return self._counts
        if not self.path.exists():
            return Counts()
        with locked(self.path), reading(self.path, _FORMAT) as database:
            return _counts(database)


def _counts(database: Database) -> Counts:
    database.check_format()
    submissions, qpu_seconds = database.get("spent", 1)
    recorded = [database.get("recorded", number + 1) for number in range(database.count("recorded"))]
    try:
        return Counts(submissions, qpu_seconds, dict(recorded))
    except (TypeError, ValueError) as error:
        raise database.damaged(str(error)) from error


def _write(database: Database, before: Counts, counts: Counts) -> None:
    database.put("spent", 1, counts.submissions, counts.qpu_seconds)
    for number, (recording, answers) in enumerate(counts.recorded.items(), 1):
        if before.recorded.get(recording) != answers:
            database.put("recorded", number, recording, answers)
