"""Searches by single flips, best improvement first, from given spins: descent, then tabu moves; of arrays."""

from typing import Any

import numpy as np

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import NEVER, Array, aligned, kernels, thread_count
from qpsbgd_qubo.solvers.search.landscape import Landscape


def local_search(family: QuboFamily, spins: Array, *, patience: int = 0, **limits: Any) -> Solution:
    """Where descent and then tabu moves lead from `spins` (n, m), within the limits of `lower_columns`."""
    landscape = Landscape.of(family)
    # The kernel wants one column's spins side by side in memory.
    fields, spins = aligned(landscape.fields(spins).T), aligned(spins.T)
    flips = lower_columns(landscape.couplings, fields, spins, landscape.threshold, patience=patience, **limits)
    stats: dict[str, Any] = {"solver": "descent", "flips": int(flips.sum())}
    if patience:
        return Solution.of(family, spins.T, **stats)
    # Few flips leave the fields exact enough: Σ gₖ (sₖ + fₖ) / 2 is the energy without the diagonal of Q.
    energies = 0.5 * (spins * (fields + family.linear.T)).sum(1) + family.quadratic.diagonal().sum() + family.offset
    return Solution(spins.T, energies, np.zeros(family.num_columns, bool), stats)


def lower_columns(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: Array,
    *,
    max_flips: int | None = None,
    patience: int = 0,
    tenure: int = 2,
    seed: int = 0,
    stop: Array = NEVER,
) -> Array:
    """Lower every column of `spins` (m, n) in place: best-improvement descent, then tabu moves; the flips.

    With couplings (n, n), fields s + couplings · spins (m, n), which are kept up to date, and per column the largest
    gain that may be a rounding error. `patience` moves without a new lowest energy end a column; a flipped spin stays
    tabu for `tenure` moves and up to half as many more, at least 5, by the seed.
    """
    flips = np.empty(len(spins), np.int64)
    limits = (most_flips(max_flips, spins.shape[1], patience), patience, tenure, seed)
    kernels.search(couplings, fields, spins, threshold, flips, *limits, stop, thread_count())
    return flips


def most_flips(max_flips: int | None, num_spins: int, patience: int) -> int:
    """By default out of reach in exact arithmetic on sensible data; it ends an endless exchange of rounding errors."""
    return min(2**62, 100 * (num_spins + patience) + 1000) if max_flips is None else max_flips
