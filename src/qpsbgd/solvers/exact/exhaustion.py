"""All values of up to some thirty open spins, thousands at a time: what no bound can prune is tried out.

The spins are split into an inner block b and outer ones a. With the energies of all 2¹⁰ values of b in one array, a
flip of an outer spin adds a multiple of one precomputed array Σᵢ J_ji b_i, in vector instructions; Gray code visits
all a.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.compilation import compiled
from qpsbgd.solvers.search.kernels import copy, larger

Array = np.ndarray[Any, Any]

INNER = 10
"""Spins of the inner block: its arrays stay in the processor's first cache."""
SPLIT = 5
"""Most outer spins whose values are tried in parallel."""
ALONE = 5
"""Least outer spins that each of these parallel parts goes through, so that its beginning is a small share."""
REFRESH = 4096
"""Flips after which sums are computed anew, so that rounding errors do not add up."""


@compiled()
def _sums(weights: Array, constant: float, total: Array) -> None:
    """Set `total` to constant + Σᵢ weights[i] · bᵢ for all values of b; bit i of an index is bᵢ = +1."""
    total[0] = constant
    for i in range(len(weights)):
        total[0] -= weights[i]
    for i in range(len(weights)):
        for code in range(1 << i):
            total[code + (1 << i)] = total[code] + 2 * weights[i]


@compiled(fastmath={"nnan", "nsz", "contract"}, error_model="numpy")
def _add(total: Array, step: Array, factor: float) -> Any:
    """Add a multiple of `step` to `total`; its largest entry."""
    most = total[0] + factor * step[0]
    for code in range(total.shape[0]):
        total[code] += factor * step[code]
        most = larger(most, total[code])
    return most


@compiled(nogil=True)
def _tables(couplings: Array, fields: Array, inner: int) -> tuple[Array, Array]:
    """Minus the energies of the inner block alone, and Σᵢ J_ji b_i for every outer spin j."""
    k, size = len(fields), 1 << inner
    own, row = np.zeros(size), np.zeros(size)
    for i in range(inner):
        # bᵢ times what the spins before it and the field say
        _sums(couplings[i, :i], fields[i], row[: 1 << i])
        for code in range(1 << i):
            own[code + (1 << i)] = own[code] - row[code]
            own[code] += row[code]
    steps = np.zeros((k - inner, size))
    for j in range(k - inner):
        _sums(couplings[inner + j, :inner], 0.0, steps[j])
    return own, steps


@compiled(nogil=True)
def _rest(couplings: Array, fields: Array, inner: int, values: Array, own: Array, steps: Array, total: Array) -> float:
    """Set `total` to minus all energies for these outer values; returns the part that is the same for all, minus it."""
    outer = len(values)
    copy(own, total)
    shared = 0.0
    for j in range(outer):
        for code in range(len(total)):
            total[code] -= values[j] * steps[j, code]
        shared -= fields[inner + j] * values[j]
        for i in range(j):
            shared -= couplings[inner + j, inner + i] * values[i] * values[j]
    return shared


@compiled(nogil=True)
def _try(
    couplings: Array, fields: Array, own: Array, steps: Array, values: Array, free: int, spins: Array, stop: Array
) -> tuple[float, bool]:
    """Write the best spins over all values of the inner block and of the first `free` outer spins into `spins` (k,).

    Returns minus their energy, and whether all were tried before `stop` was set. The other outer spins keep `values`.
    """
    outer = len(values)
    inner = len(fields) - outer
    total = np.empty(len(own))
    shared = _rest(couplings, fields, inner, values, own, steps, total)
    most, best = total.max(), -np.inf
    last = 1 << free
    trial = 0
    while True:
        if most + shared > best:
            best = most + shared
            code = int(np.argmax(total))
            for i in range(inner):
                spins[i] = 1.0 if (code >> i) & 1 else -1.0
            copy(values, spins[inner:])
        trial += 1
        if trial == last or stop[0]:
            return best, trial == last
        j = 0
        while (trial >> j) & 1 == 0:
            j += 1
        values[j] = -values[j]
        if trial % REFRESH == 0:
            shared = _rest(couplings, fields, inner, values, own, steps, total)
            most = total.max()
        else:
            field = fields[inner + j]
            for i in range(outer):
                field += couplings[inner + j, inner + i] * values[i]
            shared -= 2 * values[j] * field
            most = _add(total, steps[j], -2 * values[j])


@compiled(parallel=True, nogil=True)
def exhaust(couplings: Array, fields: Array, stop: Array) -> tuple[Array, bool]:
    """The best of all spins (k,), and whether all were tried before `stop` was set.

    The energy is Σ_{i<j} J_ij g_i g_j + Σ h_i g_i with J = `couplings`, symmetric; k is at least `INNER`.
    """
    k = len(fields)
    own, steps = _tables(couplings, fields, INNER)
    outer = k - INNER
    # Without fields, an answer and its negative are the same.
    free = outer - 1 if outer > 0 and not fields.any() else outer
    split = min(SPLIT, max(0, free - ALONE))
    parts = 1 << split
    best = np.empty(parts)
    spins = np.ones((parts, k))
    done = np.zeros(parts, np.bool_)
    for part in prange(parts):
        values = np.ones(outer)
        for j in range(split):
            values[free - 1 - j] = 1.0 if (part >> j) & 1 else -1.0
        best[part], done[part] = _try(couplings, fields, own, steps, values, free - split, spins[part], stop)
    return spins[np.argmax(best)], bool(done.all())


@compiled(parallel=True, nogil=True)
def complete(couplings: Array, linear: Array, fixed: Array, spins: Array, stop: Array) -> Array:
    """Set the open spins, 0 in `fixed`, of every column of `spins` (m, n) to their best values.

    Returns whether that was done, shape (m,): once `stop` is set, the other columns are left as they are.
    """
    m, n = linear.shape
    done = np.zeros(m, np.bool_)
    for column in prange(m):
        if stop[0]:
            continue
        places = np.flatnonzero(fixed[column] == 0)
        k = len(places)
        fields, inside, best = np.empty(k), np.empty((k, k)), np.empty(k)
        for a in range(k):
            row = couplings[places[a]]
            fields[a] = linear[column, places[a]]
            for i in range(n):
                fields[a] += row[i] * fixed[column, i]
            for b in range(k):
                inside[a, b] = row[places[b]]
        inner = min(k, INNER)
        own, steps = _tables(inside, fields, inner)
        outer = np.ones(k - inner)
        done[column] = _try(inside, fields, own, steps, outer, k - inner, best, stop)[1]
        if done[column]:
            for a in range(k):
                spins[column, places[a]] = best[a]
    return done
