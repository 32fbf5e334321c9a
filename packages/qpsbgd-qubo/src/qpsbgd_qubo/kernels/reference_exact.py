"""Kernels that prove optima, in plain Python: dominated spins, and all values of few open spins.

All arrays are float64; `couplings` is 2 Q with a zero diagonal, `linear` (m, n) has one column of the family per row,
`fixed` (m, n) is 0 where a spin is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TRY_UP_TO = 20  # most spins of which all values are tried, which takes half a second; 32 would take an hour


def fix_dominated(couplings: Array, linear: Array, fixed: Array, stop: Array, threads: int = 1) -> None:
    """Write the spins that every optimum must have, 0 where open.

    A spin whose field outweighs all its couplings to open spins is fixed; its couplings then become fields of the
    others. Once `stop` is set, what is not fixed stays open.
    """
    coupling_sums = np.abs(couplings).sum(1)

    def decided(i: int, field: float, reach: float) -> bool:
        # The margin keeps roundings from fixing what is balanced; a spin without couplings is always decided.
        return bool((field > reach * (1 + 1e-9) or reach <= 1e-12 * coupling_sums[i]) and np.isfinite(reach))

    for own, fields in zip(fixed, linear, strict=True):
        own[:] = fix_spins(couplings, fields, coupling_sums, decided, stop)


def fix_spins(
    couplings: Array, linear: Array, coupling_sums: Array, decided: Callable[[int, float, float], bool], stop: Array
) -> Array:
    """Fix each spin that decided(i, |field|, sum of |couplings| to open spins) says to what its field wants; else 0."""
    fixed, fields, reach, again = np.zeros_like(linear), linear.copy(), coupling_sums.copy(), True
    while again and not stop[0]:
        again = False
        for i in range(len(fields)):
            if fixed[i] == 0 and decided(i, abs(fields[i]), reach[i]):
                fixed[i] = -1 if fields[i] > 0 else 1
                fields += fixed[i] * couplings[i]
                reach -= np.abs(couplings[i])
                again = True
    return fixed


def complete(
    couplings: Array, linear: Array, fixed: Array, spins: Array, done: Array, stop: Array, threads: int = 1
) -> None:
    """Set the open spins of every column of `spins` (m, n) to their best values; writes whether that was done, (m,)."""
    for j in range(len(linear)):
        places = np.flatnonzero(fixed[j] == 0)
        fields = (linear[j] + couplings @ fixed[j])[places]
        best = np.empty(len(places))
        done[j] = exhaust(couplings[np.ix_(places, places)], fields, best, stop)
        if done[j]:
            spins[j, places] = best


def exhaust(couplings: Array, fields: Array, spins: Array, stop: Array, threads: int = 1) -> bool:
    """Write the best of all spins (k,); whether all were tried before `stop` was set, and their energies are numbers.

    The energy is Σ_{i<j} J_ij g_i g_j + Σ h_i g_i with J = `couplings`, symmetric. The compiled kernel alone tries more
    than `TRY_UP_TO` spins.
    """
    k, least = len(fields), np.inf
    spins[:] = 1
    if k > TRY_UP_TO:
        return False
    for begin in range(0, 1 << k, 1 << 12):
        if stop[0]:
            return False
        codes = np.arange(begin, min(1 << k, begin + (1 << 12)))
        trials = 2.0 * (codes[:, None] >> np.arange(k) & 1) - 1
        energies = ((trials @ couplings) * trials).sum(1) / 2 + trials @ fields
        if energies.min() < least:
            least = energies.min()
            spins[:] = trials[energies.argmin()]
    return not stop[0] and bool(np.isfinite(least))


def decode(
    couplings: Array, linear: Array, fixed: Array, spins: Array, shift: float, node_limit: int, nodes: Array, *_: Any
) -> None:
    """Give up on every column: the sphere decoder of `solvers/exact/sphere_decoder.py` is compiled alone."""
    nodes[:] = -1
