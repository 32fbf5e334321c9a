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

# There is no NaN here, so comparisons may be reordered, which lets the loops over spins use vector instructions.
_fast = compiled(fastmath=True, error_model="numpy")

LOG_UNIFORM = np.log(np.random.default_rng(0).permutation((np.arange(4096) + 0.5) / 4096)).astype(np.float32)
"""log u for evenly spaced u ∈ (0, 1), in random order: cheaper to look up than to compute."""


# Inlined before it is optimised: as a call it would slow quantum annealing down by a sixth.
@compiled(fastmath=True, error_model="numpy", inline="always")
def _flip(couplings: Array, fields: Array, spins: Array, i: int) -> None:
    """Flip spin i and bring the fields up to date."""
    change, row = -2 * spins[i], couplings[i]
    spins[i] = -spins[i]
    for k in range(fields.shape[0]):
        fields[k] += change * row[k]


@_fast
def accepts(gain: float, temperature: float, log_uniform: Array, state: np.uint64) -> tuple[bool, np.uint64]:
    """Whether Metropolis makes a move that lowers the energy by `gain`, and the next state of xorshift64*."""
    if gain <= -10 * temperature:
        return False, state
    if gain > 0:
        return True, state
    state ^= state >> np.uint64(12)
    state ^= state << np.uint64(25)
    state ^= state >> np.uint64(27)
    draw = (state * np.uint64(2685821657736338717)) >> np.uint64(52)
    return gain > temperature * log_uniform[draw], state


@compiled()
def _tenure(move: int, column: int, seed: int, tenure: int) -> int:
    """`reference.tenure_of`."""
    mixed = (move * 2654435761 + column * 2246822519 + seed * 3266489917) & 0xFFFFFFFF
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
    stop: Array,
) -> int:
    n = spins.shape[0]
    flips = 0
    while flips < max_flips and not stop[0]:
        best, gain = -1, threshold
        for k in range(n):
            candidate = spins[k] * fields[k]
            if candidate > gain:
                best, gain = k, candidate
        if best < 0:
            break
        flips += 1
        _flip(couplings, fields, spins, best)
    if patience == 0:
        return flips

    # Tabu: the best flip that was not made recently, even uphill. Where a new low ends, its spins are kept.
    lowest = spins.copy()
    free_from = np.zeros(n, np.int64)
    energy, lowest_energy = 0.0, 0.0
    descending = False
    move, last = 0, patience
    while move < last and flips < max_flips and not stop[0]:
        move += 1
        best, gain = -1, -np.inf
        for k in range(n):
            candidate = spins[k] * fields[k]
            if candidate > gain and free_from[k] <= move:
                best, gain = k, candidate
        if best < 0:
            continue
        if descending and gain <= 0:
            lowest[:] = spins
            descending = False
        _flip(couplings, fields, spins, best)
        flips += 1
        free_from[best] = move + 1 + _tenure(move, column, seed, tenure)
        energy -= gain
        if energy < lowest_energy - threshold:
            lowest_energy, descending = energy, True
            last = move + patience
    if not descending:
        spins[:] = lowest
    return flips


@compiled(parallel=True, nogil=True)
def search(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: Array,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
    stop: Array,
) -> Array:
    """Lower every column in place with the moves of `reference.search`, until `stop` is set; flips per column."""
    flips = np.zeros(spins.shape[0], np.int64)
    for j in prange(spins.shape[0]):
        flips[j] = _search_column(
            couplings, fields[j], spins[j], threshold[j], max_flips, patience, tenure, j, seed, stop
        )
    return flips


@_fast
def _anneal_column(
    couplings: Array, fields: Array, spins: Array, temperatures: Array, log_uniform: Array, state: np.uint64
) -> int:
    n = spins.shape[0]
    flips = 0
    for temperature in temperatures:
        for i in range(n):
            accepted, state = accepts(2 * spins[i] * fields[i], temperature, log_uniform, state)
            if not accepted:
                continue
            flips += 1
            _flip(couplings, fields, spins, i)
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
    never = np.zeros(1, np.uint8)
    for j in prange(spins.shape[0]):
        flips[j] = _anneal_column(couplings, fields[j], spins[j], temperatures, log_uniform, states[j])
        flips[j] += _search_column(
            couplings, fields[j], spins[j], threshold[j], 100 * spins.shape[1] + 1000, 0, 2, j, 0, never
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
                accepted, state = accepts(gain, temperature, log_uniform, state)
                if not accepted:
                    continue
                _flip(couplings, fields[k], spins[k], i)


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

    Energies of column j are in units of scale[j], which includes the number of slices.
    """
    for j in prange(spins.shape[0]):
        _anneal_slices_of_column(couplings, fields[j], spins[j], ties, scale[j], temperature, log_uniform, states[j])


@compiled(fastmath=True, error_model="numpy", nogil=True)
def anneal_sites(
    couplings: Array,
    fields: Array,
    spins: Array,
    sites: Array,
    temperatures: Array,
    log_uniform: Array,
    state: np.uint64,
    stop: Array,
) -> int:
    """Metropolis sweeps of one column over `sites`, one per temperature, until `stop` is set; the sweeps begun."""
    sweeps = 0
    for temperature in temperatures:
        for i in sites:
            accepted, state = accepts(2 * spins[i] * fields[i], temperature, log_uniform, state)
            if accepted:
                if stop[0]:
                    return sweeps
                _flip(couplings, fields, spins, i)
        sweeps += 1
    return sweeps


@compiled(nogil=True)
def search_column(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: float,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
    stop: Array,
) -> int:
    """`search` of one column on the calling thread."""
    flips: int = _search_column(couplings, fields, spins, threshold, max_flips, patience, tenure, 0, seed, stop)
    return flips
