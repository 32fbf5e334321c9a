"""A sphere decoder: proven optima by a depth-first search, of the columns of a family or of one problem.

With any diagonal D that makes A = Q + D positive definite and its Cholesky
factor A = RᵀR (R upper triangular),

    gᵀQg + sᵀg = ‖R g − y‖² − ‖y‖² − tr D,   Rᵀ y = −s/2,   for g ∈ {−1, +1}ⁿ.

Row k of R g − y depends on spins k…n−1 alone, so fixing spins from the last to the first adds up non-negative terms,
and a branch ends when its sum exceeds that of the best spins known. D decides how soon. It is −λ_min(Q) everywhere
plus, column by column, the multipliers of the relaxation to the box [−1, 1]ⁿ: the minimum over real x is then the one
over the box.
"""

import math
import time

import numpy as np

from qpsbgd_qubo.kernels import Array, kernels, thread_count
from qpsbgd_qubo.solvers.search.chains import range_factor

MOST_WHOLE = 1e10
"""Largest energy of whole coefficients up to which the decoder's rounding errors, some 1e-12 of it, hide no difference.
Beyond it gives up, and few spins are proven by trying all values, whose sums are exact."""


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


def decode(
    couplings: Array, linear: Array, fixed: Array, spins: Array, shift: float, node_limit: int, stop: Array
) -> Array:
    """Bring good `spins` (m, n) to the optimum, `fixed` ones as they are; nodes (m,), −1 where it gave up."""
    nodes = np.full(len(linear), -1)
    whole = all((np.rint(part) == part).all() for part in (couplings, linear))
    if whole and np.abs(couplings).sum() / 2 + np.abs(linear).sum(1).max() > MOST_WHOLE:
        return nodes
    kernels.decode(couplings, linear, fixed, spins, shift, node_limit, nodes, stop, thread_count())
    return nodes


def prove(couplings: Array, linear: Array, spins: Array, *, node_limit: int, stop: Array) -> tuple[Array, bool]:
    """Good `spins` (n,) of one problem, int8, brought to the optimum, and whether that was done within the limits."""
    factor = range_factor(couplings, linear)
    couplings, linear = couplings * factor, linear[None] * factor
    fixed, decoded = np.empty_like(linear), spins[None].astype(np.float64)
    kernels.fix_dominated(couplings, linear, fixed, stop, 1)
    shift = least_shift(couplings / 2)
    assert shift is not None
    trying = exhaustion_work(len(spins))
    nodes = decode(couplings, linear, fixed, decoded, shift, min(node_limit, trying), stop)
    proven = bool(nodes[0] >= 0)
    if not proven and trying <= node_limit and not stop[0]:  # its bounds are too weak
        best = np.empty(len(spins))
        if proven := bool(kernels.exhaust(couplings, linear[0], best, stop, thread_count())):
            decoded[0] = best
    return decoded[0].astype(np.int8), proven


def exhaustion_work(open_spins: int) -> int:
    """The nodes of the sphere decoder that take as long as trying all values of this many spins."""
    return 1 << max(0, open_spins - 7)
