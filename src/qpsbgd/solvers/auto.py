"""The solver for every size: exact where that is cheap, otherwise the best heuristic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.exact.exact import CHEAP_UP_TO, ENUMERATE_UP_TO, Exact
from qpsbgd.solvers.search.descent import Descent


@dataclass(frozen=True)
class Auto(Solver):
    """Picks a solver by the family's size and device; `stats["solver"]` says which.

    Args:
        time_limit: Seconds to go on searching for something better, where the answer is not proven; for single hard
            problems. None is for layers: one short search.
        seed: Given to solvers that draw random numbers.
    """

    time_limit: float | None = None
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
        if self.time_limit is not None:
            tenure = 10 + num_spins // 100
            return Descent(tabu=10 * num_spins, tenure=tenure, time_limit=self.time_limit, seed=self.seed)
        # Wide layers have several basins; a GPU's step is to stay one graph.
        kicks = 4 if num_spins >= 256 and device.type == "cpu" else 0
        return Descent(tabu=100, kicks=kicks, seed=self.seed)
