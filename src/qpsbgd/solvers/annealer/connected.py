"""Solvers that ask a service: one connection, kept open; a budget; a recording; a state that a resumed run restores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.annealer.budget import BudgetSpent, Estimate, Shape
from qpsbgd.solvers.annealer.recordings import Recording
from qpsbgd.solvers.annealer.submissions import Answer, Link, Live, Problem


@dataclass(kw_only=True, eq=False)
class ConnectedSolver(Solver):
    """Solves families by asking a service, and counts what that costs.

    The connection is opened at the first family and kept open until `close`, or the end of a `with` block. A copied
    or unpickled solver opens it anew.

    Args:
        max_qpu_seconds: Raise `BudgetSpent` before submissions that would take more of the service's time than this,
            counted from the solver's making, or from that of the run which it resumes.
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

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries must be at least 0, got {self.retries}")
        if self.max_qpu_seconds is not None and not self.max_qpu_seconds > 0:
            raise ValueError(f"max_qpu_seconds must be positive, got {self.max_qpu_seconds}")

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
        self.submissions = int(state.get("submissions", 0))
        self.qpu_seconds = float(state.get("qpu_seconds", 0.0))
        self._position = dict(state.get("link", {}))
        if self._open_link is not None:
            self._open_link.load_state_dict(self._position)

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
            self._sampler, owned = self._connect()
            self._open_link = self._made_link(self._sampler, owned)
            if self._position:
                self._open_link.load_state_dict(self._position)
        return self._open_link

    def _made_link(self, sampler: Any, owned: bool) -> Link:
        live = Live(sampler, retries=self.retries, owned=owned)
        if self.record is None:
            return live
        return Recording(self.record, live, header={"solver": self.name, **self._header(sampler)})

    def _ask(self, problems: Sequence[Problem]) -> Iterator[Answer]:
        for answer in self._link().ask(problems):
            self.submissions += 1
            self.qpu_seconds += answer.seconds
            yield answer

    def _check_budget(self, cost: Estimate) -> None:
        assert self.max_qpu_seconds is not None
        if self.qpu_seconds + cost.qpu_seconds > self.max_qpu_seconds:
            raise BudgetSpent(
                f"the next step's {cost.qpu_seconds:.3g} s of the chip would pass max_qpu_seconds = "
                f"{self.max_qpu_seconds:g}, of which {self.qpu_seconds:.3g} are spent; nothing was sent or changed: "
                "save the run, and resume it with a larger max_qpu_seconds"
            )
