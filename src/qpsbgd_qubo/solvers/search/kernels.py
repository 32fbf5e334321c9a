"""The compiled search of a dense family's columns, on as many threads as torch uses; arrays as in `reference`."""

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
