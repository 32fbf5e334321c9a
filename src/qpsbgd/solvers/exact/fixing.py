"""Spins that every optimum must have, and what is left of a column when they are fixed.

Strong gradients decide most spins by themselves. Those left open are often few enough to try all their values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.compilation import compiled

Array = np.ndarray[Any, Any]


@compiled(parallel=True, nogil=True)
def dominated(couplings: Array, linear: Array, stop: Array) -> Array:
    """The spins that every optimum must have, 0 where open, for the columns s_j = rows of `linear` (m, n).

    A spin whose field outweighs all its couplings to open spins is fixed; its couplings then become fields of the
    others. `couplings` is 2 Q with a zero diagonal. Once `stop` is set, what is not fixed stays open.
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
        while changed and not stop[0]:
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


@compiled(parallel=True, nogil=True)
def complete(couplings: Array, linear: Array, fixed: Array, spins: Array, stop: Array) -> Array:
    """Set the open spins of every column of `spins` (m, n) to their best values, trying all, one flip at a time.

    Returns whether that was done, shape (m,): once `stop` is set, the other columns are left as they are.
    """
    m, n = linear.shape
    done = np.zeros(m, np.bool_)
    for j in prange(m):
        if stop[0]:
            continue
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
        values = -np.ones(count)
        for a in range(count):
            for b in range(count):
                field[a] += local[a, b] * values[b]
        lowest_code, code = 0, 0
        energy, lowest = 0.0, 0.0
        for trial in range(1, 1 << count):
            a = 0
            while (trial >> a) & 1 == 0:
                a += 1
            energy -= 2 * values[a] * field[a]
            change = -2 * values[a]
            values[a] = -values[a]
            for b in range(count):
                field[b] += change * local[a, b]
            code ^= 1 << a
            if energy < lowest:
                lowest, lowest_code = energy, code
        for a in range(count):
            spins[j, open_spins[a]] = 1.0 if (lowest_code >> a) & 1 else -1.0
        done[j] = True
    return done
