"""Compiled loops of the CPU solvers, parallel over columns; compiled on first use and cached on disk.

Arrays hold one column of a family per row: `spins` and `fields` have shape (m, n). `couplings` is 2 Q with a zero
diagonal, `fields` = s + couplings · spins; a flip of spin i changes the energy by −2 · spins[i] · fields[i].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.compilation import compiled

Array = np.ndarray[Any, Any]

# NaN never gets here, so comparisons may be reordered; that lets the loops over spins use vector instructions.
_fast = compiled(fastmath=True, error_model="numpy")

LOG_UNIFORM = np.log(np.random.default_rng(0).permutation((np.arange(4096) + 0.5) / 4096)).astype(np.float32)
"""log u for evenly spread u ∈ (0, 1), in random order: cheaper to look up than to compute."""


@compiled()
def _tenure(iteration: int, column: int, seed: int, tenure: int) -> int:
    """`tenure` moves and up to half as many more (at least 5), by a hash of the rest, as in `descent._tenures`."""
    mixed = (iteration * 2654435761 + column * 2246822519 + seed * 3266489917) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
    return tenure + (mixed >> 13) % max(6, tenure // 2)


@_fast
def _search_column(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: float,
    max_flips: int,
    patience: int,
    tenure: int,
    column: int,
    seed: int,
) -> int:
    n = spins.shape[0]
    flips = 0
    while flips < max_flips:
        best, gain = -1, threshold
        for k in range(n):
            candidate = spins[k] * fields[k]
            if candidate > gain:
                best, gain = k, candidate
        if best < 0:
            break
        flips += 1
        change, row = -2 * spins[best], couplings[best]
        spins[best] = -spins[best]
        for k in range(n):
            fields[k] += change * row[k]
    if patience == 0 or flips >= max_flips:
        return flips

    # Tabu: the best flip that was not made lately, even if it costs. Where a new low ends, its spins are kept.
    lowest = spins.copy()
    free_from = np.zeros(n, np.int64)
    energy, lowest_energy = 0.0, 0.0
    descending = False
    iteration, deadline = 0, patience
    while iteration < deadline:
        iteration += 1
        best, gain = -1, -np.inf
        for k in range(n):
            candidate = spins[k] * fields[k]
            if candidate > gain and free_from[k] <= iteration:
                best, gain = k, candidate
        if best < 0:
            continue
        if descending and gain <= 0:
            lowest[:] = spins
            descending = False
        change, row = -2 * spins[best], couplings[best]
        spins[best] = -spins[best]
        for k in range(n):
            fields[k] += change * row[k]
        flips += 1
        free_from[best] = iteration + 1 + _tenure(iteration, column, seed, tenure)
        energy -= gain
        if energy < lowest_energy - threshold:
            lowest_energy, descending = energy, True
            deadline = iteration + patience
    if not descending:
        spins[:] = lowest
    return flips


@compiled(parallel=True)
def search(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: Array,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
) -> Array:
    """Descent of every column in place, then tabu moves until `patience` of them bring nothing; flips per column."""
    flips = np.zeros(spins.shape[0], np.int64)
    for j in prange(spins.shape[0]):
        flips[j] = _search_column(couplings, fields[j], spins[j], threshold[j], max_flips, patience, tenure, j, seed)
    return flips


@_fast
def _anneal_column(
    couplings: Array, fields: Array, spins: Array, temperatures: Array, log_uniform: Array, state: np.uint64
) -> int:
    n = spins.shape[0]
    flips = 0
    for temperature in temperatures:
        for i in range(n):
            gain = 2 * spins[i] * fields[i]
            if gain <= -10 * temperature:
                continue
            if gain <= 0:
                # xorshift64*
                state ^= state >> np.uint64(12)
                state ^= state << np.uint64(25)
                state ^= state >> np.uint64(27)
                draw = (state * np.uint64(2685821657736338717)) >> np.uint64(52)
                if gain <= temperature * log_uniform[draw]:
                    continue
            flips += 1
            change, row = -2 * spins[i], couplings[i]
            spins[i] = -spins[i]
            for k in range(n):
                fields[k] += change * row[k]
    return flips


@compiled(parallel=True)
def anneal(
    couplings: Array,
    fields: Array,
    spins: Array,
    temperatures: Array,
    threshold: Array,
    log_uniform: Array,
    states: Array,
) -> Array:
    """Metropolis sweeps of every column in place, one per temperature, then descent; flips per column."""
    flips = np.zeros(spins.shape[0], np.int64)
    for j in prange(spins.shape[0]):
        flips[j] = _anneal_column(couplings, fields[j], spins[j], temperatures, log_uniform, states[j])
        flips[j] += _search_column(
            couplings, fields[j], spins[j], threshold[j], 100 * spins.shape[1] + 1000, 0, 2, j, 0
        )
    return flips


@_fast
def _anneal_slices_of_column(
    couplings: Array,
    fields: Array,
    spins: Array,
    ties: Array,
    scale: float,
    temperature: float,
    log_uniform: Array,
    state: np.uint64,
) -> None:
    slices, n = spins.shape
    for tie in ties:
        for k in range(slices):
            before, after = spins[(k - 1) % slices], spins[(k + 1) % slices]
            for i in range(n):
                gain = 2 * spins[k, i] * (fields[k, i] / scale - tie * (before[i] + after[i]))
                if gain <= -10 * temperature:
                    continue
                if gain <= 0:
                    state ^= state >> np.uint64(12)
                    state ^= state << np.uint64(25)
                    state ^= state >> np.uint64(27)
                    draw = (state * np.uint64(2685821657736338717)) >> np.uint64(52)
                    if gain <= temperature * log_uniform[draw]:
                        continue
                change, row = -2 * spins[k, i], couplings[i]
                spins[k, i] = -spins[k, i]
                for other in range(n):
                    fields[k, other] += change * row[other]


@compiled(parallel=True)
def anneal_slices(
    couplings: Array,
    fields: Array,
    spins: Array,
    ties: Array,
    scale: Array,
    temperature: float,
    log_uniform: Array,
    states: Array,
) -> None:
    """Path-integral sweeps of every column in place, one per tie between slices; `spins` and `fields` are (m, P, n).

    Energies of column j are in units of scale[j], which holds the number of slices too.
    """
    for j in prange(spins.shape[0]):
        _anneal_slices_of_column(couplings, fields[j], spins[j], ties, scale[j], temperature, log_uniform, states[j])
