"""What submissions cost: estimates before anything is sent, and a limit on what was or may be charged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qpsbgd_qubo.annealers.ledger import Counts, Ledger
from qpsbgd_qubo.options import COUNT

Shape = tuple[int, int]  # inputs and columns of a layer


class BudgetSpent(RuntimeError):
    """The next submissions would take more QPU time than `max_qpu_seconds` allows; they were not sent."""


class RecordingError(RuntimeError):
    """A recording that is damaged, too short, or of another run."""


@dataclass(frozen=True)
class Estimate:
    """What steps cost on an annealer."""

    submissions: int  # problems sent
    qpu_seconds: float  # QPU time as it is charged: programming, anneals and read-outs

    def __post_init__(self) -> None:
        if not 0 <= self.qpu_seconds < math.inf:
            raise ValueError(
                f"estimated QPU time must be finite and not negative, but the service's figures give "
                f"{self.qpu_seconds} s; without an estimate nothing is sent"
            )

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.submissions + other.submissions, self.qpu_seconds + other.qpu_seconds)

    def __mul__(self, steps: int) -> Estimate:
        steps = COUNT.checked("steps", steps)
        return Estimate(self.submissions * steps, self.qpu_seconds * steps)


def seconds_charged(timing: Mapping[str, float], *, estimate: float) -> float:
    """Seconds to count for an answer: the larger of the service's report, which may be wrong, and the estimate."""
    reported = (timing.get(name, 0.0) * 1e-6 for name in ("charge_time", "qpu_access_time"))
    return max(estimate, *(seconds if 0 <= seconds < math.inf else 0.0 for seconds in reported))


@dataclass(eq=False)
class Bill:
    """A submission that is counted and not answered yet."""

    seconds: float  # its estimated QPU time
    sent: bool = False  # whether the service may have taken it, and so may charge for it


class Budget:
    """Counts submissions in a ledger, in memory or a file, before they are sent, and keeps them within `limit` seconds.

    The count never falls, except by submissions that the service did not take.
    """

    def __init__(self, ledger: Ledger | None = None, *, limit: float | None = None) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self._limit = limit

    def check(self, cost: Estimate) -> None:
        """Raise `BudgetSpent` where a step of that cost would exceed the limit."""
        self._refuse_beyond(self.ledger.qpu_seconds, cost.qpu_seconds, "the next step", "nothing was sent or changed")

    def reserve(self, seconds: Sequence[float]) -> list[Bill]:
        """Count submissions of these estimates, all or none, before they are sent."""
        for each in seconds:
            if not 0 < each < math.inf:
                raise ValueError(f"a submission's estimated QPU time must be positive and finite, got {each} s")
        with self.ledger.changing() as counts:
            which = f"the next {len(seconds)} of this step's submissions"
            self._refuse_beyond(counts.qpu_seconds, sum(seconds), which, "they are not sent")
            counts.submissions += len(seconds)
            counts.qpu_seconds += sum(seconds)
        return [Bill(each) for each in seconds]

    def settle(self, bill: Bill, seconds: float) -> None:
        """The answer came, and this is what it cost."""
        with self.ledger.changing() as counts:
            counts.qpu_seconds += seconds - bill.seconds

    def give_up(self, bills: Iterable[Bill]) -> None:
        """No more answers will come: what was sent stays counted, the rest is not counted; once per bill."""
        unsent = [bill.seconds for bill in bills if not bill.sent]
        if unsent:
            with self.ledger.changing() as counts:
                counts.submissions -= len(unsent)
                counts.qpu_seconds = max(0.0, counts.qpu_seconds - sum(unsent))

    def count_recorded(self, recording: Path, number: int, seconds: float) -> None:
        """Count a recording's answer of that number, from 1, unless it is counted already."""
        with self.ledger.changing() as counts:
            if number > counts.recorded.get(_key(recording), 0):
                counts.recorded[_key(recording)] = number
                counts.submissions += 1
                counts.qpu_seconds += seconds

    def mark_recorded(self, recording: Path, number: int) -> None:
        """The recording's answers up to that number came live, and are counted."""
        with self.ledger.changing() as counts:
            counts.recorded[_key(recording)] = number

    def raise_to(self, submissions: int, seconds: float, *, recorded: Mapping[Path, int]) -> None:
        """Go on from the count of a saved run, unless more is counted already."""
        saved = Counts(submissions, seconds, {_key(recording): number for recording, number in recorded.items()})
        with self.ledger.changing() as counts:
            counts.submissions = max(counts.submissions, saved.submissions)
            counts.qpu_seconds = max(counts.qpu_seconds, saved.qpu_seconds)
            for key, number in saved.recorded.items():
                counts.recorded[key] = max(counts.recorded.get(key, 0), number)

    def _refuse_beyond(self, spent: float, seconds: float, what: str, outcome: str) -> None:
        # A limit that is a multiple of the estimate must not fail by rounding.
        if self._limit is not None and spent + seconds > self._limit * (1 + 1e-9):
            raise BudgetSpent(
                f"{what} would take {seconds:.3g} s of QPU time and exceed max_qpu_seconds = {self._limit:g}, of which "
                f"{spent:.3g} are spent; {outcome}: save the run, and resume it with a larger max_qpu_seconds"
            )


def _key(recording: Path) -> str:
    return str(recording.resolve())
