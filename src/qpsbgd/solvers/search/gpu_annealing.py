"""Simulated annealing of thousands of chains of one problem at once, on a GPU."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.qubo.sparse import SparseIsing, dot
from qpsbgd.solvers import SparseSolver
from qpsbgd.solvers.options import AT_LEAST_ONE, SEED, check_options
from qpsbgd.solvers.search.landscape import cooling


@dataclass(frozen=True)
class GpuAnnealing(SparseSolver):
    """Thousands of annealing chains of one problem at once on a CUDA GPU; the best is kept. For single hard problems.

    Args:
        chains: How many run at once; rounded up to a multiple of 32.
        sweeps: Passes over all spins.
        seed: Of the starts and the accepted moves.
    """

    chains: int = 8192
    sweeps: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, chains=AT_LEAST_ONE, sweeps=AT_LEAST_ONE, seed=SEED)

    @classmethod
    def variants(cls) -> dict[str, str]:
        """Why the solver cannot be used here, or "" if it can."""
        return {"": "" if torch.cuda.is_available() or _interpreted() else "needs a CUDA GPU, and torch finds none"}

    def solve(self, family: QuboFamily) -> Solution:
        """The best chain of every column, one column after the other."""
        plain = family.without_offset()
        double = plain.to("cpu", torch.float64)
        spins = []
        for column in range(family.num_columns):
            part = slice(column, column + 1)
            single = QuboFamily.trusted(double.quadratic, double.linear[:, part], double.offset[part])
            spins.append(self.solve_sparse(SparseIsing.from_family(single)).spins)
        solution = Solution.of(plain, torch.cat(spins, dim=1), solver="gpu-annealing", chains=self.chains)
        return solution.with_offset(family.offset)

    def solve_sparse(self, problem: SparseIsing) -> Solution:
        """The best chain."""
        if obstacle := self.variants()[""]:
            raise RuntimeError(f'the solver "gpu-annealing" {obstacle}; use "auto"')
        try:
            from qpsbgd.solvers.search.chains_triton import Chains
        except ImportError as error:
            raise ImportError('the solver "gpu-annealing" needs Triton: pip install triton') from error
        device = "cpu" if _interpreted() else "cuda"
        typical = math.sqrt(dot(problem.couplings, problem.couplings) / problem.num_spins)
        temperatures = cooling(typical, hot=0.6, sweeps=self.sweeps)
        spins, _ = Chains(problem, device).annealed(temperatures, chains=self.chains, seed=self.seed)
        energy = torch.tensor([float(problem.energy(spins))], dtype=torch.float64)
        stats = {"solver": "gpu-annealing", "chains": self.chains}
        return Solution(torch.from_numpy(spins).double()[:, None], energy, torch.tensor([False]), stats)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
