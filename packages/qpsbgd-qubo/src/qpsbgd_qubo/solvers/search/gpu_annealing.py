"""Simulated annealing of thousands of chains of one problem at once, on a GPU."""

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.options import AT_LEAST_ONE, SEED, check_options
from qpsbgd_qubo.solvers.protocol import ModelSolver
from qpsbgd_qubo.solvers.search.chains import cooling
from qpsbgd_qubo.sparse import SparseIsing, dot


@dataclass(frozen=True)
class GpuAnnealing(ModelSolver):
    """Thousands of annealing chains of one problem at once on a CUDA GPU; the best is kept. For single hard problems.

    Args:
        chains: How many run at once; rounded up to a multiple of 32.
        sweeps: Passes over all spins.
        seed: Seed of the starts and the accepted moves.
    """

    chains: int = 8192
    sweeps: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, chains=AT_LEAST_ONE, sweeps=AT_LEAST_ONE, seed=SEED)

    @classmethod
    def variants(cls) -> dict[str, str]:
        """Why the solver cannot be used here, or "" if it can."""
        return {"": "" if torch.cuda.is_available() or _in_interpreter() else "needs a CUDA GPU, and torch finds none"}

    def answer(self, model: SparseIsing | QuboFamily) -> tuple[Array, Array, dict[str, Any]]:
        """The best chain of every column, one column after the other."""
        if isinstance(model, QuboFamily):
            columns = [SparseIsing.from_dense(model, column) for column in range(model.num_columns)]
        else:
            columns = [model]
        spins = np.stack([self._best(column) for column in columns], axis=1)
        return spins, np.zeros(len(columns), bool), {"solver": "gpu-annealing", "chains": self.chains}

    def _best(self, problem: SparseIsing) -> Array:
        if obstacle := self.variants()[""]:
            raise RuntimeError(f'the solver "gpu-annealing" {obstacle}; use "auto"')
        try:
            from qpsbgd_qubo.solvers.search.chains_triton import anneal
        except ImportError as error:
            raise ImportError('the solver "gpu-annealing" needs Triton: pip install triton') from error
        device = "cpu" if _in_interpreter() else "cuda"
        typical = math.sqrt(dot(problem.couplings, problem.couplings) / problem.num_spins)
        temperatures = cooling(typical, hot=0.6, sweeps=self.sweeps)
        return anneal(problem, temperatures, chains=self.chains, seed=self.seed, device=device)[0]


def _in_interpreter() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
