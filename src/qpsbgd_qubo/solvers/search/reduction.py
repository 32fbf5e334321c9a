"""A sparse problem without the spins whose best value follows from others: an equivalent smaller one, and the way back.

A spin with field h and couplings w to spins x has the best value −sign(h + wᵀx), at the energy −|h + wᵀx|. As a
function of x that is again an Ising energy if there are at most two neighbours, or three and no field; then the spin is
eliminated. A spin whose field outweighs its couplings has one best value whatever the others are. Both repeat until
nothing is left to do: trees and chains of such spins vanish, and sparse random graphs shrink to a core.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpsbgd_qubo.kernels import Array, kernels
from qpsbgd_qubo.solvers.search.chains import SparseModel


@dataclass(frozen=True, eq=False)
class Reduction:
    """What is left of a problem, and how the spins that are gone follow."""

    core: SparseModel | None  # the problem that is left; None if nothing is
    kept: Array  # where its spins stand in the whole problem
    gone: Array  # the eliminated spins in their order
    neighbours: Array  # the spins that each of them depends on, (…, 3), −1 where there are fewer
    weights: Array  # their couplings, (…, 3)
    fields: Array  # the field on each

    @classmethod
    def of(cls, model: SparseModel, stop: Array) -> Reduction:
        """`model` reduced as far as the rules go; as it is if `stop` is set before that."""
        *core, kept, gone, neighbours, weights, fields = kernels.reduce(model.rows, model.linear, stop)
        left = model if not len(gone) else SparseModel.of(*core) if len(kept) else None
        return cls(left, kept, gone, neighbours, weights, fields)

    def completed(self, core_spins: Array) -> Array:
        """Spins of the whole problem, int8, with the best values of all that were eliminated."""
        spins = np.zeros(len(self.kept) + len(self.gone), np.int8)
        spins[self.kept] = core_spins
        kernels.complete_reduced(spins, self.gone, self.neighbours, self.weights, self.fields)
        return spins
