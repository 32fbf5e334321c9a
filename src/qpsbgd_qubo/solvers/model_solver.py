"""Solvers that take models in numpy as they are, sparse or dense; torch is needed for families alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from qpsbgd_qubo.dense import DenseIsing
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.sparse import SparseIsing

if TYPE_CHECKING:
    from qpsbgd_qubo.family import QuboFamily, Solution


class ModelSolver(Solver):
    """Solves sparse and dense models in numpy, and with these also families."""

    @abstractmethod
    def answer(self, model: SparseIsing | DenseIsing) -> tuple[Array, Array, dict[str, Any]]:
        """The best spins found (n, m), int8, whether each column is proven optimal (m,), and statistics."""

    def _solve(self, family: QuboFamily) -> Solution:
        """The best spins found for every column."""
        import torch

        from qpsbgd_qubo.family import Solution

        plain = family.without_offset()
        spins, proven, stats = self.answer(DenseIsing.of_family(plain))
        solution = Solution.of(plain, torch.from_numpy(spins), proven_optimal=torch.from_numpy(proven), **stats)
        return solution.with_offset(family.offset)
