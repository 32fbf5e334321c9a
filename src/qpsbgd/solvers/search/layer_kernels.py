"""Compiled search of all columns of a dense family from several starts, each column on what its presolve leaves open.

Arrays hold one column of a family per row, as in `kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.compilation import compiled
from qpsbgd.solvers.search.kernels import flip, lower

Array = np.ndarray[Any, Any]


@compiled(fastmath=True, error_model="numpy")
def _fix(couplings: Array, fields: Array, pulls: Array, fixed: Array, margin: float) -> int:
    """Fix every spin whose field outweighs its couplings to open spins; how many stay open.

    `fields` are those of the fixed spins, `pulls` the sums of |couplings| to open ones; both are kept up to date.
    """
    n = fields.shape[0]
    left = n
    again = True
    while again:
        again = False
        for i in range(n):
            if fixed[i] == 0 and abs(fields[i]) > pulls[i] + margin:
                value = -1.0 if fields[i] > 0 else 1.0
                fixed[i] = value
                row = couplings[i]
                for k in range(n):
                    fields[k] += value * row[k]
                    pulls[k] -= abs(row[k])
                left -= 1
                again = True
    return int(left)


@compiled(parallel=True, nogil=True)
def search_layer(
    couplings: Array,
    linear: Array,
    pulls: Array,
    starts: Array,
    fields: Array,
    threshold: Array,
    patience: int,
    tenure: int,
    kicks: int,
    seed: int,
) -> Array:
    """The best spins found for every column, (m, n), from several starts.

    Args:
        couplings: 2 Q with a zero diagonal, (n, n).
        linear: s, (m, n).
        pulls: Sums of the rows of |couplings|, (n,).
        starts: Spins to start from, (k, m, n); overwritten.
        fields: Their fields, (k, m, n); overwritten.
        threshold: Smallest gain that cannot be a rounding error, (m,).
        patience: Tabu moves without a new lowest energy after which a search ends.
        tenure: Moves for which a flipped spin stays tabu at least.
        kicks: How often a tenth of the best spins is flipped and the search repeated, where the best spins differ from
            the first start in more than an eighth.
        seed: Of all random choices.
    """
    m, n = linear.shape
    found = np.empty_like(linear)
    never = np.zeros(1, np.uint8)
    most = 100 * (n + patience) + 1000
    for j in prange(m):
        state = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(j + 1) * np.uint64(0xBF58476D1CE4E5B9)
        state |= np.uint64(1)
        fixed = np.zeros_like(linear[j])
        left = _fix(couplings, linear[j].copy(), pulls.copy(), fixed, threshold[j])
        # Copying what is open pays unless it is nearly all.
        whole = left > 0.8 * n
        places = np.arange(n) if whole else np.flatnonzero(fixed == 0)
        k = len(places)
        if whole:
            core = couplings
        else:
            core = np.empty((k, k), couplings.dtype)
            for a in range(k):
                row = couplings[places[a]]
                for b in range(k):
                    core[a, b] = row[places[b]]
        penalties, lowest = np.zeros_like(linear[j, :k]), np.empty_like(linear[j, :k])
        best_spins, best_fields = np.empty_like(lowest), np.empty_like(lowest)
        spins, local = np.empty_like(lowest), np.empty_like(lowest)
        best_energy = np.inf
        first = starts[0, j].copy()
        for start in range(starts.shape[0]):
            row_spins, row_fields = starts[start, j], fields[start, j]
            energy = 0.0
            for i in range(n):
                energy += row_spins[i] * (linear[j, i] + row_fields[i]) / 2
            if not whole:
                for i in range(n):
                    if fixed[i] != 0 and fixed[i] != row_spins[i]:
                        energy -= 2 * row_spins[i] * row_fields[i]
                        flip(couplings, row_fields, row_spins, i)
            for a in range(k):
                spins[a], local[a] = row_spins[places[a]], row_fields[places[a]]
            if k:
                energy += lower(
                    core, local, spins, lowest, penalties, threshold[j], most, patience, tenure, j, seed + start, never
                )[1]
            if energy < best_energy:
                best_energy = energy
                best_spins[:] = spins
                best_fields[:] = local
        distance = 0
        for a in range(k):
            distance += best_spins[a] != first[places[a]]
        if 8 * distance > n:
            for kick in range(kicks):
                spins[:] = best_spins
                local[:] = best_fields
                energy = best_energy
                for _ in range(k // 10 + 1):
                    state ^= state >> np.uint64(12)
                    state ^= state << np.uint64(25)
                    state ^= state >> np.uint64(27)
                    pick = np.int64(((state * np.uint64(2685821657736338717)) >> np.uint64(33)) % np.uint64(k))
                    energy -= 2 * spins[pick] * local[pick]
                    flip(core, local, spins, pick)
                energy += lower(
                    core, local, spins, lowest, penalties, threshold[j], most, patience, tenure, j, seed + kick, never
                )[1]
                if energy < best_energy:
                    best_energy = energy
                    best_spins[:] = spins
                    best_fields[:] = local
        for i in range(n):
            found[j, i] = fixed[i]
        for a in range(k):
            found[j, places[a]] = best_spins[a]
    return found
