"""Spins that every optimum must have, and what is left of a column when they are fixed.

Strong gradients decide most spins by themselves. What they leave open is often few enough to be tried out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.compilation import compiled

Array = np.ndarray[Any, Any]


@compiled(parallel=True)
def dominated(couplings: Array, linear: Array) -> Array:
    """The spins that every optimum must have, 0 where that is open, for the columns s_j = rows of `linear` (m, n).

    A spin whose field outweighs all its couplings to open spins is fixed; its couplings then become fields of the
    others. `couplings` is 2 Q with a zero diagonal.
    """
    m, n = linear.shape
    fixed = np.zeros((m, n))
    sizes = np.abs(couplings)
    for j in prange(m):
        field = linear[j].copy()
        pull = np.zeros(n)
        for i in range(n):
            pull[i] = sizes[i].sum()
        alone = 1e-12 * pull
        changed = True
        while changed:
            changed = False
            for i in range(n):
                # The margin keeps roundings from fixing what is balanced; a spin without couplings is always decided.
                if fixed[j, i] == 0 and (abs(field[i]) > pull[i] * (1 + 1e-9) or pull[i] <= alone[i]):
                    fixed[j, i] = -1.0 if field[i] > 0 else 1.0
                    for k in range(n):
                        field[k] += couplings[i, k] * fixed[j, i]
                        pull[k] -= sizes[i, k]
                    changed = True
    return fixed


@compiled(parallel=True)
def complete(couplings: Array, linear: Array, fixed: Array) -> Array:
    """The best spins (m, n) that have the fixed ones: all values of the open ones are tried, a flip at a time."""
    m, n = linear.shape
    best = fixed.copy()
    for j in prange(m):
        open_spins = np.flatnonzero(fixed[j] == 0)
        count = len(open_spins)
        field = np.zeros(count)
        local = np.zeros((count, count))
        for a in range(count):
            i = open_spins[a]
            field[a] = linear[j, i]
            for k in range(n):
                field[a] += couplings[i, k] * fixed[j, k]
            for b in range(count):
                local[a, b] = couplings[i, open_spins[b]]
        spins = -np.ones(count)
        for a in range(count):
            for b in range(count):
                field[a] += local[a, b] * spins[b]
        lowest_code, code = 0, 0
        energy, lowest = 0.0, 0.0
        for trial in range(1, 1 << count):
            a = 0
            while (trial >> a) & 1 == 0:
                a += 1
            energy -= 2 * spins[a] * field[a]
            change = -2 * spins[a]
            spins[a] = -spins[a]
            for b in range(count):
                field[b] += change * local[a, b]
            code ^= 1 << a
            if energy < lowest:
                lowest, lowest_code = energy, code
        for a in range(count):
            best[j, open_spins[a]] = 1.0 if (lowest_code >> a) & 1 else -1.0
    return best
