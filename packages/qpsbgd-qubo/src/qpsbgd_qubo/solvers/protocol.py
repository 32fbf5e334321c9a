"""The protocol of solvers; those for models in numpy take sparse and dense ones, and need torch for families alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qpsbgd_qubo.dense import DenseIsing
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.sparse import SparseIsing

if TYPE_CHECKING:  # torch, which not every solver needs
    from qpsbgd_qubo.family import QuboFamily, Solution


class Solver(ABC):
    """Solves QUBO families. The same family and options give the same solution, unless a solver says otherwise."""

    def solve(self, family: QuboFamily) -> Solution:
        """The best spins found for every column, on the device and in the floating type of the family.

        A solver that runs out of time returns its best spins with `proven_optimal` false.
        """
        from qpsbgd_qubo.family import QuboFamily, Solution

        if not isinstance(family, QuboFamily):
            raise TypeError(
                f"solve takes a QuboFamily, got {type(family).__name__}; for problems in other forms (files, matrices, "
                "dicts, dimod's models, sparse ones) use qpsbgd_qubo.solve(problem, solver=…)"
            )
        # On a GPU only `QuboFamily` itself looks at the range: here the numbers would have to be waited for.
        exponent = family.range_exponent() if family.linear.device.type == "cpu" else 0
        if not exponent:
            return self._solve(family)
        found = self._solve(family.in_range(exponent))
        return Solution.of(family, found.spins, proven_optimal=found.proven_optimal, **found.stats)

    @abstractmethod
    def _solve(self, family: QuboFamily) -> Solution:
        """What `solve` returns; subclasses write this one."""

    @property
    def warm(self) -> bool:
        """Whether a search starts from the last step's spins; then it has `improved` and `lower`, as `Descent` has."""
        return False

    @classmethod
    def variants(cls) -> dict[str, str]:
        """The ways to use the solver, each with why it cannot be used here (no licence, no token) or "" if it can."""
        return {"": ""}

    def solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """One solution per family; solvers that can take all layers of a step at once override this."""
        return [self.solve(family) for family in families]

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
    """Solves sparse and dense models in numpy, and with these also families."""

    @abstractmethod
    def answer(self, model: SparseIsing | DenseIsing) -> tuple[Array, Array, dict[str, Any]]:
        """The best spins found (n, m), int8, whether each column is proven optimal (m,), and statistics."""

    def _solve(self, family: QuboFamily) -> Solution:
        import torch

        from qpsbgd_qubo.family import Solution

        plain = family.without_offset()
        spins, proven, stats = self.answer(DenseIsing.of_family(plain))
        solution = Solution.of(plain, torch.from_numpy(spins), proven_optimal=torch.from_numpy(proven), **stats)
        return solution.with_offset(family.offset)
