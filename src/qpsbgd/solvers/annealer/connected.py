"""Solvers that ask a service: one connection, kept open; a budget; a recording; a state that a resumed run restores."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.annealer.budget import BudgetSpent, Estimate, Shape
from qpsbgd.solvers.annealer.recordings import Recording
from qpsbgd.solvers.annealer.submissions import Answer, Link, Live, Submission


@dataclass(kw_only=True, eq=False)
class ConnectedSolver(Solver):
    """Solves families by asking a service, and counts what that costs.

    The connection is opened at the first family and kept open until `close`, or the end of a `with` block. A copied
    or unpickled solver opens it anew.

    Args:
        max_qpu_seconds: Raise `BudgetSpent` before submissions that would take more of the service's time than this,
            counted from the solver's making, or from that of the run which it resumes. What a step had sent when it
            was interrupted is counted, too, by its estimate; a checkpoint from before the step does not know of it.
        retries: Of a submission that met a passing fault.
        record: File to write all problems and answers to; see `recordings.Recording`.

    Attributes:
        submissions: Problems sent so far.
        qpu_seconds: Time of the service that they took, as it is charged.
    """

    max_qpu_seconds: float | None = None
    retries: int = 3
    record: str | Path | None = None
    submissions: int = field(default=0, init=False, repr=False)
    qpu_seconds: float = field(default=0.0, init=False, repr=False)
    _sampler: Any = field(default=None, init=False, repr=False)
    _open_link: Link | None = field(default=None, init=False, repr=False)
    _position: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _lost: tuple[int, float] = field(default=(0, 0.0), init=False, repr=False)

    def __post_init__(self) -> None:
        checked_number(self, "retries", least=0, whole=True)
        checked_number(self, "max_qpu_seconds", least=0, optional=True)

    @property
    @abstractmethod
    def name(self) -> str:
        """The solver's name in `SOLVERS`."""

    @abstractmethod
    def _connect(self) -> tuple[Any, bool]:
        """A sampler, and whether it is ours to close."""

    @abstractmethod
    def _header(self, sampler: Any) -> dict[str, Any]:
        """What must be equal between a run that recorded and one that reads the recording."""

    @abstractmethod
    def _seconds_of(self, problem: Submission) -> float:
        """What a problem will probably cost."""

    @abstractmethod
    def estimate(self, shapes: Sequence[Shape]) -> Estimate:
        """What a step with layers of these shapes (inputs, columns) costs; nothing is sent."""

    def solve(self, family: QuboFamily) -> Solution:
        """The best read of every column."""
        return self.solve_all([family])[0]

    def close(self) -> None:
        """Close the connection; the next family opens it again."""
        if self._open_link is not None:
            self._position = self._open_link.state_dict()
            self._open_link.close()
            self._forget()

    def _forget(self) -> None:
        self._sampler = self._open_link = None

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the interpreter much is gone already
            self.close()

    def __enter__(self) -> ConnectedSolver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """What was sent so far, and the place in the recording."""
        link = self._position if self._open_link is None else self._open_link.state_dict()
        return {"submissions": self.submissions, "qpu_seconds": self.qpu_seconds, "link": link or {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        if state and set(state) != {"submissions", "qpu_seconds", "link"}:
            raise ValueError(f"{type(self).__name__} cannot go on from {sorted(state)}; was the solver changed?")
        position = dict(state.get("link", {}))
        if self._open_link is not None:
            self._open_link.load_state_dict(position)
        self._position = position
        self.submissions = int(state.get("submissions", 0))
        self.qpu_seconds = float(state.get("qpu_seconds", 0.0))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._open_link is not None:
            state["_position"] = self._open_link.state_dict()
        return {**state, "_sampler": None, "_open_link": None}

    @property
    def sampler_in_use(self) -> Any:
        """The sampler that is asked; opens the connection."""
        self._link()
        return self._sampler

    def _link(self) -> Link:
        if self._open_link is None:
            sampler, owned = self._connect()
            try:
                link = self._made_link(sampler, owned)
                if self._position:
                    link.load_state_dict(self._position)
            except BaseException:
                Live(sampler, owned=owned).close()
                raise
            self._sampler, self._open_link = sampler, link
        return self._open_link

    def _made_link(self, sampler: Any, owned: bool) -> Link:
        live = Live(sampler, retries=self.retries, owned=owned)
        if self.record is None:
            return live
        return Recording(self.record, live, header={"solver": self.name, **self._header(sampler)})

    @contextmanager
    def _repeatable(self) -> Iterator[None]:
        """What happens inside can be done again after a failure: recorded answers are then given again, not bought."""
        before, lost = self.state_dict(), self._lost
        try:
            yield
        except BaseException:
            if self.record is not None:
                self.load_state_dict(before)
                self.submissions += self._lost[0] - lost[0]
                self.qpu_seconds += self._lost[1] - lost[1]
            raise

    def _ask(self, problems: Sequence[Submission]) -> Iterator[Answer]:
        """The answers; what was sent is counted, also where it never came back."""
        waiting, link = list(problems), self._link()
        try:
            for answer in link.ask(problems):
                problem = waiting.pop(0)
                self.submissions += 1
                self.qpu_seconds += self._seconds_of(problem) if answer.seconds is None else answer.seconds
                yield answer
        except BaseException:
            never_came = waiting[: link.outstanding]
            seconds = sum(map(self._seconds_of, never_came))
            self.submissions += len(never_came)
            self.qpu_seconds += seconds
            self._lost = self._lost[0] + len(never_came), self._lost[1] + seconds
            raise

    def _check_budget(self, shapes: Sequence[Shape]) -> None:
        """Raise where a step with layers of these shapes would pass the limit."""
        if self.max_qpu_seconds is None or not shapes:
            return
        cost = self.estimate(shapes)
        # A limit that is a multiple of the estimate must not fail by rounding.
        if self.qpu_seconds + cost.qpu_seconds > self.max_qpu_seconds * (1 + 1e-9):
            raise BudgetSpent(
                f"the next step's {cost.qpu_seconds:.3g} s of the chip would pass max_qpu_seconds = "
                f"{self.max_qpu_seconds:g}, of which {self.qpu_seconds:.3g} are spent; nothing was sent or changed: "
                "save the run, and resume it with a larger max_qpu_seconds"
            )


def shapes_of(families: Sequence[QuboFamily]) -> list[Shape]:
    """Inputs and columns of every family."""
    return [(family.num_spins, family.num_columns) for family in families]


def checked_number(solver: Any, name: str, *, least: float, whole: bool = False, optional: bool = False) -> None:
    """Make the option a plain number, or raise, naming it: whole and at least `least`, or positive."""
    value = getattr(solver, name)
    if value is None and optional:
        return
    kind = "a whole number" if whole else "a finite number"
    try:
        if isinstance(value, bool | str):
            raise TypeError
        plain = operator.index(value) if whole else float(value)
        if not math.isfinite(plain):
            raise TypeError
    except TypeError:
        raise TypeError(f"{name} must be {kind}, got {value!r}") from None
    if plain < least or (not whole and plain == 0):
        wanted = f"at least {least:g}" if whole else "positive"
        raise ValueError(f"{name} must be {wanted}, got {value}")
    setattr(solver, name, plain)


def checked_flag(solver: Any, name: str) -> None:
    """Raise, naming the option, unless it is true or false."""
    if not isinstance(getattr(solver, name), bool):
        raise TypeError(f"{name} must be true or false, got {getattr(solver, name)!r}")
