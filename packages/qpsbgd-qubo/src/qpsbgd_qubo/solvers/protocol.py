"""The protocol of solvers: families in numpy, or in torch tensors where a solver runs on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qpsbgd_qubo.arrays import full_precision, stack
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.sparse import SparseIsing


@dataclass(frozen=True, eq=False)
class State:
    """What `solve(state, linear)` knows beforehand: a quadratic part, and what a solver has made of it."""

    quadratic: Any  # Q, shape (n, n), or (count, n, n) for blocks


@dataclass(frozen=True, eq=False)
class WarmState(State):
    """The state of a solver that goes on from its last answer, by block; a row of spins is a column of the family."""

    couplings: Any = None  # 2 Q without its diagonal, (count, n, n)
    reach: Any = None  # the largest field that they can make, (count,)
    spins: Any = None  # where the last search ended, (count, m, n)
    signs: Any = None  # whether sign(−s) was positive then, (count, m, n); None begins with the spins as they are
    coupling_fields: Any = None  # of the spins, (count, m, n); None where the quadratic part is new


class Solver(ABC):
    """Solves QUBO families. The same family and options give the same solution, unless a solver says otherwise.

    solver.solve(family)               one family
    solver.solve_all(families)         several: all layers of a step at once
    state = solver.init(quadratic)     many linear parts, one after the other:
    solution = solver.solve(state, linear)
    solution = solver.solve(solution.state, next_linear)
    """

    def init(self, quadratic: Any, last: State | None = None) -> State:
        """The state for a quadratic part (n, n), or for blocks (count, n, n).

        With `last`, a solver that is `warm` goes on from that state's spins, though they are of another quadratic part.
        """
        return State(quadratic)

    def solve(self, problem: QuboFamily | State, linear: Any = None) -> Solution:
        """The best spins found for every column: arrays for arrays, tensors on the same device for tensors.

        They are in the family's floating type. A solver that runs out of time returns its best spins with
        `proven_optimal` false.

        Args:
            problem: A family, or a state of this solver.
            linear: With a state, the linear parts (n, m), or (count, n, m) for blocks; the offset is zero.
        """
        if isinstance(problem, State):
            with full_precision(problem.quadratic):
                return self._solve_from(problem, linear)
        return self.solve_all([problem])[0]

    def _solve_from(self, state: State, linear: Any) -> Solution:
        """The solution of `solve(state, linear)`."""
        if state.quadratic.ndim == 2:
            return replace(self.solve(QuboFamily(state.quadratic, linear)), state=state)
        solutions = self.solve_all([QuboFamily(*parts) for parts in zip(state.quadratic, linear, strict=True)])
        names = ("spins", "energies", "proven_optimal")
        spins, energies, proven = (stack([getattr(each, name) for each in solutions]) for name in names)
        return Solution(spins, energies, proven, solutions[0].stats, state)

    def solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """One solution per family, as of `solve`.

        This is the only place where tensors become arrays, without a copy on the CPU, and answers tensors again.
        """
        for family in families:
            if not isinstance(family, QuboFamily):
                raise TypeError(
                    f"solve takes a QuboFamily, got {type(family).__name__}; for problems in other forms (files, "
                    "matrices, dicts, dimod's models, sparse ones) use qpsbgd_qubo.solve(problem, solver=…)"
                )
        solutions: dict[int, Solution] = {}
        for place, family in enumerate(families):
            with full_precision(family.linear):
                if not family.is_cpu and (solution := self._solve_on_gpu(family)):
                    solutions[place] = solution
        plain = {place: family.numpy() for place, family in enumerate(families) if place not in solutions}
        exponents = [family.range_exponent() for family in plain.values()]
        scaled = [family.in_range(k) if k else family for family, k in zip(plain.values(), exponents, strict=True)]
        for (place, family), k, answer in zip(plain.items(), exponents, self._solve_all(scaled), strict=True):
            if k:
                answer = Solution.of(family, answer.spins, proven_optimal=answer.proven_optimal, **answer.stats)
            solutions[place] = answer.like(families[place])
        return [solutions[place] for place in range(len(families))]

    @abstractmethod
    def _solve(self, family: QuboFamily) -> Solution:
        """The solution of a family of arrays; subclasses write this one."""

    def _solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """One solution per family of arrays; solvers that gain from all layers of a step at once override this."""
        return [self._solve(family) for family in families]

    def _solve_on_gpu(self, family: QuboFamily) -> Solution | None:
        """The solution of a family of tensors on a GPU, if this solver runs there; None has it solved on the CPU."""
        return None

    @property
    def warm(self) -> bool:
        """Whether `solve(state, linear)` goes on from the state's last spins; then states are `WarmState`."""
        return False

    def asynchronous(self, like: Any, num_spins: int) -> bool:
        """Whether `solve(state, linear)` for this many spins, on the device of `like`, never waits for the GPU."""
        return False

    @property
    def together(self) -> bool:
        """Whether all families should go into one call of `solve_all`; otherwise several threads may call `solve`."""
        return False

    @classmethod
    def variants(cls) -> dict[str, str]:
        """The ways to use the solver, each with why it cannot be used here (no licence, no token) or "" if it can."""
        return {"": ""}

    def for_problems(self) -> Solver:
        """The solver for single problems that come from no layer: itself; `auto` means another one there."""
        return self

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run must restore; empty unless answers depend on earlier calls."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but got {sorted(state)}; was the solver changed?")


class ModelSolver(Solver):
    """Solves sparse problems as well as families."""

    @abstractmethod
    def answer(self, model: SparseIsing | QuboFamily) -> tuple[Array, Array, dict[str, Any]]:
        """The best spins found (n, m), int8, whether each column is proven optimal (m,), and statistics."""

    def _solve(self, family: QuboFamily) -> Solution:
        plain = family.without_offset()
        spins, proven, stats = self.answer(plain)
        return Solution.of(plain, spins, proven_optimal=proven, **stats).with_offset(family.offset)
