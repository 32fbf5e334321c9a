"""The solver for every size: exact where that is cheap, otherwise the best heuristic."""

from __future__ import annotations

from dataclasses import dataclass

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.descent import Descent
from qpsbgd.solvers.exact import CHEAP_UP_TO, Exact


@dataclass(frozen=True)
class Auto(Solver):
    """Picks a solver by the family's size and device; `stats["solver"]` says which.

    Args:
        seed: Given to solvers that draw random numbers.
    """

    seed: int = 0

    def solve(self, family: QuboFamily) -> Solution:
        """The answer of the solver that fits the family."""
        return self._choose(family).solve(family)

    def _choose(self, family: QuboFamily) -> Solver:
        if family.num_spins <= CHEAP_UP_TO:
            return Exact()
        if family.linear.device.type != "cpu":
            return Descent()
        return Descent(tabu=100, seed=self.seed)
