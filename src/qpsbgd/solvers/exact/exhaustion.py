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
"""Outer spins whose values are tried in parallel."""
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
    split = min(SPLIT, free)
    parts = 1 << split
    best = np.full(parts, -np.inf)
    spins = np.ones((parts, k))
    done = np.zeros(parts, np.bool_)
    for part in prange(parts):
        values = np.ones(outer)
        for j in range(split):
            values[free - 1 - j] = 1.0 if (part >> j) & 1 else -1.0
        total = np.empty(len(own))
        shared = _rest(couplings, fields, INNER, values, own, steps, total)
        most = total.max()
        last = 1 << (free - split)
        trial = 0
        while True:
            if most + shared > best[part]:
                best[part] = most + shared
                code = int(np.argmax(total))
                for i in range(INNER):
                    spins[part, i] = 1.0 if (code >> i) & 1 else -1.0
                copy(values, spins[part, INNER:])
            trial += 1
            if trial == last or stop[0]:
                break
            j = 0
            while (trial >> j) & 1 == 0:
                j += 1
            values[j] = -values[j]
            if trial % REFRESH == 0:
                shared = _rest(couplings, fields, INNER, values, own, steps, total)
                most = total.max()
            else:
                field = fields[INNER + j]
                for i in range(outer):
                    field += couplings[INNER + j, INNER + i] * values[i]
                shared -= 2 * values[j] * field
                most = _add(total, steps[j], -2 * values[j])
        done[part] = trial == last
    return spins[np.argmax(best)], bool(done.all())
