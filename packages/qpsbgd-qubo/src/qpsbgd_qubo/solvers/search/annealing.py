"""Simulated annealing of all columns side by side, with a schedule from each column's own energy scale."""

from dataclasses import dataclass, replace

import numpy as np

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import Array, aligned, kernels, thread_count
from qpsbgd_qubo.options import AT_LEAST_ONE, POSITIVE, SEED, check_options
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.search.descent import best_of_reads
from qpsbgd_qubo.solvers.search.landscape import Landscape
from qpsbgd_qubo.solvers.search.single_flips import lower_columns


@dataclass(frozen=True)
class Annealing(Solver):
    """Metropolis sweeps from hot to cold and a final descent; the first read starts at sign(−s), others at random.

    Temperatures fall geometrically from `hot` to `cold` times the typical field: the one that a family's couplings
    exert on a spin when the others are random. With strongly correlated inputs `descent` with tabu moves is better.

    Args:
        sweeps: Passes over all spins per read.
        reads: Independent runs per column; the best is kept.
        hot: First temperature, in units of the typical field.
        cold: Last temperature, in the same units.
        seed: Seed of the starts and the accepted moves.
    """

    sweeps: int = 20
    reads: int = 1
    hot: float = 0.5
    cold: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, sweeps=AT_LEAST_ONE, reads=AT_LEAST_ONE, hot=POSITIVE, cold=POSITIVE, seed=SEED)
        if self.hot < self.cold:
            raise ValueError(f"hot must be at least cold, got {self.hot} and {self.cold}")

    def _solve(self, family: QuboFamily) -> Solution:
        """The best local minimum of all reads and of plain descent."""
        offset, family = family.offset, family.without_offset()
        landscape = Landscape.of(family)
        generator = np.random.default_rng(self.seed)

        def anneal(spins: Array, stop: Array) -> Solution:
            lowered, flips = self._anneal(landscape, spins, generator, stop)
            return Solution.of(family, lowered, flips=flips)

        solution, made = best_of_reads(family, self.reads, anneal, generator)
        stats = {"solver": "annealing", "reads": made, "sweeps": self.sweeps, "flips": solution.stats["flips"]}
        return replace(solution, stats=stats).with_offset(offset)

    def _anneal(
        self, landscape: Landscape, spins: Array, generator: np.random.Generator, stop: Array
    ) -> tuple[Array, int]:
        couplings = landscape.couplings
        typical = np.sqrt((couplings.astype(np.float64) ** 2).sum(1).mean())
        # Without couplings sign(−s) is the answer at any temperature.
        sweeps = self.sweeps if typical > 0 else 0
        temperatures = (typical * np.geomspace(self.hot, self.cold, sweeps)).astype(couplings.dtype)
        n, m = spins.shape
        states = generator.integers(1, 2**63, size=m, dtype=np.uint64)
        by_column, fields = aligned(spins.T), aligned(landscape.fields(spins).T)
        sites, made = np.arange(n, dtype=np.int32), np.empty(m, np.int64)
        kernels.anneal(couplings, fields, by_column, sites, temperatures, states, made, stop, thread_count())
        flips = lower_columns(couplings, fields, by_column, landscape.threshold)
        return by_column.T, int(flips.sum())
