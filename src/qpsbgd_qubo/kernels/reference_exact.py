"""Kernels that prove optima, in plain Python: dominated spins, all values of few open spins, the sphere decoder.

All arrays are float64; `couplings` is 2 Q with a zero diagonal, `linear` (m, n) has one column of the family per row,
`fixed` (m, n) is 0 where a spin is open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def fix_dominated(couplings: Array, linear: Array, fixed: Array, stop: Array, threads: int = 1) -> None:
    """Write the spins that every optimum must have, 0 where open.

    A spin whose field outweighs all its couplings to open spins is fixed; its couplings then become fields of the
    others. Once `stop` is set, what is not fixed stays open.
    """
    coupling_sums = np.abs(couplings).sum(1)
    fixed[:] = 0
    for own, field, reach in zip(fixed, linear.copy(), np.tile(coupling_sums, (len(linear), 1)), strict=True):
        changed = True
        while changed and not stop[0]:
            changed = False
            for i in range(len(own)):
                # The margin keeps roundings from fixing what is balanced; a spin without couplings is always decided.
                decided = abs(field[i]) > reach[i] * (1 + 1e-9) or reach[i] <= 1e-12 * coupling_sums[i]
                if own[i] == 0 and decided and np.isfinite(reach[i]):
                    own[i] = -1 if field[i] > 0 else 1
                    field += own[i] * couplings[i]
                    reach -= np.abs(couplings[i])
                    changed = True


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

    The energy is Σ_{i<j} J_ij g_i g_j + Σ h_i g_i with J = `couplings`, symmetric.
    """
    k, least = len(fields), np.inf
    spins[:] = 1
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
    couplings: Array,
    linear: Array,
    fixed: Array,
    spins: Array,
    shift: float,
    node_limit: int,
    nodes: Array,
    stop: Array,
    threads: int = 1,
) -> None:
    """Bring good `spins` (m, n) of every column to the optimum by the sphere decoder.

    With `shift` on its diagonal, Q is positive definite. Writes the `nodes` (m,), int64, that each column took, −1
    where it gave up: at `node_limit`, or when `stop` is set.
    """
    for j in range(len(linear)):
        spins[j] = np.where(fixed[j] != 0, fixed[j], spins[j])
        places = np.flatnonzero(fixed[j] == 0)
        nodes[j] = 0
        if len(places):
            fields = (linear[j] + couplings @ fixed[j])[places]
            matrix = couplings[np.ix_(places, places)] / 2 + shift * np.eye(len(places))
            best = spins[j, places]
            nodes[j] = _decode(matrix, fields, best, node_limit, stop)
            spins[j, places] = best


def _decode(matrix: Array, fields: Array, best: Array, node_limit: int, stop: Array) -> int:
    """Bring one column's open spins to the optimum; the nodes it took, −1 where it gave up."""
    matrix = matrix + np.diag(_multipliers(matrix, fields, stop))
    order, factor = _factorise(matrix)
    if stop[0] or not np.isfinite(factor).all():
        return -1
    target = np.linalg.solve(factor.T, -0.5 * fields[order])
    spins = best[order]
    radius = float(np.square(factor @ spins - target).sum())
    if not np.isfinite(radius):
        return -1
    # Over real x, the least ‖R x − y‖² with x_i held at the other value is (g_i + x*_i)²/(A⁻¹)_ii, x* = R⁻¹ y.
    inverse = np.linalg.inv(factor)
    known = np.where((spins + inverse @ target) ** 2 > np.square(inverse).sum(1) * radius * (1 + 1e-9), spins, 0)
    # Sums of rounded terms: a search for strictly less must not find the start again.
    radius -= 1e-12 * (radius + float(np.square(target).sum()))
    nodes = _descend_tree(factor, target, known, spins, radius, node_limit, stop)
    best[order] = spins
    return nodes


def _multipliers(matrix: Array, fields: Array, stop: Array) -> Array:
    """Those of x² ≤ 1 in the least xᵀAx + fᵀx over the box, which move the minimum over all real x onto the box."""
    x, slopes = np.zeros(len(fields)), fields.copy()
    for _ in range(100):
        largest = 0.0
        for a in range(len(x)):
            change = min(1.0, max(-1.0, x[a] - slopes[a] / (2 * matrix[a, a]))) - x[a]
            x[a] += change
            slopes += 2 * change * matrix[a]
            largest = max(largest, abs(change))
        if largest < 1e-6 or stop[0]:
            break
    return np.where(np.abs(x) > 1 - 1e-9, np.maximum(0, -(fields + 2 * matrix @ x) * x / 2), 0)


def _factorise(matrix: Array) -> tuple[Array, Array]:
    """An order of the spins and R, upper triangular, of the matrix in that order; smallest pivot first."""
    schur, order, rows = matrix.copy(), [], []
    left = list(range(len(matrix)))
    while left:
        pick = min(left, key=lambda a: schur[a, a])
        left.remove(pick)
        order.append(pick)
        row = np.zeros(len(matrix))
        root = np.sqrt(max(schur[pick, pick], 1e-300))
        row[left] = schur[pick, left] / root
        row[pick] = root
        schur[np.ix_(left, left)] -= np.outer(row[left], row[left])
        rows.append(row)
    return np.array(order), np.stack(rows)[:, order]


def _descend_tree(
    factor: Array, target: Array, known: Array, best: Array, radius: float, node_limit: int, stop: Array
) -> int:
    """Write the spins with the least ‖R g − y‖² < `radius` to `best`; the nodes visited, −1 at a limit."""
    n = len(target)
    spins, second, centre, below = np.zeros(n), np.zeros(n, bool), np.zeros(n), np.zeros(n + 1)
    nodes, k, enters = 0, n - 1, True
    while True:
        if enters:
            centre[k] = target[k] - factor[k, k + 1 :] @ spins[k + 1 :]
            second[k] = known[k] != 0
            spins[k] = known[k] or (1 if centre[k] >= 0 else -1)
        nodes += 1
        if nodes > node_limit or stop[0]:
            return -1
        cost = below[k + 1] + (centre[k] - factor[k, k] * spins[k]) ** 2
        if enters := bool(cost < radius and k > 0):
            below[k] = cost
            k -= 1
            continue
        if cost < radius:
            radius = cost
            best[:] = spins
        # A spin's first value is the cheaper one: where it is too far, so is the other, and a leaf has no better twin.
        k += 1
        while k < n and second[k]:
            k += 1
        if k == n:
            return nodes
        second[k] = True
        spins[k] = -spins[k]
