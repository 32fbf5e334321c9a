"""The compiled search of the columns of a dense family, on as many threads as torch uses.

Arrays hold one column of a family per row: `spins` and `fields` have shape (m, n). `couplings` is 2 Q with a zero
diagonal, `fields` = s + couplings · spins; a flip of spin i changes the energy by −2 · spins[i] · fields[i].
"""

from __future__ import annotations

import numpy as np

from qpsbgd_qubo.kernels import NEVER, Array, thread_count
from qpsbgd_qubo.kernels import kernels as native


def search(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: Array,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
    stop: Array = NEVER,
) -> Array:
    """Lower every column in place with the moves of `kernels.reference.search`, until `stop` is set; flips per column.

    All of float32 or all of float64. `threshold` (m,) is the smallest gain that cannot be a rounding error.
    """
    flips = np.empty(len(spins), np.int64)
    seed &= 2**63 - 1
    native.search(couplings, fields, spins, threshold, flips, max_flips, patience, tenure, seed, stop, thread_count())
    return flips


def flip_marked(couplings: Array, fields: Array, spins: Array, marked: Array) -> None:
    """Flip every spin (m, n) that is marked (uint8), in place; fields follow."""
    native.flip_marked(couplings, fields, spins, marked, thread_count())
