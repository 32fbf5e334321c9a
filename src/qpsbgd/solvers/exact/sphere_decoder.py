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
from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.compilation import compiled
from qpsbgd.solvers.search.kernels import copy

Array = np.ndarray[Any, Any]


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


@compiled(parallel=True, nogil=True)
def search(
    couplings: Array, linear: Array, fixed: Array, spins: Array, shift: float, node_limit: int, stop: Array
) -> Array:
    """Bring `spins` (m, n) of every column to the optimum.

    Args:
        couplings: 2 Q with a zero diagonal, (n, n).
        linear: s, one column per row, (m, n).
        fixed: The spins that every optimum must have, 0 where open, (m, n).
        spins: Good spins to start from.
        shift: From `least_shift`.
        node_limit: Nodes after which a column gives up.
        stop: A flag from `deadline`; when it is set, every column gives up.

    Returns:
        The nodes that each column took, −1 where it gave up.
    """
    nodes = np.zeros(len(linear), np.int64)
    for j in prange(len(linear)):
        nodes[j] = _solve_column(couplings, linear[j], fixed[j], spins[j], shift, node_limit, stop)
    return nodes


@compiled()
def _solve_column(
    couplings: Array, linear: Array, fixed: Array, spins: Array, shift: float, node_limit: int, stop: Array
) -> Any:
    free = np.flatnonzero(fixed == 0)
    k = len(free)
    for i in range(len(spins)):
        if fixed[i] != 0:
            spins[i] = fixed[i]
    matrix = np.zeros((k, k))
    fields = np.zeros(k)
    for a in range(k):
        fields[a] = linear[free[a]]
        for i in range(len(spins)):
            fields[a] += couplings[free[a], i] * fixed[i]
        for b in range(k):
            matrix[a, b] = couplings[free[a], free[b]] / 2
        matrix[a, a] = shift
    relaxed = _box_minimum(matrix, fields, stop)
    for a in range(k):
        if abs(relaxed[a]) > 1 - 1e-9:
            slope = fields[a]
            for b in range(k):
                slope += 2 * matrix[a, b] * relaxed[b]
            # The multiplier of x² ≤ 1, which moves the minimum over all real x onto the box.
            matrix[a, a] += max(0.0, -slope * relaxed[a] / 2)
    order, factor = _factorise(matrix, stop)
    if stop[0]:
        return -1
    target = _forward_solve(factor, fields, order)
    best = np.zeros(k)
    for a in range(k):
        best[a] = spins[free[order[a]]]
    radius = _distance(factor, target, best)
    known = _implied(factor, target, best, radius, stop)
    # Sums of rounded terms: a search for strictly less must not find the start again.
    size = 0.0
    for a in range(k):
        size += target[a] * target[a]
    nodes = _search(factor, target, known, best, radius - 1e-12 * (radius + size), node_limit, stop)
    for a in range(k):
        spins[free[order[a]]] = best[a]
    return nodes


@compiled()
def _box_minimum(matrix: Array, fields: Array, stop: Array) -> Array:
    """Nearly the least xᵀAx + fᵀx over x ∈ [−1, 1]ᵏ, by coordinate descent. Any x gives a valid bound."""
    k = len(fields)
    x = np.zeros(k)
    slopes = fields.copy()
    for _ in range(100):
        largest = 0.0
        for a in range(k):
            if stop[0]:
                return x
            moved = min(1.0, max(-1.0, x[a] - slopes[a] / (2 * matrix[a, a])))
            change = moved - x[a]
            if change != 0:
                x[a] = moved
                for b in range(k):
                    slopes[b] += 2 * matrix[a, b] * change
                largest = max(largest, abs(change))
        if largest < 1e-6:
            break
    return x


