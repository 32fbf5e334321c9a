"""The count of what was charged or may be, in memory or in a file that several processes share."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qpsbgd_qubo.files.atomic import locked, with_checksum, without_checksum, writing
from qpsbgd_qubo.solvers.options import COUNT, NOT_NEGATIVE


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
        path: A file that several processes can share, also on several machines; it is made with the first submission.
            Every change is written under a lock before anything is sent, so what a killed process had sent stays
            counted. None counts in memory, for the threads and solvers of one process.
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
            counts = self._read()
            yield counts
            with writing(self.path) as file:
                file.write(with_checksum(dataclasses.asdict(counts)))

    def _read(self) -> Counts:
        if self.path is None:
            return self._counts
        try:
            return Counts(**without_checksum(self.path.read_bytes()))
        except FileNotFoundError:
            return Counts()
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"the ledger {self.path} is damaged: {error}; nothing is sent: restore it, or choose another file to "
                "count from zero"
            ) from error
