"""Compiled loops of the CPU solvers, parallel over columns; compiled on first use and cached on disk.

Arrays hold one column of a family per row: `spins` and `fields` have shape (m, n). `couplings` is 2 Q with a zero
diagonal, `fields` = s + couplings · spins; a flip of spin i changes the energy by −2 · spins[i] · fields[i].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
import torch
from numba import njit, prange

Array = np.ndarray[Any, Any]


@contextmanager
def threads() -> Iterator[None]:
    """Let the kernels use as many threads as torch does."""
    before = numba.get_num_threads()
    numba.set_num_threads(max(1, min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)))
    try:
        yield
    finally:
        numba.set_num_threads(before)


@njit(cache=True, fastmath={"reassoc", "contract", "nsz"}, inline="never")
def _flip(couplings: Array, fields: Array, spins: Array, i: int) -> None:
    change = -2 * spins[i]
    spins[i] = -spins[i]
    row = couplings[i]
    for k in range(fields.shape[0]):
        fields[k] += change * row[k]


@njit(cache=True)
def _descend_column(couplings: Array, fields: Array, spins: Array, threshold: float, max_flips: int) -> int:
    for count in range(max_flips):
        best, gain = -1, threshold
        for k in range(spins.shape[0]):
            candidate = spins[k] * fields[k]
            if candidate > gain:
                best, gain = k, candidate
        if best < 0:
            return count
        _flip(couplings, fields, spins, best)
    return max_flips


@njit(cache=True, parallel=True)
def descend(couplings: Array, fields: Array, spins: Array, threshold: Array, max_flips: int) -> Array:
    """Best-improvement descent of every column in place; returns the flips made per column."""
    flips = np.zeros(spins.shape[0], np.int64)
    for j in prange(spins.shape[0]):
        flips[j] = _descend_column(couplings, fields[j], spins[j], threshold[j], max_flips)
    return flips


@njit(cache=True, parallel=True)
def anneal(
    couplings: Array, fields: Array, spins: Array, temperatures: Array, threshold: Array, seeds: Array
) -> Array:
    """Metropolis sweeps of every column in place at `temperatures` (m, sweeps), then descent; returns flips made."""
    flips = np.zeros(spins.shape[0], np.int64)
    num_spins = spins.shape[1]
    for j in prange(spins.shape[0]):
        state = seeds[j]
        count = 0
        for sweep in range(temperatures.shape[1]):
            temperature = temperatures[j, sweep]
            for i in range(num_spins):
                gain = 2 * spins[j, i] * fields[j, i]
                if gain > 0:
                    accept = True
                elif gain < -20 * temperature:
                    accept = False
                else:
                    # xorshift64*: a few cycles, and 24 good bits are all that single precision takes.
                    state ^= state >> np.uint64(12)
                    state ^= state << np.uint64(25)
                    state ^= state >> np.uint64(27)
                    draw = ((state * np.uint64(2685821657736338717)) >> np.uint64(40)) * (1.0 / 16777216.0)
                    accept = draw < np.exp(gain / temperature)
                if accept:
                    _flip(couplings, fields[j], spins[j], i)
                    count += 1
        flips[j] = count + _descend_column(couplings, fields[j], spins[j], threshold[j], 100 * num_spins)
    return flips
