"""What submissions cost: estimates before anything is sent, a count of what was or may be charged, and its limit."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qpsbgd.solvers.options import COUNT

Shape = tuple[int, int]
"""Inputs and columns of a layer."""


class BudgetSpent(RuntimeError):
    """The next submissions would take more QPU time than `max_qpu_seconds` allows; they were not sent."""


@dataclass(frozen=True)
class Estimate:
    """What steps cost on an annealer.

    Attributes:
        submissions: Problems sent.
        qpu_seconds: QPU time as it is charged: programming, anneals and read-outs.
    """

    submissions: int
    qpu_seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.qpu_seconds < math.inf:
            raise ValueError(
                f"estimated QPU time must be finite and not negative, but the service's figures give "
                f"{self.qpu_seconds} s; without an estimate nothing is sent"
            )

    def __mul__(self, steps: int) -> Estimate:
        """What that many such steps cost."""
        steps = COUNT.checked("steps", steps)
        return Estimate(self.submissions * steps, self.qpu_seconds * steps)


def charged(timing: Mapping[str, Any], *, estimate: float) -> float:
    """Seconds to count for an answer: the larger of what the service reports in microseconds and of the estimate.

    A limit on money must not depend on a report that may be missing, NaN, negative or in the wrong unit.
    """
    reported = timing.get("charge_time", timing.get("qpu_access_time"))
    if reported is None or not 0 <= reported < math.inf:
        return estimate
    return max(float(reported) * 1e-6, estimate)


@dataclass(eq=False)
class Bill:
    """A submission that is counted and not answered yet.

    Attributes:
        seconds: Its estimated QPU time.
        sent: Whether the service may have taken it, and so may charge for it.
    """

    seconds: float
    sent: bool = False


class Ledger:
    """Submissions and QPU time that were charged or may be, counted before they are sent, and kept within a limit.

    The count never falls, except by submissions that the service did not take. A solver's copies in one process share
    their ledger, and so may threads.

    Args:
        limit: Most seconds of QPU time; None for no limit.

    Attributes:
        recorded: Answers of the solver's recording that are counted already; those are not counted when given again.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.recorded = 0
        self._limit = limit
        self._submissions, self._seconds = 0, 0.0
        self._open: list[Bill] = []
        self._lock = threading.Lock()

    @property
    def submissions(self) -> int:
        """Problems sent, or about to be."""
        return self._submissions + len(self._open)

    @property
    def qpu_seconds(self) -> float:
        """QPU time of these problems; an estimate where no answer came."""
        return self._seconds + sum(bill.seconds for bill in self._open)

    def check(self, cost: Estimate) -> None:
        """Raise `BudgetSpent` where a step of that cost would pass the limit."""
        self._refuse_beyond(cost.qpu_seconds, "the next step", "nothing was sent or changed")

    def reserve(self, seconds: Sequence[float]) -> list[Bill]:
        """Count submissions of these estimates, all or none, before they are sent.

        Raises:
            BudgetSpent: They would pass the limit.
            ValueError: An estimate is not positive and finite.
        """
        for each in seconds:
            if not 0 < each < math.inf:
                raise ValueError(f"a submission's estimated QPU time must be positive and finite, got {each} s")
        with self._lock:
            self._refuse_beyond(
                sum(seconds), f"the next {len(seconds)} of this step's submissions", "they are not sent"
            )
            bills = [Bill(each) for each in seconds]
            self._open += bills
        return bills

    def settle(self, bill: Bill, seconds: float) -> None:
        """The answer came, and this is what it cost."""
        with self._lock:
            self._open.remove(bill)
            self._count(seconds)

    def give_up(self, bills: Iterable[Bill]) -> None:
        """No more answers will come: what was sent stays counted by its estimate, the rest is not counted."""
        with self._lock:
            for bill in bills:
                if bill in self._open:
                    self._open.remove(bill)
                    if bill.sent:
                        self._count(bill.seconds)

    def count_recorded(self, number: int, seconds: float) -> None:
        """Count the recording's answer of that number, from 1, unless it is counted already."""
        with self._lock:
            if number > self.recorded:
                self.recorded = number
                self._count(seconds)

    def raise_to(self, submissions: int, seconds: float, *, recorded: int) -> None:
        """Go on from the count of a saved run, unless more is counted already."""
        with self._lock:
            self._submissions = max(self._submissions, submissions)
            self._seconds = max(self._seconds, seconds)
            self.recorded = max(self.recorded, recorded)

    def _count(self, seconds: float) -> None:
        self._submissions += 1
        self._seconds += seconds

    def _refuse_beyond(self, seconds: float, what: str, outcome: str) -> None:
        # A limit that is a multiple of the estimate must not fail by rounding.
        if self._limit is not None and self.qpu_seconds + seconds > self._limit * (1 + 1e-9):
            raise BudgetSpent(
                f"{what} would take {seconds:.3g} s of QPU time and pass max_qpu_seconds = {self._limit:g}, of which "
                f"{self.qpu_seconds:.3g} are spent; {outcome}: save the run, and resume it with a larger "
                "max_qpu_seconds"
            )
