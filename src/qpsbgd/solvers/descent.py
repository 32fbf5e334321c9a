"""Best-improvement descent: flip the spin that lowers the energy most, until none does; tabu moves go on from there."""

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
        tabu: From the local minimum go on with the best flip that was not made lately, also uphill, until this many
            moves have brought nothing better; 0 for none.
        restarts: Also search from this many random starts and keep the best.
        seed: Of the random starts and of how long a flip is tabu.
    """

    max_flips: float | None = None
    tabu: int = 0
    restarts: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_flips", "tabu", "restarts"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")

    def solve(self, family: QuboFamily) -> Solution:
        """A local minimum per column, or the spins reached when the flips are used up."""
        landscape = Landscape.of(family)
        generator = np.random.default_rng(self.seed)
        spins = sign_start(family)
        flips = self._search(landscape, spins)
        solution = Solution.of(family, spins)
        for _ in range(self.restarts):
            spins = random_spins(family, generator)
            flips += self._search(landscape, spins)
            solution = better_of(family, solution, spins)
        solution.stats.update(solver="descent", flips=flips)
        return solution

    def _search(self, landscape: Landscape, spins: Tensor) -> int:
        if self.max_flips is None:
            return landscape.search(spins, patience=self.tabu, seed=self.seed)
        share = 0 < self.max_flips < 1
        limit = round(self.max_flips * len(spins)) if share else round(self.max_flips)
        return landscape.search(spins, max_flips=limit, patience=self.tabu, seed=self.seed)


@dataclass(frozen=True, eq=False)
class Landscape:
    """A family prepared for single flips: a flip of spin i changes the energy by −2 gᵢ fᵢ, f = s + couplings · g.

    Attributes:
        couplings: 2 Q with a zero diagonal, shape (n, n).
        linear: s, shape (n, m).
        threshold: Least gain of a flip that rounding cannot feign, shape (m,).
    """

    couplings: Tensor
    linear: Tensor
    threshold: Tensor

    @classmethod
    def of(cls, family: QuboFamily) -> Landscape:
        """The landscape of `family`."""
        couplings = 2 * family.quadratic
        couplings.fill_diagonal_(0)
        size = couplings.abs().sum(1).amax() + family.linear.abs().amax(0)
        return cls(couplings, family.linear, 8 * torch.finfo(size.dtype).eps * size)

    def fields(self, spins: Tensor) -> Tensor:
        """The local fields of `spins`, both of shape (n, m)."""
        return self.linear + self.couplings @ spins

    def search(self, spins: Tensor, *, max_flips: int | None = None, patience: int = 0, seed: int = 0) -> int:
        """Lower `spins` (n, m) in place by descent and then tabu moves; returns the flips made in all columns."""
        if max_flips is None:
            # Out of reach in exact arithmetic on sensible data; it ends an exchange of roundings.
            max_flips = 100 * len(spins) + 1000
        if spins.device.type != "cpu":
            return search_torch(self, spins, max_flips=max_flips, patience=patience, seed=seed)
        from qpsbgd.solvers import kernels

        # The kernels want one column's spins side by side in memory.
        by_column = spins.T.contiguous().numpy()
        fields = self.fields(spins).T.contiguous().numpy()
        with kernels.threads():
            flips = kernels.search(
                self.couplings.numpy(), fields, by_column, self.threshold.numpy(), max_flips, patience, seed
            )
        spins.copy_(torch.from_numpy(by_column).T)
        return int(flips.sum())


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


def search_torch(landscape: Landscape, spins: Tensor, *, max_flips: int, patience: int, seed: int) -> int:
    """`kernels.search` in plain torch for any device: the same moves, one per column and pass."""
    columns = torch.arange(spins.shape[1], device=spins.device)
    fields = landscape.fields(spins)
    flips = torch.zeros_like(columns)
    for count in range(max_flips):
        gains, best = (spins * fields).max(0)
        active = gains > landscape.threshold
        # Asking the device whether to go on costs more than a pass, so ask seldom.
        if count % 16 == 0 and not active.any():
            break
        _flip(landscape, fields, spins, best, active)
        flips += active

    searching = flips < max_flips if patience else torch.zeros_like(columns, dtype=torch.bool)
    lowest = spins.clone()
    free_from = torch.zeros_like(spins, dtype=torch.int64)
    energy = torch.zeros_like(landscape.threshold, dtype=torch.float64)
    lowest_energy = energy.clone()
    descending = torch.zeros_like(searching)
    deadline = torch.full_like(columns, patience)
    iteration = 0
    while patience:
        if iteration % 16 == 0 and not searching.any():
            break
        iteration += 1
        gains, best = torch.where(free_from <= iteration, spins * fields, -torch.inf).max(0)
        moving = searching & (gains > -torch.inf)
        settled = moving & descending & (gains <= 0)
        lowest = torch.where(settled, spins, lowest)
        descending &= ~settled
        _flip(landscape, fields, spins, best, moving)
        flips += moving
        free_until = iteration + 1 + _tenures(iteration, columns, seed)
        free_from[best, columns] = torch.where(moving, free_until, free_from[best, columns])
        energy = torch.where(moving, energy - gains.double(), energy)
        lower = moving & (energy < lowest_energy - landscape.threshold)
        lowest_energy = torch.where(lower, energy, lowest_energy)
        descending |= lower
        deadline = torch.where(lower, iteration + patience, deadline)
        searching &= iteration < deadline
    spins.copy_(torch.where(descending, spins, lowest))
    return int(flips.sum())


def _flip(landscape: Landscape, fields: Tensor, spins: Tensor, which: Tensor, active: Tensor) -> None:
    columns = torch.arange(spins.shape[1], device=spins.device)
    old = spins[which, columns]
    change = torch.where(active, -2 * old, 0)
    spins[which, columns] = old + change
    fields += landscape.couplings[:, which] * change


def _tenures(iteration: int, columns: Tensor, seed: int) -> Tensor:
    """2…7 per column, as `kernels._tenure` computes it."""
    mixed = (iteration * 2654435761 + columns * 2246822519 + seed * 3266489917) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
    return 2 + (mixed >> 13) % 6
