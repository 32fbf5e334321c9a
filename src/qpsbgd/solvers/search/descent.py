"""Best-improvement descent: flip the spin that lowers the energy most, until none does; tabu moves go on from there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import ModuleType

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
        tenure: Moves for which a flip is tabu, and up to half as many more, at least 5. Short ones are best for the
            correlated inputs of layers; large sparse problems want 10 to 30.
        kicks: This often, flip a tenth of the spins and search again, in the columns that are hard: those whose best
            spins so far differ from sign(−s) in more than an eighth.
        restarts: Also search from this many random starts and keep the best.
        time_limit: Go on for this many seconds from the best spins with a tenth of them flipped, in single precision.
            What is found then depends on the machine's speed.
        seed: Of the random starts and of how long a flip is tabu.
    """

    max_flips: float | None = None
    tabu: int = 0
    tenure: int = 2
    kicks: int = 0
    restarts: int = 0
    time_limit: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_flips", "tabu", "tenure", "kicks", "restarts", "time_limit"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")

    def solve(self, family: QuboFamily) -> Solution:
        """A local minimum per column, or the spins reached when the flips are used up.

        `stats["path"]` says what did it: "compiled" on the CPU, "triton" or "torch" on a GPU. All make the same moves.
        """
        offset, family = family.offset, family.without_offset()
        end = None if self.time_limit is None else time.monotonic() + self.time_limit
        generator = np.random.default_rng(self.seed)
        solution = self.improved(family, sign_start(family))
        for count in range(self.kicks):
            solution = self._kicked(family, solution, generator, seed=self.seed + count)
        for _ in range(self.restarts):
            solution = better_of(solution, self.improved(family, random_spins(family, generator)))
        if end is not None:
            solution = self._go_on(family, solution, generator, end=end)
        return solution.with_offset(offset)

    def improved(self, family: QuboFamily, start: Tensor, *, seed: int | None = None) -> Solution:
        """Where one search leads from `start` (n, m), which may be overwritten."""
        seed = self.seed if seed is None else seed
        limit = self.limit(family.num_spins)
        return improved(family, start, max_flips=limit, patience=self.tabu, tenure=self.tenure, seed=seed)

    def _kicked(self, family: QuboFamily, solution: Solution, generator: np.random.Generator, *, seed: int) -> Solution:
        distance = (solution.spins != sign_start(family)).sum(0)
        hard = (distance > family.num_spins / 8).nonzero()[:, 0]
        if not len(hard):
            return solution
        part = QuboFamily.trusted(family.quadratic, family.linear[:, hard], family.offset[hard])
        start = kick(solution.spins[:, hard], generator)
        found = self.improved(part, start, seed=seed)
        spins = solution.spins.clone()
        spins[:, hard] = found.spins
        energies = solution.energies.clone()
        energies[hard] = found.energies
        return better_of(solution, Solution(spins, energies, solution.proven_optimal, found.stats))

    def _go_on(self, family: QuboFamily, solution: Solution, generator: np.random.Generator, *, end: float) -> Solution:
        # Where there are fewer columns than threads, each thread searches for itself.
        m, copies = family.num_columns, max(1, torch.get_num_threads() // family.num_columns)
        single = family.to(torch.float32)
        wide = QuboFamily.trusted(single.quadratic, single.linear.repeat(1, copies), single.offset.repeat(copies))
        rounds = 0
        while time.monotonic() < end:
            rounds += 1
            start = kick(solution.spins.repeat(1, copies).to(torch.float32), generator)
            found = self.improved(wide, start, seed=self.seed + rounds)
            for part in range(copies):
                spins = found.spins[:, part * m : (part + 1) * m]
                solution = better_of(solution, Solution.of(family, spins))
        solution.stats["rounds"] = rounds
        return solution

    def limit(self, num_spins: int) -> int | None:
        """`max_flips` as a number of flips."""
        if self.max_flips is None:
            return None
        return round(self.max_flips * num_spins) if 0 < self.max_flips < 1 else round(self.max_flips)


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


def improved(
    family: QuboFamily,
    spins: Tensor,
    *,
    max_flips: int | None = None,
    patience: int = 0,
    tenure: int = 2,
    seed: int = 0,
) -> Solution:
    """Where descent and then tabu moves lead from `spins` (n, m), which may be overwritten.

    Args:
        family: What to lower.
        spins: The start.
        max_flips: Of every column, None for as many as it takes.
        patience: Tabu moves without gain after which a column ends, 0 for descent alone.
        tenure: Moves for which a flip is tabu at least.
        seed: Of how long a flip is tabu.
    """
    if max_flips is None:
        # Out of reach in exact arithmetic on sensible data; it ends an exchange of roundings.
        max_flips = 100 * len(spins) + 1000
    limits = {"max_flips": max_flips, "patience": patience, "tenure": tenure, "seed": seed}
    if spins.device.type == "cpu":
        flips = _search_compiled(Landscape.of(family), spins, **limits)
        return Solution.of(family, spins, solver="descent", path="compiled", flips=int(flips.sum()))
    if kernels_triton := _kernels_triton(family):
        spins, energies, _ = kernels_triton.search(family, spins, **limits)
        unproven = torch.zeros(family.num_columns, dtype=torch.bool, device=spins.device)
        return Solution(spins, energies, unproven, {"solver": "descent", "path": "triton"})
    flips = search_torch(Landscape.of(family), spins, **limits)
    return Solution.of(family, spins, solver="descent", path="torch", flips=int(flips.sum()))


def _search_compiled(
    landscape: Landscape, spins: Tensor, *, max_flips: int, patience: int, tenure: int, seed: int
) -> Tensor:
    """Lower `spins` in place with the compiled kernel; returns the flips of every column."""
    from qpsbgd.solvers.compilation import threads
    from qpsbgd.solvers.search import kernels

    # The kernels want one column's spins side by side in memory.
    by_column = spins.T.contiguous().numpy()
    fields = landscape.fields(spins).T.contiguous().numpy()
    couplings, threshold = landscape.couplings.numpy(), landscape.threshold.numpy()
    with threads():
        flips = kernels.search(couplings, fields, by_column, threshold, max_flips, patience, tenure, seed)
    spins.copy_(torch.from_numpy(by_column).T)
    return torch.from_numpy(flips)


def _kernels_triton(family: QuboFamily) -> ModuleType | None:
    """The GPU kernels, where they can be had and can take the family; else plain torch makes the same moves."""
    try:
        from qpsbgd.solvers.search import kernels_triton
    except ImportError:
        return None
    return kernels_triton if kernels_triton.fits(family) else None


def sign_start(family: QuboFamily) -> Tensor:
    """sign(−s), the optimum when the gradient is large; shape (n, m)."""
    if family.linear.is_cuda and (kernels_triton := _kernels_triton(family)):
        start: Tensor = kernels_triton.sign_start(family)
        return start
    return torch.where(family.linear <= 0, 1.0, -1.0).to(family.linear)


def random_spins(family: QuboFamily, generator: np.random.Generator) -> Tensor:
    """Independent fair spins, shape (n, m); drawn on the CPU, so equal on every device."""
    bits = generator.integers(0, 2, size=tuple(family.linear.shape), dtype=np.int8)
    return torch.from_numpy(2 * bits - 1).to(family.linear)


def kick(spins: Tensor, generator: np.random.Generator) -> Tensor:
    """`spins` with a random tenth of them flipped."""
    flipped = torch.from_numpy(generator.random(tuple(spins.shape), dtype=np.float32) < 0.1).to(spins.device)
    return torch.where(flipped, -spins, spins)


def better_of(solution: Solution, other: Solution) -> Solution:
    """Column by column the one with less energy, `solution` where they are equal."""
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


def search_torch(
    landscape: Landscape, spins: Tensor, *, max_flips: int, patience: int, tenure: int = 2, seed: int = 0
) -> Tensor:
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
        free_until = iteration + 1 + _tenures(iteration, columns, seed, tenure)
        free_from[best, columns] = torch.where(moving, free_until, free_from[best, columns])
        energy = torch.where(moving, energy - gains.double(), energy)
        lower = moving & (energy < lowest_energy - landscape.threshold)
        lowest_energy = torch.where(lower, energy, lowest_energy)
        descending |= lower
        deadline = torch.where(lower, iteration + patience, deadline)
        searching &= iteration < deadline
    spins.copy_(torch.where(descending, spins, lowest))
    return flips


def _flip(landscape: Landscape, fields: Tensor, spins: Tensor, which: Tensor, active: Tensor) -> None:
    columns = torch.arange(spins.shape[1], device=spins.device)
    old = spins[which, columns]
    change = torch.where(active, -2 * old, 0)
    spins[which, columns] = old + change
    fields += landscape.couplings[:, which] * change


def _tenures(iteration: int, columns: Tensor, seed: int, tenure: int) -> Tensor:
    """One per column, as `kernels._tenure` computes it."""
    mixed = (iteration * 2654435761 + columns * 2246822519 + seed * 3266489917) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
    return tenure + (mixed >> 13) % max(6, tenure // 2)
