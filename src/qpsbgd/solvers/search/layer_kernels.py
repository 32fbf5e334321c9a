"""Compiled search of all columns of a dense family from several starts, each column on what its presolve leaves open.

Arrays hold one column of a family per row, as in `kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.compilation import compiled
from qpsbgd.solvers.search.kernels import TABU, copy, flip, lower

Array = np.ndarray[Any, Any]

WON_BACK = 4.0
"""Largest cost of a flip, in units of its diagonal, that others may win back."""


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


@compiled()
def _search_one(
    couplings: Array,
    diagonal: Array,
    linear: Array,
    pulls: Array,
    starts: Array,
    fields: Array,
    threshold: float,
    patience: int,
    tenure: int,
    kicks: int,
    forced: int,
    seed: int,
    column: int,
    found: Array,
) -> None:
    """Write the best spins found for one column, linear (n,), from `starts` (k, n) into `found` (n,)."""
    n = len(linear)
    never, most = np.zeros(1, np.uint8), 100 * (n + patience) + 1000
    fixed = np.zeros_like(linear)
    left = _fix(couplings, linear.copy(), pulls.copy(), fixed, threshold)
    # Copying what is open pays unless it is nearly all.
    if left > 0.8 * n:
        fixed = np.zeros_like(linear)
        places = np.arange(n)
        core = couplings
    else:
        places = np.flatnonzero(fixed == 0)
        core = _part(couplings, places)
    k = len(places)
    penalties, lowest = np.zeros_like(linear[:k]), np.empty_like(linear[:k])
    spins, local = np.empty_like(lowest), np.empty_like(lowest)
    best_spins, best_fields, best_energy = np.empty_like(lowest), np.empty_like(lowest), np.inf
    first, distance = starts[0].copy(), 0
    for trial in range(len(starts) + kicks):
        energy = best_energy
        if trial < len(starts):
            energy = _begun(couplings, linear, starts[trial], fields[trial], fixed)
            for a in range(k):
                spins[a], local[a] = starts[trial, places[a]], fields[trial, places[a]]
        else:
            if trial == len(starts) and 8 * distance <= n:
                break
            copy(best_spins, spins)
            copy(best_fields, local)
            energy += _kick(core, local, spins, np.uint64(seed + 1000003 * column + trial))
        if k:
            energy += lower(
                core, local, spins, lowest, penalties, threshold, most, patience, tenure, column, seed + trial, never
            )[1]
        if energy < best_energy:
            best_energy = energy
            copy(spins, best_spins)
            copy(local, best_fields)
            distance = 0
            for a in range(k):
                distance += spins[a] != first[places[a]]
    tried = np.zeros(k, np.bool_)
    for _ in range(forced):
        site = _worth_forcing(diagonal, places, best_fields, best_spins, tried)
        if site < 0:
            break
        tried[site] = True
        penalties[site] = TABU
        copy(best_spins, spins)
        copy(best_fields, local)
        energy = best_energy - 2.0 * float(spins[site] * local[site])
        flip(core, local, spins, site)
        energy += lower(core, local, spins, lowest, penalties, threshold, most, 0, tenure, column, seed, never)[1]
        penalties[site] = 0
        if energy < best_energy - threshold:
            energy += lower(
                core, local, spins, lowest, penalties, threshold, most, patience, tenure, column, seed, never
            )[1]
            best_energy = energy
            copy(spins, best_spins)
            copy(local, best_fields)
    copy(fixed, found)
    for a in range(k):
        found[places[a]] = best_spins[a]


@compiled()
def _worth_forcing(diagonal: Array, places: Array, fields: Array, spins: Array, tried: Array) -> int:
    """The spin whose flip costs least beside what others may win back, which grows with its diagonal; −1 for none."""
    site, least = -1, 0.0
    for a in range(len(places)):
        worth = -2 * spins[a] * fields[a] - WON_BACK * diagonal[places[a]]
        if not tried[a] and worth < least:
            site, least = a, worth
    return site


@compiled()
def _part(couplings: Array, places: Array) -> Array:
    """The rows and columns at these places."""
    part = np.empty((len(places), len(places)), couplings.dtype)
    for a in range(len(places)):
        row = couplings[places[a]]
        for b in range(len(places)):
            part[a, b] = row[places[b]]
    return part


@compiled()
def _begun(couplings: Array, linear: Array, spins: Array, fields: Array, fixed: Array) -> float:
    """Flip the spins that differ from those that are fixed; the energy then."""
    energy = 0.0
    for i in range(len(spins)):
        energy += spins[i] * (linear[i] + fields[i]) / 2
    for i in range(len(spins)):
        if fixed[i] != 0 and fixed[i] != spins[i]:
            energy -= 2 * spins[i] * fields[i]
            flip(couplings, fields, spins, i)
    return energy


@compiled()
def _kick(couplings: Array, fields: Array, spins: Array, seed: np.uint64) -> float:
    """Flip a random tenth of the spins; the energy gained."""
    state = seed * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
    energy, n = 0.0, np.uint64(len(spins))
    for _ in range(len(spins) // 10 + 1):
        state ^= state >> np.uint64(12)
        state ^= state << np.uint64(25)
        state ^= state >> np.uint64(27)
        i = np.int64(((state * np.uint64(2685821657736338717)) >> np.uint64(33)) % n)
        energy -= 2 * spins[i] * fields[i]
        flip(couplings, fields, spins, i)
    return energy


@compiled(parallel=True, nogil=True)
def search_layer(
    couplings: Array,
    diagonal: Array,
    linear: Array,
    pulls: Array,
    starts: Array,
    fields: Array,
    threshold: Array,
    patience: int,
    tenure: int,
    kicks: int,
    forced: int,
    seed: int,
) -> Array:
    """The best spins found for every column, (m, n), from several starts.

    Args:
        couplings: 2 Q with a zero diagonal, (n, n).
        diagonal: That of Q, (n,).
        linear: s, (m, n).
        pulls: Sums of the rows of |couplings|, (n,).
        starts: Spins to start from, (k, m, n); overwritten.
        fields: Their fields, (k, m, n); overwritten.
        threshold: Smallest gain that cannot be a rounding error, (m,).
        patience: Tabu moves without a new lowest energy after which a search ends.
        tenure: Moves for which a flipped spin stays tabu at least.
        kicks: How often a tenth of the best spins is flipped and the search repeated, where the best spins differ from
            the first start in more than an eighth.
        forced: How often a spin of the best is then flipped and held while the others follow.
        seed: Of all random choices.
    """
    found = np.empty_like(linear)
    for j in prange(len(linear)):
        _search_one(
            couplings,
            diagonal,
            linear[j],
            pulls,
            starts[:, j],
            fields[:, j],
            threshold[j],
            patience,
            tenure,
            kicks,
            forced,
            seed,
            j,
            found[j],
        )
    return found
