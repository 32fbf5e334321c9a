"""Simulated quantum annealing: path-integral Monte Carlo of a transverse-field Ising model, all columns at once."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import aligned, kernels, thread_count
from qpsbgd_qubo.options import AT_LEAST_ONE, POSITIVE, SEED, Number, check_options
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.search.landscape import Landscape, better_of, random_spins


@dataclass(frozen=True)
class QuantumAnnealing(Solver):
    """A simulation of what an annealer does: Trotter slices of every column under a falling transverse field.

        E = (1/P) Σ_k E(s^k) − J Σ_k Σ_i s_i^k s_i^(k+1),   J = −(T/2) ln tanh(Γ/(P T))

    Γ falls linearly from `field` to nearly zero at a fixed temperature T, both in units of the field that a spin feels
    when the others are random. The answer is the lowest slice of all reads, without repair: with few sweeps it has
    errors like a chip's.

    Args:
        sweeps: Passes over all spins of all slices per read.
        slices: P, the Trotter number.
        reads: Independent runs per column; the best slice is kept.
        field: The transverse field at the start.
        temperature: T.
        seed: Seed of the starts and the accepted moves.
    """

    sweeps: int = 32
    slices: int = 8
    reads: int = 1
    field: float = 3.0
    temperature: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, sweeps=AT_LEAST_ONE, slices=Number(whole=True, least=2), reads=AT_LEAST_ONE)
        check_options(self, field=POSITIVE, temperature=POSITIVE, seed=SEED)

    def _solve(self, family: QuboFamily) -> Solution:
        """The lowest slice of every column."""
        offset, family = family.offset, family.without_offset()
        solution = functools.reduce(better_of, self._slices(family))
        stats = {"solver": "quantum-annealing", "reads": self.reads, "sweeps": self.sweeps, "slices": self.slices}
        return replace(solution, stats=stats).with_offset(offset)

    def _slices(self, family: QuboFamily) -> Iterator[Solution]:
        landscape, slices = Landscape.of(family), self.slices
        generator = np.random.default_rng(self.seed)
        couplings, linear = landscape.couplings, family.linear.astype(np.float64)
        # Per column, because a column's gradient may be far larger or smaller than the couplings.
        typical = np.sqrt((couplings.astype(np.float64) ** 2).sum(1).mean() + (linear**2).mean(0))
        typical[typical == 0] = 1.0
        transverse = self.field * np.linspace(1, 0, self.sweeps, endpoint=False)
        ties = -0.5 * self.temperature * np.log(np.tanh(transverse / (slices * self.temperature)))
        for _ in range(self.reads):
            spins = [random_spins(family, generator) for _ in range(slices)]
            by_column = aligned(np.stack([each.T for each in spins], 1))  # (m, P, n)
            by_slice = aligned(np.stack([landscape.fields(each).T for each in spins], 1))
            states = generator.integers(1, 2**63, size=by_column.shape[0], dtype=np.uint64)
            shaped = (ties.astype(couplings.dtype), (typical * slices).astype(couplings.dtype))
            kernels.anneal_slices(couplings, by_slice, by_column, *shaped, self.temperature, states, thread_count())
            for k in range(slices):
                yield Solution.of(family, by_column[:, k].T.copy())
