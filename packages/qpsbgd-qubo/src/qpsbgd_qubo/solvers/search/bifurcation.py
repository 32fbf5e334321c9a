"""Discrete simulated bifurcation: one matrix product per time step moves all columns at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.options import AT_LEAST_ONE, POSITIVE, SEED, check_options
from qpsbgd_qubo.solvers.search.descent import best_of_reads, improved
from qpsbgd_qubo.solvers.search.landscape import Landscape


@dataclass(frozen=True)
class Bifurcation(Solver):
    """Discrete simulated bifurcation (Goto et al., 2021) followed by descent.

    Positions x ∈ [−1, 1] with momenta y follow the force −(2 Q sign(x) + s) while a pump grows from 0 to 1; a position
    that reaches ±1 stops there. The first read starts near sign(−s), others near random spins.

    Args:
        steps: Time steps per read.
        reads: Independent runs per column; the best is kept.
        time_step: Length of a time step.
        seed: Seed of the starts.
    """

    steps: int = 100
    reads: int = 1
    time_step: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, steps=AT_LEAST_ONE, reads=AT_LEAST_ONE, time_step=POSITIVE, seed=SEED)

    def _solve(self, family: QuboFamily) -> Solution:
        """The best local minimum of all reads and of plain descent for every column."""
        offset, family = family.offset, family.without_offset()
        landscape = Landscape.of(family)

        def evolved(start: Tensor, stop: Array) -> Solution:
            return improved(family, self._evolve(landscape, 0.1 * start, stop))

        solution, made = best_of_reads(family, self.reads, evolved, np.random.default_rng(self.seed))
        solution.stats.update(solver="bifurcation", steps=self.steps, reads=made)
        return solution.with_offset(offset)

    def _evolve(self, landscape: Landscape, position: Tensor, stop: Array) -> Tensor:
        couplings, fields = landscape.couplings, landscape.linear
        # Goto's c₀ = 1/(2 √n σ), σ the spread of the couplings, here of couplings and fields together.
        size = (couplings.square().sum(1).mean() + fields.square().mean(0)).sqrt()
        strength = 0.5 / torch.where(size > 0, size, 1)
        momentum = torch.zeros_like(position)
        for step in range(self.steps):
            if stop[0]:
                break
            pump = (step + 1) / self.steps
            force = -(couplings @ torch.where(position >= 0, 1.0, -1.0).to(position) + fields)
            momentum = momentum + self.time_step * (strength * force - (1 - pump) * position)
            position = position + self.time_step * momentum
            walls = position.abs() >= 1
            position = position.clamp(-1, 1)
            momentum = torch.where(walls, 0, momentum)
        return torch.where(position >= 0, 1.0, -1.0).to(position)
