"""Groups of spins of which one is to be +1, as QUBOs with constraints have them, and annealing that keeps to them.

P (1 − Σx)² over bits is a clique of couplings 2P. Moves shift the +1 within a group, or swap two groups' places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd.native import NEVER, Array, kernels

COLD = 0.02
"""The last temperature, in units of what a move changes the energy by."""
DENSE_UP_TO = 2048
"""Spins of a problem with a full matrix up to which groups are looked for: what takes about a millisecond per 100."""


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of one problem.

    Attributes:
        kernel: The problem and its groups, checked and copied for the kernels.
        fixed: Whether a spin is in one of the groups that have no spin in common, (n,).
    """

    kernel: Any
    fixed: Array

    @classmethod
    def of(cls, rows: Any, linear: Array) -> Groups | None:
        """The groups of a problem in compressed rows; None if there are none."""
        begins, members, bases = kernels.find_groups(rows, linear, NEVER)
        if not bases:
            return None
        fixed = np.zeros(len(linear), bool)
        fixed[members[: begins[bases]]] = True
        return cls(kernels.Groups(rows, linear, begins, members, bases), fixed)

    @classmethod
    def of_dense(cls, couplings: Array, linear: Array) -> Groups | None:
        """The groups of a problem with a matrix of couplings (n, n), zero on the diagonal."""
        n = len(linear)
        if n > DENSE_UP_TO or not linear.any():
            return None
        where = couplings != 0
        indptr = np.concatenate([[0], where.sum(1).cumsum()])
        indices = np.nonzero(where)[1].astype(np.int32)
        return cls.of(kernels.Rows(indptr, indices, couplings[where].astype(np.float64)), linear)

    def annealed(self, spins: Array | None, *, hot: float, sweeps: int, seed: int, stop: Array) -> Array:
        """Spins (n,) int8 with one +1 in every group, annealed from `spins` or, if None, from random ones."""
        generator = np.random.default_rng(seed)
        if spins is None:
            drawn = 2 * generator.integers(0, 2, len(self.fixed), dtype=np.int8) - 1
            spins = np.where(self.fixed, np.int8(-1), drawn)
        found = spins.copy()
        temperatures = self.kernel.scale * np.concatenate([np.geomspace(hot, COLD, sweeps), np.zeros(3)])
        state = int(generator.integers(1, 2**63, dtype=np.uint64))
        kernels.anneal_groups(self.kernel, found, temperatures, state, stop)
        return found