@compiled()
def _factorise(matrix: Array, stop: Array) -> tuple[Array, Array]:
    """An order of the spins and R, upper triangular, of the matrix in that order; incomplete once `stop` is set.

    Smallest pivot first, so that the spins that are set first, the last rows of R, have the largest diagonal.
    """
    k = len(matrix)
    schur = matrix.copy()
    order = np.zeros(k, np.int64)
    done = np.zeros(k, np.bool_)
    rows = np.zeros((k, k))
    for step in range(k):
        if stop[0]:
            break
        pick = -1
        for a in range(k):
            if not done[a] and (pick < 0 or schur[a, a] < schur[pick, pick]):
                pick = a
        order[step] = pick
        done[pick] = True
        root = np.sqrt(max(schur[pick, pick], 1e-300))
        rows[step, pick] = root
        for a in range(k):
            if not done[a]:
                rows[step, a] = schur[pick, a] / root
        for a in range(k):
            if not done[a]:
                for b in range(k):
                    if not done[b]:
                        schur[a, b] -= rows[step, a] * rows[step, b]
    factor = np.zeros((k, k))
    for a in range(k):
        for b in range(a, k):
            factor[a, b] = rows[a, order[b]]
    return order, factor


@compiled()
def _forward_solve(factor: Array, fields: Array, order: Array) -> Array:
    """The y of Rᵀ y = −s/2."""
    target = np.zeros(len(fields))
    for a in range(len(fields)):
        total = -0.5 * fields[order[a]]
        for b in range(a):
            total -= factor[b, a] * target[b]
        target[a] = total / factor[a, a]
    return target


@compiled()
def _distance(factor: Array, target: Array, spins: Array) -> float:
    """‖R g − y‖²."""
    total = 0.0
    for a in range(len(spins)):
        residual = -target[a]
        for b in range(a, len(spins)):
            residual += factor[a, b] * spins[b]
        total += residual * residual
    return total


@compiled()
def _implied(factor: Array, target: Array, spins: Array, radius: float, stop: Array) -> Array:
    """The spins that all vectors within the radius share with `spins`, 0 where open and once `stop` is set.

    Over real x, the least ‖R x − y‖² with x_i held at the other value is (g_i + x*_i)²/(A⁻¹)_ii, x* = R⁻¹ y.
    """
    k = len(spins)
    known = np.zeros(k)
    inverse = np.zeros((k, k))
    for b in range(k):
        if stop[0]:
            return known
        inverse[b, b] = 1 / factor[b, b]
        for a in range(b - 1, -1, -1):
            total = 0.0
            for c in range(a + 1, b + 1):
                total += factor[a, c] * inverse[c, b]
            inverse[a, b] = -total / factor[a, a]
    for a in range(k):
        centre, variance = 0.0, 0.0
        for b in range(a, k):
            centre += inverse[a, b] * target[b]
            variance += inverse[a, b] * inverse[a, b]
        if (spins[a] + centre) ** 2 > variance * radius * (1 + 1e-9):
            known[a] = spins[a]
    return known


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _centre(factor: Array, target: Array, spins: Array, k: int) -> Any:
    total = target[k]
    row = factor[k]
    for i in range(k + 1, spins.shape[0]):
        total -= row[i] * spins[i]
    return total


@compiled()
def _first_value(centre: float, known: float) -> tuple[float, bool]:
    """The value of a spin to try first, and whether it is the only one."""
    if known != 0:
        return known, True
    return (1.0 if centre >= 0 else -1.0), False


@compiled()
def _search(
    factor: Array, target: Array, known: Array, best: Array, radius: float, node_limit: int, stop: Array
) -> int:
    """Write the spins with the least ‖R g − y‖² < `radius` to `best`; the nodes visited, −1 at a limit."""
    n = target.shape[0]
    spins = np.zeros(n)
    second = np.zeros(n, np.bool_)
    centre = np.zeros(n)
    below = np.zeros(n + 1)
    nodes = 0
    k = n - 1
    centre[k] = _centre(factor, target, spins, k)
    spins[k], second[k] = _first_value(centre[k], known[k])
    while True:
        nodes += 1
        if nodes > node_limit or stop[0]:
            return -1
        residual = centre[k] - factor[k, k] * spins[k]
        cost = below[k + 1] + residual * residual
        if cost < radius:
            if k > 0:
                below[k] = cost
                k -= 1
                centre[k] = _centre(factor, target, spins, k)
                spins[k], second[k] = _first_value(centre[k], known[k])
                continue
            radius = cost
            copy(spins, best)
        # A spin's first value is the cheaper one: where it is too far, so is the other, and a leaf has no better twin.
        k += 1
        while k < n and second[k]:
            k += 1
        if k == n:
            return nodes
        second[k] = True
        spins[k] = -spins[k]
