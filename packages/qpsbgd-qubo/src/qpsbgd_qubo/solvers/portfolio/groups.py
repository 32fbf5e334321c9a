"""Groups of spins of which one is to be +1, as QUBOs with constraints have them, and annealing that keeps to them.

P (1 − Σx)² over bits is a clique of couplings 2P. Moves shift the +1 within a group, or swap two groups' places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_qubo.kernels import NEVER, Array, kernels

COLD = 0.1  # the last temperature, in units of what a move changes the energy by
SWEEPS = 200
"""Sweeps of a chain: many short chains find the optimum of assignments and tours more often than a long one."""
TENURES = (5, 10, 20, 40, 80)
"""Moves for which a tabu search leaves a spin down, one drawn per search: the best differs between problems."""
MOVES_PER_SWEEP = 25  # tabu moves that take about as long as a sweep
DENSE_UP_TO, SAMPLE, TRIED = 2048, 16, 4
"""Spins of a problem with a full matrix up to which groups are looked for; rows, and values of each, tried first."""


@dataclass(frozen=True, eq=False)
class OneHot:
    """The groups of one problem."""

    kernel: Any  # the problem and its groups, checked and copied for the kernels
    bases: Array  # the group of every spin, of those that have no spin in common; −1 if it is in none, (n,)

    @classmethod
    def of(cls, rows: Any, linear: Array, stop: Array = NEVER) -> OneHot | None:
        """The groups of a problem in compressed rows; None if none are found until `stop` is set."""
        begins, members, bases = kernels.find_groups(rows, linear, stop)
        if not bases:
            return None
        of = np.full(len(linear), -1)
        of[members[: begins[bases]]] = np.repeat(np.arange(bases), np.diff(begins[: bases + 1]))
        return cls(kernels.Groups(rows, linear, begins, members, bases), of)

    @classmethod
    def of_dense(cls, couplings: Array, linear: Array) -> OneHot | None:
        """The groups of a problem with a matrix of couplings (n, n), zero on the diagonal."""
        if len(linear) > DENSE_UP_TO or not linear.any() or not _may_have_groups(couplings):
            return None
        where = couplings != 0
        indptr = np.concatenate([[0], where.sum(1).cumsum()])
        indices = np.nonzero(where)[1].astype(np.int32)
        return cls.of(kernels.Rows(indptr, indices, couplings[where].astype(np.float64)), linear)

    def differences(self, spins: Array, other: Array) -> Array:
        """The spins of all groups in which two answers differ, and single spins in which they do, int32."""
        differs = spins != other
        groups = np.unique(self.bases[differs])
        return np.flatnonzero(np.where(self.bases < 0, differs, np.isin(self.bases, groups))).astype(np.int32)

    def satisfied_by(self, spins: Array) -> bool:
        """Whether every group has exactly one spin that is up."""
        up = np.bincount(self.bases[(self.bases >= 0) & (spins > 0)], minlength=self.bases.max() + 1)
        return bool((up == 1).all())

    def anneal(
        self, spins: Array | None, *, hot: float, sweeps: int, seed: int, stop: Array, sites: Array | None = None
    ) -> Array:
        """Spins (n,) int8 with one +1 in every group: the lowest of chains from `spins` on, or from random ones."""
        generator, n = np.random.default_rng(seed), len(self.bases)
        fresh = spins is None
        if spins is None:
            drawn = 2 * generator.integers(0, 2, n, dtype=np.int8) - 1
            spins = np.where(self.bases >= 0, np.int8(-1), drawn)
        annealed = spins.copy()
        chains = max(1, round(sweeps / SWEEPS))
        length = max(1, sweeps // chains)
        temperatures = self.kernel.scale * np.concatenate([np.geomspace(max(hot, COLD), COLD, length), np.zeros(3)])
        state = int(generator.integers(1, 2**63, dtype=np.uint64))
        sites = np.arange(n, dtype=np.int32) if sites is None else sites
        kernels.anneal_groups(self.kernel, annealed, sites, temperatures, chains, fresh, state, stop)
        return annealed

    def tabu_search(self, spins: Array, *, sweeps: int, seed: int, stop: Array) -> Array:
        """The lowest spins met by tabu moves within groups from `spins`, for as long as this many sweeps take."""
        generator, lowest = np.random.default_rng(seed), spins.copy()
        state, tenure = int(generator.integers(1, 2**63, dtype=np.uint64)), int(generator.choice(TENURES))
        kernels.tabu_groups(self.kernel, lowest, MOVES_PER_SWEEP * sweeps, tenure, state, stop)
        return lowest


@np.errstate(over="ignore")  # a row without positive couplings, and negative ones far beyond them
def _may_have_groups(couplings: Array) -> bool:
    """Whether most of some rows have equal couplings to spins that are so coupled, too: cheaper than looking at all."""
    rows = np.linspace(0, len(couplings) - 1, min(len(couplings), SAMPLE)).astype(int)

    def grouped(row: Array) -> bool:
        unit = max(float(row.max()), np.finfo(float).tiny)
        scaled = np.round(row / unit, 9)  # equal up to rounding
        values, counts = np.unique(scaled[scaled > 0], return_counts=True)
        for value in values[counts > 1][: -TRIED - 1 : -1]:
            near = np.flatnonzero(scaled == value)
            if (np.round(couplings[np.ix_(near, near)] / unit, 9) == value).any():
                return True
        return False

    return 2 * sum(grouped(couplings[i]) for i in rows) >= len(rows)
