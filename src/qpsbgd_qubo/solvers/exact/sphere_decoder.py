"""Depth-first sphere decoder: binary least squares to proven optimality, all columns in parallel.

With any diagonal D that makes A = Q + D positive definite and its Cholesky factor A = RᵀR (R upper triangular),

    gᵀQg + sᵀg = ‖R g − y‖² − ‖y‖² − tr D,   Rᵀ y = −s/2,   for g ∈ {−1, +1}ⁿ.

Row k of R g − y depends on spins k…n−1 alone, so fixing spins from the last to the first adds up non-negative terms,
and a branch ends when its sum exceeds that of the best spins known.

D decides how soon. It is −λ_min(Q) everywhere plus, column by column, the multipliers of the relaxation to the box
[−1, 1]ⁿ: the minimum over real x is then the one over the box.
"""

from __future__ import annotations

import math
import time

import numpy as np

from qpsbgd_qubo.kernels import Array, kernels, thread_count


def least_shift(quadratic: Array, *, seconds: float = math.inf) -> float | None:
    """δ that makes hollow Q + δI barely positive definite; None where that would take longer than `seconds`."""
    hollow = quadratic - np.diag(np.diag(quadratic))
    if seconds < math.inf and len(hollow) > 500:
        # LAPACK cannot be interrupted, but the time for a quarter of the matrix predicts it: it grows with the cube.
        begin, quarter = time.monotonic(), len(hollow) // 4
        np.linalg.eigvalsh(hollow[:quarter, :quarter])
        if 4**3 * (time.monotonic() - begin) > seconds:
            return None
    eigenvalues = np.linalg.eigvalsh(hollow)
    spread = eigenvalues[-1] - eigenvalues[0]
    return float(-eigenvalues[0] + 1e-6 * spread)


def search(
    couplings: Array, linear: Array, fixed: Array, spins: Array, shift: float, node_limit: int, stop: Array
) -> Array:
    """Bring good `spins` (m, n) of every column to the optimum, those that are `fixed`, not 0, as they are.

    Returns:
        The nodes that each column took, (m,), −1 where it gave up: at `node_limit`, or when `stop` is set.
    """
    nodes = np.empty(len(linear), np.int64)
    kernels.decode(couplings, linear, fixed, spins, shift, node_limit, nodes, stop, thread_count())
    return nodes
