"""Best-improvement descent: flip the spin that lowers the energy most, until none does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver


@dataclass(frozen=True)
class Descent(Solver):
    """Single flips from sign(−s), best improvement first, all columns side by side.

    Args:
        max_flips: Stop a column after this many flips. A number below 1 is a share of n: 0.125 allows n/8 flips,
            which keeps the answer near the sign vector. None goes on to a local minimum.
        restarts: Also descend from this many random starts and keep the best.
        seed: Of the random starts.
    """

    max_flips: float | None = None
    restarts: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_flips is not None and self.max_flips < 0:
            raise ValueError(f"max_flips must not be negative, got {self.max_flips}")
        if self.restarts < 0:
            raise ValueError(f"restarts must not be negative, got {self.restarts}")

    def solve(self, family: QuboFamily) -> Solution:
        """A local minimum per column, or the spins reached when the flips are used up."""
        spins = sign_start(family)
        flips = descend(family, spins, max_flips=self._limit(family.num_spins))
        solution = Solution.of(family, spins)
        if self.restarts:
            generator = np.random.default_rng(self.seed)
            for _ in range(self.restarts):
                spins = random_spins(family, generator)
                flips += descend(family, spins, max_flips=self._limit(family.num_spins))
                solution = better_of(family, solution, spins)
        solution.stats.update(solver="descent", flips=flips)
        return solution

    def _limit(self, num_spins: int) -> int:
        if self.max_flips is None:
            # Never reached by exact arithmetic on sensible data; ends the exchange of roundings.
            return 100 * num_spins + 1000
        return round(self.max_flips * num_spins) if 0 < self.max_flips < 1 else round(self.max_flips)


def sign_start(family: QuboFamily) -> Tensor:
    """sign(−s), the optimum when the gradient is large; shape (n, m)."""
    return torch.where(family.linear <= 0, 1.0, -1.0).to(family.linear)


def random_spins(family: QuboFamily, generator: np.random.Generator) -> Tensor:
    """Independent fair spins, shape (n, m); drawn on the CPU, so equal on every device."""
    bits = generator.integers(0, 2, size=tuple(family.linear.shape), dtype=np.int8)
    return torch.from_numpy(2 * bits - 1).to(family.linear)


def better_of(family: QuboFamily, solution: Solution, spins: Tensor) -> Solution:
    """`solution` with every column replaced where `spins` have less energy."""
    energies = family.energies(spins)
    wins = energies < solution.energies
    return Solution(
        torch.where(wins, spins, solution.spins),
        torch.where(wins, energies, solution.energies),
        solution.proven_optimal & ~wins,
        solution.stats,
    )


def descend(family: QuboFamily, spins: Tensor, *, max_flips: int) -> int:
    """Lower `spins` (n, m) in place by single flips, at most `max_flips` per column; returns the flips made.

    A flip of spin i changes the energy by −2 gᵢ fᵢ, with the local field f = s + 2 Q g without Q's diagonal.
    """
    couplings = 2 * family.quadratic
    couplings.fill_diagonal_(0)
    # A flip must gain more than rounding can feign.
    threshold = 32 * torch.finfo(spins.dtype).eps * (couplings.abs().sum(1, keepdim=True) + family.linear.abs()).amax(0)
    fields = family.linear + couplings @ spins
    if spins.device.type == "cpu":
        from qpsbgd.solvers import kernels

        # The kernels want one column's spins side by side in memory.
        by_column, field_columns = spins.T.contiguous().numpy(), fields.T.contiguous().numpy()
        with kernels.threads():
            flips = int(
                kernels.descend(couplings.numpy(), field_columns, by_column, threshold.numpy(), max_flips).sum()
            )
        spins.copy_(torch.from_numpy(by_column).T)
        return flips
    return _descend_torch(couplings, fields, spins, threshold=threshold, max_flips=max_flips)


def _descend_torch(couplings: Tensor, fields: Tensor, spins: Tensor, *, threshold: Tensor, max_flips: int) -> int:
    """The same flips on any device, one per column and pass."""
    flips = torch.zeros((), dtype=torch.int64, device=spins.device)
    columns = torch.arange(spins.shape[1], device=spins.device)
    for count in range(max_flips):
        gains, best = (spins * fields).max(0)
        active = gains > threshold
        # Asking the device whether to go on costs more than a pass, so ask seldom.
        if count % 16 == 0 and not active.any():
            break
        old = spins[best, columns]
        change = torch.where(active, -2 * old, 0)
        spins[best, columns] = old + change
        fields += couplings[:, best] * change
        flips += active.sum()
    return int(flips)
