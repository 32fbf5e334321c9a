"""One sparse problem made ready for compiled kernels, reduced, and sixteen chains of it annealed at once.

Couplings are annealed in single precision, numbers beyond its range times a power of two; answers are brought to a
local minimum in double precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_qubo.kernels import Array, kernels

LANES = 16  # chains that are annealed at once: a spin's fields fill one line of the cache
COLD = 0.08  # the last temperature of `cooling`, in units of the typical field


@dataclass(frozen=True, eq=False)
class SparseModel:
    """A problem Σ_{i<j} J_ij g_i g_j + Σ h_i g_i in compressed rows, each coupling in both of its rows."""

    rows: Any  # the couplings, checked and copied for the kernels
    linear: Array  # h, (n,)
    num_entries: int  # couplings in all rows
    typical: float  # √(meanᵢ Σⱼ J_ij²), the field of the couplings on a spin among random others
    thresholds: Array  # per spin, the smallest gain that cannot be a rounding error, (n,)

    @classmethod
    def of(cls, indptr: Array, indices: Array, couplings: Array, linear: Array) -> SparseModel:
        """The model of compressed rows: int64, int32, float64 and float64."""
        factor = range_factor(couplings, linear)
        if factor != 1:
            couplings, linear = couplings * factor, linear * factor
        sizes = np.concatenate([[0.0], np.cumsum(np.abs(couplings))])
        thresholds = 1e-12 * (np.abs(linear) + np.diff(sizes[indptr]))
        typical = math.sqrt(float(np.einsum("i,i->", couplings, couplings)) / len(linear))
        return cls(kernels.Rows(indptr, indices, couplings), linear, len(indices), typical, thresholds)

    def anneal(
        self,
        spins: Array | None,
        *,
        temperatures: Array,
        seed: int,
        stop: Array,
        sites: Array | None = None,
        alone: bool = False,
    ) -> tuple[Array, float]:
        """Spins (n,) int8 in a local minimum, never above `spins`, and their energy; a sweep per temperature."""
        generator, n = np.random.default_rng(seed), len(self.linear)
        state = int(generator.integers(1, 2**63, dtype=np.uint64))
        sites = np.arange(n, dtype=np.int32) if sites is None else sites
        if alone:
            chain = 2 * generator.integers(0, 2, n, dtype=np.int8) - 1 if spins is None else spins.copy()
            kernels.anneal_sparse(self.rows, self.linear, chain, sites, temperatures, state, stop)
            chains = chain[None]
        else:
            bits = generator.integers(0, 1 << LANES, n, dtype=np.uint16) if spins is None else bits_of(spins)
            kernels.anneal_lanes(self.rows, self.linear, bits, sites, temperatures, state, stop)
            chains = chains_of(bits)
        return self.merge((chains[0] if spins is None else spins).copy(), chains, stop)

    def energy(self, spins: Array) -> float:
        """The energy of spins (n,) int8, without a constant."""
        none, now = np.empty((0, len(spins)), np.int8), np.ones(1, np.uint8)
        return kernels.harvest(self.rows, self.linear, self.thresholds, none, spins.copy(), now)

    def merge(self, spins: Array, others: Array, stop: Array) -> tuple[Array, float]:
        """`spins`, which are changed, with the better parts of `others` (k, n), in a local minimum; and the energy."""
        return spins, kernels.harvest(self.rows, self.linear, self.thresholds, others, spins, stop)


@dataclass(frozen=True, eq=False)
class Reduction:
    """A problem without the spins whose best value follows from others: a smaller one, and the way back.

    A spin with field h and couplings w to spins x has the best value −sign(h + wᵀx), at the energy −|h + wᵀx|: an Ising
    energy of x if there are at most two neighbours, or three and no field. A spin whose field outweighs its couplings
    has one best value. Both rules repeat: trees and chains vanish, and sparse random graphs shrink to a core.
    """

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

    def complete(self, core_spins: Array) -> Array:
        """Spins of the whole problem, int8, with the best values of all that were eliminated."""
        spins = np.zeros(len(self.kept) + len(self.gone), np.int8)
        spins[self.kept] = core_spins
        kernels.complete_reduced(spins, self.gone, self.neighbours, self.weights, self.fields)
        return spins


def cooling(typical: float, *, hot: float, sweeps: int) -> Array:
    """Temperatures from `hot` to `COLD` times a typical field in equal steps; three sweeps downhill follow."""
    return typical * np.concatenate([np.linspace(hot, COLD, sweeps), np.zeros(3)])


def bits_of(spins: Array) -> Array:
    """Chains that are all the same: chain k is bit k of a spin's number, set for +1."""
    return np.where(spins > 0, np.uint16(0xFFFF), np.uint16(0))


def chains_of(spins: Array) -> Array:
    """The chains as rows of ±1, (16, n), int8."""
    bits = np.unpackbits(spins.view(np.uint8).reshape(-1, LANES // 8), axis=1, bitorder="little")
    return np.ascontiguousarray(bits.T).view(np.int8) * np.int8(2) - np.int8(1)


def range_factor(couplings: Array, linear: Array) -> float:
    """1 for numbers that single precision can hold; otherwise the power of two that makes the largest about 1."""
    largest = max(float(np.abs([part.min(), part.max()]).max()) for part in (couplings, linear) if part.size)
    if largest == 0 or 1e-20 < largest < 1e30:
        return 1.0
    return math.ldexp(1.0, max(-1000, min(1000, -math.frexp(largest)[1])))
