"""Simulated annealing of all columns side by side, with a schedule from each column's own energy scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.descent import better_of, random_spins, sign_start


@dataclass(frozen=True)
class Annealing(Solver):
    """Metropolis sweeps from hot to cold and a final descent; the first read starts at sign(−s), others at random.

    A column's temperatures fall geometrically from `hot` to `cold` times the typical local field |2 Q g + s| that
    the couplings alone give a random spin vector.

    Args:
        sweeps: Passes over all spins per read.
        reads: Independent runs per column, the best is kept.
        hot: First temperature, in units of the typical field.
        cold: Last temperature, in the same units.
        seed: Of starts and acceptances.
    """

    sweeps: int = 20
    reads: int = 1
    hot: float = 1.0
    cold: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sweeps < 1 or self.reads < 1:
            raise ValueError(f"sweeps and reads must be at least 1, got {self.sweeps} and {self.reads}")
        if not self.hot >= self.cold > 0:
            raise ValueError(f"temperatures must satisfy hot ≥ cold > 0, got {self.hot} and {self.cold}")

    def solve(self, family: QuboFamily) -> Solution:
        """The best local minimum of all reads for every column; CUDA families are solved on the CPU."""
        home = family.linear.device
        family = family if home.type == "cpu" else family.to("cpu")
        generator = np.random.default_rng(self.seed)
        solution = None
        flips = 0
        for read in range(self.reads):
            spins = sign_start(family) if read == 0 else random_spins(family, generator)
            flips += self._anneal(family, spins, generator)
            solution = Solution.of(family, spins) if solution is None else better_of(family, solution, spins)
        assert solution is not None
        stats = {"solver": "annealing", "reads": self.reads, "sweeps": self.sweeps, "flips": flips}
        return Solution(
            solution.spins.to(home), solution.energies.to(home), solution.proven_optimal.to(home), stats
        )

    def _anneal(self, family: QuboFamily, spins: Tensor, generator: np.random.Generator) -> int:
        from qpsbgd.solvers import kernels

        couplings = 2 * family.quadratic
        couplings.fill_diagonal_(0)
        threshold = 32 * torch.finfo(spins.dtype).eps * (
            couplings.abs().sum(1, keepdim=True) + family.linear.abs()
        ).amax(0)
        typical = float(couplings.square().sum(1).mean().sqrt())
        # Without couplings sign(−s) is the answer at any temperature.
        ladder = np.geomspace(self.hot, self.cold, self.sweeps) * typical if typical > 0 else np.zeros(0)
        temperatures = np.broadcast_to(ladder.astype(couplings.numpy().dtype), (family.num_columns, len(ladder)))
        seeds = generator.integers(1, 2**63, size=family.num_columns, dtype=np.uint64)
        by_column = spins.T.contiguous().numpy()
        fields = (family.linear + couplings @ spins).T.contiguous().numpy()
        with kernels.threads():
            flips = kernels.anneal(
                couplings.numpy(), fields, by_column, np.ascontiguousarray(temperatures), threshold.numpy(), seeds
            )
        spins.copy_(torch.from_numpy(by_column).T)
        return int(flips.sum())
