"""A solver for every size: exact where that is cheap, otherwise the best heuristic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.options import AT_LEAST_ONE_OR_NONE, SECONDS, SEED, check_options
from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio

if TYPE_CHECKING:  # torch, which single problems do not need
    import torch

    from qpsbgd_qubo.family import QuboFamily, Solution


@dataclass(frozen=True)
class Auto(Solver):
    """Picks a solver by the family's size and device; `stats["solver"]` says which.

    Args:
        time_limit: Seconds to search if the optimum cannot be proven cheaply; for single hard problems.
            None is for layers: one short search.
        rounds: Rounds of `portfolio` instead of a time, so that the answer can be repeated.
        seed: Seed of the solvers that draw random numbers.
    """

    time_limit: float | None = None
    rounds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, time_limit=SECONDS, rounds=AT_LEAST_ONE_OR_NONE, seed=SEED)

    def _solve(self, family: QuboFamily) -> Solution:
        return self.choose(family.num_spins, family.linear.device).solve(family)

    def for_problems(self) -> Solver:
        """The solver `portfolio`."""
        return Portfolio(time_limit=self.time_limit, rounds=self.rounds, seed=self.seed)

    def choose(self, num_spins: int, device: torch.device) -> Solver:
        """The solver for families of this size on this device."""
        from qpsbgd_qubo.solvers.exact.exact import CHEAP_UP_TO, ENUMERATE_UP_TO, Exact
        from qpsbgd_qubo.solvers.search.descent import Descent
        from qpsbgd_qubo.solvers.search.layer_search import LayerSearch

        # Of the exact methods, only enumeration runs on a GPU.
        cheap = CHEAP_UP_TO if device.type == "cpu" else ENUMERATE_UP_TO
        if num_spins <= cheap:
            return Exact()
        if self.time_limit is not None or self.rounds is not None:
            return self.for_problems()
        # On a GPU there is one search and no kicks, so that a step fits into one CUDA graph.
        return LayerSearch(seed=self.seed) if device.type == "cpu" else Descent(tabu=100, seed=self.seed)
