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
