"""Solvers that send problems to a service: frozen options, and a session with the connection and the count."""

import dataclasses
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from qpsbgd_qubo.annealers.budget import Budget, Estimate, Shape
from qpsbgd_qubo.annealers.ledger import Ledger
from qpsbgd_qubo.annealers.reads import Reads
from qpsbgd_qubo.annealers.recordings import Recording
from qpsbgd_qubo.annealers.submissions import Answer, Link, Live, Submission
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.options import COUNT, POSITIVE_OR_NONE, check_options
from qpsbgd_qubo.solvers import Solver

Self = TypeVar("Self", bound="ServiceSolver")
T = TypeVar("T")
Owners = Sequence[tuple[Reads, int]]  # columns of all families, each by its family's reads and its number there


class Session:
    """One connection to a service, opened when first needed; `place` is where to go on in the recording."""

    def __init__(self, budget: Budget, *, place: dict[str, Any] | None = None) -> None:
        self.budget = budget
        self._place = place or {}
        self._opened: tuple[Any, Link] | None = None
        self._known: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def open(self, make: Callable[[], tuple[Any, Link]]) -> tuple[Any, Link]:
        """The sampler and the link to it: the open ones, or else those that `make` opens."""
        with self._lock:
            if self._opened is None:
                sampler, link = make()
                try:
                    link.load_state_dict(self._place)
                except BaseException:
                    link.close()
                    raise
                self._opened = sampler, link
            return self._opened

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, worked out once per connection."""
        with self._lock:
            if key not in self._known:
                self._known[key] = make()
            return cast("T", self._known[key])

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One thread at a time; after a failure, recorded answers are given again instead of bought again."""
        with self._lock:
            before = self.place
            try:
                yield
            except BaseException:
                self.place = before
                raise

    @property
    def place(self) -> dict[str, Any]:
        """How far the recording was used; empty without one."""
        return self._place if self._opened is None else self._opened[1].state_dict()

    @place.setter
    def place(self, place: dict[str, Any]) -> None:
        if self._opened is not None:
            self._opened[1].load_state_dict(place)
        self._place = place

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        with self._lock:
            if self._opened is not None:
                self._place = self.place
                self._opened[1].close()
                self._opened = None
                self._known.clear()

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the interpreter much is gone already
            self.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceSolver(Solver):
    """Solves families on a service, and counts what that costs.

    The connection is opened at the first family and kept open until `close`, or the end of a `with` block. Threads may
    share a solver, one at a time. Copies, also those with other options (`dataclasses.replace`), open connections of
    their own but count together with the original. A pickled solver keeps the count so far and then counts
    independently, unless its ledger is a file.

    Args:
        max_qpu_seconds: Most seconds of QPU time; submissions that would exceed it raise `BudgetSpent` and are not
            sent. All submissions that may have been charged count, from the start of the run that the solver
            resumes: an answer by the larger of the service's report and the estimate, a lost answer and every retry by
            the estimate. A checkpoint from before an interrupted step does not include that step's submissions.
        ledger: A `Ledger` or the path of one: all solvers with the same ledger, in any process, count together, and
            each refuses what would exceed its own `max_qpu_seconds`. None counts for this solver and its copies.
        retries: How often to send a problem again after a temporary fault.
        record: File to write all problems and answers to; see `recordings.Recording`.
        label: Label of every problem on the service's dashboard; no part of a recording.
    """

    name: ClassVar[str]  # the solver's name in `SOLVERS`

    max_qpu_seconds: float | None = None
    ledger: Ledger | str | Path | None = field(default=None, repr=False)
    retries: int = 3
    record: str | Path | None = None
    label: str | None = "qpsbgd"
    _session: Session = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_options(self, max_qpu_seconds=POSITIVE_OR_NONE, retries=COUNT)
        if not isinstance(self.label, str | None):
            raise TypeError(f"label must be a text or None, got {self.label!r}")
        self._begin()

    @abstractmethod
    def _new_sampler(self) -> tuple[Any, bool]:
        """A sampler, and whether it is ours to close."""

    @abstractmethod
    def _header(self, sampler: Any) -> dict[str, Any]:
        """What must be equal between a run that recorded and one that reads the recording."""

    @abstractmethod
    def _fill(self, owners: Owners) -> list[Answer]:
        """Send the problems of these columns and add their answers to the reads; returns the answers."""

    @abstractmethod
    def _best(self, reads: Reads) -> Solution:
        """The best read of every column."""

    @abstractmethod
    def estimate(self, shapes: Sequence[Shape]) -> Estimate:
        """What a step with layers of these shapes (inputs, columns) costs; sends no problem."""

    @property
    def submissions(self) -> int:
        """Problems sent so far, retries included."""
        return self._session.budget.ledger.submissions

    @property
    def qpu_seconds(self) -> float:
        """QPU time that they were or may have been charged for."""
        return self._session.budget.ledger.qpu_seconds

    def _solve(self, family: QuboFamily) -> Solution:
        return self._solve_all([family])[0]

    def _solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """The best read of every column of every family, from as few submissions as hold them all."""
        if not families:
            return []
        with self._session.exclusive():
            reads, used = self._read(families)
            solutions = [self._best(each) for each in reads]
        return [dataclasses.replace(solution, stats=used | solution.stats) for solution in solutions]

    def _read(self, families: Sequence[QuboFamily]) -> tuple[list[Reads], dict[str, Any]]:
        """The reads of all families, and what they took."""
        self.check_budget([(family.num_spins, family.num_columns) for family in families])
        reads = [Reads(family) for family in families]
        answers = self._fill([(each, column) for each in reads for column in range(each.family.num_columns)])
        return reads, self._used(answers)

    def check_budget(self, shapes: Sequence[Shape], *, steps: int = 1) -> None:
        """Raise `BudgetSpent` where that many steps with layers of these shapes would exceed `max_qpu_seconds`."""
        if self.max_qpu_seconds is not None:
            self._session.budget.check(self.estimate(shapes) * steps)
        elif self.charges and not self.submissions:
            cost = self.estimate(shapes) * steps
            warnings.warn(
                f"solver {self.name!r} is about to send its first {cost.submissions} of any number of submissions, "
                f"about {cost.qpu_seconds:.2g} s of QPU time, without a limit: give max_qpu_seconds to set one",
                stacklevel=2,
            )

    @property
    def together(self) -> bool:
        """Always: all columns of all families share submissions."""
        return True

    @property
    def charges(self) -> bool:
        """Whether submissions cost time of an account."""
        return False

    def connect(self) -> Any:
        """The sampler in use; opens the connection, unless it is open."""
        return self._session.open(self._open)[0]

    def close(self) -> None:
        """Close the connection; the next family opens it again."""
        self._session.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """What was sent so far, and the place in the recording."""
        return {"submissions": self.submissions, "qpu_seconds": self.qpu_seconds, "link": self._session.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; the count of what was sent is raised to the saved one, never lowered."""
        if state and set(state) != {"submissions", "qpu_seconds", "link"}:
            raise ValueError(f"{type(self).__name__} cannot go on from {sorted(state)}; was the solver changed?")
        place = dict(state.get("link", {}))
        self._session.place = place
        recorded = {Path(self.record).expanduser(): place.get("position", 0)} if self.record is not None else {}
        self._session.budget.raise_to(state.get("submissions", 0), state.get("qpu_seconds", 0.0), recorded=recorded)

    def __copy__(self: Self) -> Self:
        return self._in_session(Session(self._session.budget, place=self._session.place))

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        return self.__copy__()  # an open sampler cannot be copied, and all other options are immutable

    def __getstate__(self) -> dict[str, Any]:
        options = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.init}
        options["ledger"] = options["ledger"].path
        return {"options": options, "state": self.state_dict()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        for name, value in saved["options"].items():
            object.__setattr__(self, name, value)
        self._begin()
        self.load_state_dict(saved["state"])

    def _begin(self) -> None:
        if not isinstance(self.ledger, Ledger | str | Path | None):
            raise TypeError(f"ledger must be a Ledger, the path of one or None, got {self.ledger!r}")
        ledger = self.ledger if isinstance(self.ledger, Ledger) else Ledger(self.ledger)
        object.__setattr__(self, "ledger", ledger)  # so that `dataclasses.replace` hands it on
        object.__setattr__(self, "_session", Session(Budget(ledger, limit=self.max_qpu_seconds)))

    def _in_session(self: Self, session: Session, **changes: Any) -> Self:
        made = dataclasses.replace(self, **changes)
        object.__setattr__(made, "_session", session)
        return made

    def _open(self) -> tuple[Any, Link]:
        sampler, owned = self._new_sampler()
        live = Live(sampler, retries=self.retries, owned=owned, label=self.label)
        try:
            return sampler, self._new_link(live, sampler)
        except BaseException:
            live.close()
            raise

    def _new_link(self, live: Live, sampler: Any) -> Link:
        if self.record is None:
            return live
        return Recording(self.record, live, header={"solver": self.name, **self._header(sampler)})

    def _link(self) -> Link:
        return self._session.open(self._open)[1]

    def _send(self, problems: Sequence[Submission]) -> list[Answer]:
        """The answers; every problem is counted before it is sent."""
        return list(self._link().answers(problems, self._session.budget))

    def _used(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """What these answers took, for the `stats` of a solution."""
        seconds = sum(answer.seconds for answer in answers)
        return {"solver": self.name, "submissions": len(answers), "qpu_seconds": seconds}
