"""Families like those of layers, in tensors, and the checks of `qpsbgd_qubo.testing` that every solver must pass."""

import torch

from qpsbgd.binary_map import binary_map
from qpsbgd.qubo import QuboFamily
from qpsbgd_qubo.testing import SOLVER_CHECKS, check_solver, lowest_energies

__all__ = ["SOLVER_CHECKS", "check_solver", "lowest_energies", "random_family"]


def random_family(
    num_spins: int,
    num_columns: int,
    rows: int,
    *,
    scale: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> QuboFamily:
    """The binary map of Gaussian inputs and gradients."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, num_spins, generator=generator, dtype=torch.float64)
    grads = torch.randn(rows, num_columns, generator=generator, dtype=torch.float64)
    return binary_map(inputs, grads, scale=scale).to(dtype)
