"""A family prepared for single flips, where searches start, and which of two answers is better."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.openmp import guard_fork


@dataclass(frozen=True, eq=False)
class Landscape:
    """A family prepared for single flips: flipping spin i changes the energy by −2 gᵢ fᵢ, f = s + couplings · g."""

    couplings: Tensor  # 2 Q with a zero diagonal, shape (n, n)
    linear: Tensor  # s, shape (n, m)
    threshold: Tensor  # smallest gain gᵢ fᵢ that cannot be a rounding error, shape (m,)

    @classmethod
    def of(cls, family: QuboFamily) -> Landscape:
        """The landscape of `family`."""
        if family.linear.device.type == "cpu":
            guard_fork()
        couplings, reach = cls.of_matrix(family.quadratic)
        return cls(couplings, family.linear, cls.thresholds(reach, family.linear.abs().amax(0)))

    @staticmethod
    def of_matrix(quadratic: Tensor) -> tuple[Tensor, Tensor]:
        """The couplings of a quadratic part (n, n), and the largest field that they can make."""
        couplings = 2 * quadratic.contiguous()
        couplings.fill_diagonal_(0)
        return couplings, torch.linalg.vector_norm(couplings, 1, dim=1).amax()

    @staticmethod
    def thresholds(reach: Tensor, largest: Tensor) -> Tensor:
        """The smallest gain that counts, from the couplings' reach and the columns' largest linear terms."""
        return 8 * torch.finfo(largest.dtype).eps * (reach + largest)

    def fields(self, spins: Tensor) -> Tensor:
        """The local fields of `spins`, both of shape (n, m)."""
        return self.linear + self.couplings @ spins


def triton_kernels(like: Tensor, num_spins: int) -> ModuleType | None:
    """The Triton kernels, where they are installed and can take families of so many spins beside this tensor."""
    if not like.is_cuda:
        return None
    try:
        from qpsbgd_qubo.solvers.search import kernels_triton
    except ImportError:
        return None
    return kernels_triton if kernels_triton.fits(like, num_spins) else None


def sign_start(family: QuboFamily) -> Tensor:
    """sign(−s), the optimum when the gradient is large; shape (n, m)."""
    return torch.where(family.linear <= 0, 1.0, -1.0).to(family.linear)


def random_spins(family: QuboFamily, generator: np.random.Generator) -> Tensor:
    """Independent fair spins, shape (n, m); drawn on the CPU, so they are the same on every device."""
    bits = generator.integers(0, 2, size=tuple(family.linear.shape), dtype=np.int8)
    return torch.from_numpy(2 * bits - 1).to(family.linear)


def better_of(solution: Solution, other: Solution) -> Solution:
    """The lower energy of the two, column by column; `solution` where they are equal."""
    wins = other.energies < solution.energies
    stats = dict(solution.stats)
    if "flips" in stats:
        stats["flips"] += other.stats.get("flips", 0)
    return Solution(
        torch.where(wins, other.spins, solution.spins),
        torch.where(wins, other.energies, solution.energies),
        torch.where(wins, other.proven_optimal, solution.proven_optimal),
        stats,
    )
