"""A solver for every size: exact where that is cheap, otherwise the best heuristic."""

from dataclasses import dataclass

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE, SECONDS, SEED, check_options
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.exact.exact import CHEAP_UP_TO, ENUMERATE_UP_TO, Exact
from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio
from qpsbgd_qubo.solvers.search.descent import Descent
from qpsbgd_qubo.solvers.search.layer_search import LayerSearch


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
        return self.choose(family.num_spins)._solve(family)

    def _solve_on_gpu(self, family: QuboFamily) -> Solution | None:
        return self.choose(family.num_spins, on_gpu=True)._solve_on_gpu(family)

    def for_problems(self) -> Solver:
        """The solver `portfolio`."""
        return Portfolio(time_limit=self.time_limit, rounds=self.rounds, seed=self.seed)

    def choose(self, num_spins: int, *, on_gpu: bool = False) -> Solver:
        """The solver for families of this size on the CPU or a GPU."""
        # Of the exact methods, only enumeration runs on a GPU.
        if num_spins <= (ENUMERATE_UP_TO if on_gpu else CHEAP_UP_TO):
            return Exact()
        if self.time_limit is not None or self.rounds is not None:
            return self.for_problems()
        # On a GPU there is one search and no kicks, so that a step fits into one CUDA graph.
        return Descent(tabu=100, seed=self.seed) if on_gpu else LayerSearch(seed=self.seed)
