"""The solver for every size: exact where that is cheap, otherwise the best heuristic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.descent import Descent
from qpsbgd.solvers.exact import CHEAP_UP_TO, ENUMERATE_UP_TO, Exact


@dataclass(frozen=True)
class Auto(Solver):
    """Picks a solver by the family's size and device; `stats["solver"]` says which.

    Args:
        seed: Given to solvers that draw random numbers.
    """

    seed: int = 0

    def solve(self, family: QuboFamily) -> Solution:
        """The answer of the solver that fits the family."""
        return self.choose(family.num_spins, family.linear.device).solve(family)

    def choose(self, num_spins: int, device: torch.device) -> Solver:
        """The solver for families of this size on this device."""
        # On a GPU only enumeration stays there.
        cheap = CHEAP_UP_TO if device.type == "cpu" else ENUMERATE_UP_TO
        if num_spins <= cheap:
            return Exact()
        return Descent(tabu=100, seed=self.seed)
