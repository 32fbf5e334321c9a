"""A sparse problem without the spins whose best value follows from others: an equivalent smaller one, and the way back.

A spin with field h and couplings w to spins x has the best value −sign(h + wᵀx), at the energy −|h + wᵀx|. As a
function of x that is again an Ising energy if there are at most two neighbours, or three and no field; then the spin is
eliminated. A spin whose field outweighs its couplings has one best value whatever the others are. Both repeat until
nothing is left to do: trees and chains of such spins vanish, and sparse random graphs shrink to a core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd.qubo.sparse import SparseIsing
from qpsbgd.solvers.compilation import compiled

Array = np.ndarray[Any, Any]

_kernel = compiled(nogil=True, error_model="numpy")

MOST = 3
"""Most neighbours of a spin that is eliminated."""
SLACK = 4
"""Places per row for couplings that eliminations add; where they do not suffice, a spin stays."""


@dataclass(frozen=True, eq=False)
class Reduction:
    """What is left of a problem, and how the spins that are gone follow.

    Attributes:
        core: The problem that is left; None if nothing is.
        kept: Where its spins stand in the whole problem.
        gone: The eliminated spins in their order.
        neighbours: The spins that each of them depends on, (…, 3), −1 where there are fewer.
        weights: Their couplings, (…, 3).
        fields: The field on each.
    """

    core: SparseIsing | None
    kept: Array
    gone: Array
    neighbours: Array
    weights: Array
    fields: Array

    @classmethod
    def of(cls, problem: SparseIsing, stop: Array) -> Reduction:
        """`problem` reduced as far as the rules go, or until `stop` is set."""
        n = problem.num_spins
        degrees = np.diff(problem.indptr)
        begins = problem.indptr + SLACK * np.arange(n + 1)
        indices, couplings = _with_slack(problem.indptr, problem.indices, problem.couplings)
        linear = problem.linear.copy()
        count, gone, neighbours, weights, fields = _eliminate(begins, degrees, indices, couplings, linear, stop)
        gone, neighbours, weights, fields = (part[:count] for part in (gone, neighbours, weights, fields))
        if not count:
            return cls(problem, np.arange(n), gone, neighbours, weights, fields)
        alive = np.ones(n, bool)
        alive[gone] = False
        kept = np.flatnonzero(alive)
        if not len(kept):
            return cls(None, kept, gone, neighbours, weights, fields)
        indptr, columns, values = _compact(begins, degrees, indices, couplings, alive, kept)
        core = SparseIsing._trusted(indptr, columns, values, linear[kept], 0.0)
        return cls(core, kept, gone, neighbours, weights, fields)

    def completed(self, core_spins: Array) -> Array:
        """Spins of the whole problem, int8, with the best values of all that were eliminated."""
        spins = np.zeros(len(self.kept) + len(self.gone), np.int8)
        spins[self.kept] = core_spins
        _complete(spins, self.gone, self.neighbours, self.weights, self.fields)
        return spins


@_kernel
def _with_slack(indptr: Array, indices: Array, couplings: Array) -> tuple[Array, Array]:
    """The same rows, each with room for `SLACK` more."""
    size = len(indices) + SLACK * (len(indptr) - 1)
    columns, values = np.empty(size, indices.dtype), np.empty(size)
    for row in range(len(indptr) - 1):
        for at in range(indptr[row], indptr[row + 1]):
            columns[at + SLACK * row], values[at + SLACK * row] = indices[at], couplings[at]
    return columns, values


@_kernel
def _eliminate(
    begins: Array, degrees: Array, indices: Array, couplings: Array, linear: Array, stop: Array
) -> tuple[int, Array, Array, Array, Array]:
    """Eliminate in place; the eliminated spins, their neighbours, weights and fields, and how many they are."""
    n = len(linear)
    gone = np.empty(n, np.int64)
    neighbours = np.full((n, MOST), -1, np.int64)
    weights, fields = np.zeros((n, MOST)), np.zeros(n)
    alive, queued = np.ones(n, np.bool_), np.ones(n, np.bool_)
    # First in, first out keeps the core's degrees low; a ring holds every spin at most once.
    ring, head, size = np.arange(n), 0, n
    energies = np.zeros(8)
    count = 0
    while size and not stop[0]:
        v = ring[head]
        head, size = (head + 1) % n, size - 1
        queued[v] = False
        if not alive[v]:
            continue
        begin, degree = begins[v], degrees[v]
        pull = 0.0
        for k in range(degree):
            pull += abs(couplings[begin + k])
        decided = abs(linear[v]) >= pull
        few = degree <= (2 if linear[v] != 0 else MOST)
        if not decided and not few:
            continue
        if not decided and degree == MOST and not _fits(begins, degrees, indices, v):
            continue
        alive[v] = False
        gone[count], fields[count] = v, linear[v]
        if decided:
            value = -1.0 if linear[v] > 0 else 1.0
            for k in range(degree):
                linear[indices[begin + k]] += couplings[begin + k] * value
        else:
            for k in range(degree):
                neighbours[count, k], weights[count, k] = indices[begin + k], couplings[begin + k]
        for k in range(degree):
            u = indices[begin + k]
            _remove(begins, degrees, indices, couplings, u, v)
            if not queued[u]:
                queued[u] = True
                ring[(head + size) % n] = u
                size += 1
        if not decided:
            _spread(
                begins,
                degrees,
                indices,
                couplings,
                linear,
                neighbours[count],
                weights[count],
                degree,
                linear[v],
                energies,
            )
        degrees[v] = 0
        count += 1
    return count, gone, neighbours, weights, fields


@_kernel
def _compact(
    begins: Array, degrees: Array, indices: Array, couplings: Array, alive: Array, kept: Array
) -> tuple[Array, Array, Array]:
    """The rows that are left, numbered anew, with ascending columns."""
    number = np.cumsum(alive) - 1
    indptr = np.zeros(len(kept) + 1, np.int64)
    for row in range(len(kept)):
        indptr[row + 1] = indptr[row] + degrees[kept[row]]
    columns, values = np.empty(indptr[-1], indices.dtype), np.empty(indptr[-1])
    for row in range(len(kept)):
        begin = begins[kept[row]]
        for place in range(degrees[kept[row]]):
            column, value = number[indices[begin + place]], couplings[begin + place]
            # By insertion: all but the columns that changed are in order.
            at = indptr[row] + place
            while at > indptr[row] and columns[at - 1] > column:
                columns[at], values[at] = columns[at - 1], values[at - 1]
                at -= 1
            columns[at], values[at] = column, value
    return indptr, columns, values


@_kernel
def _fits(begins: Array, degrees: Array, indices: Array, v: int) -> bool:
    """Whether the rows of v's neighbours have room for couplings among them."""
    for k in range(degrees[v]):
        u = indices[begins[v] + k]
        if degrees[u] + 1 > begins[u + 1] - begins[u]:
            return False
    return True


@_kernel
def _spread(
    begins: Array,
    degrees: Array,
    indices: Array,
    couplings: Array,
    linear: Array,
    ends: Array,
    weights: Array,
    degree: int,
    field: float,
    energies: Array,
) -> None:
    """Add −|field + weightsᵀx| as fields of x and couplings among them."""
    total = 1 << degree
    for code in range(total):
        value = field
        for k in range(degree):
            value += weights[k] if (code >> k) & 1 else -weights[k]
        energies[code] = -abs(value)
    for k in range(degree):
        if field != 0:
            share = 0.0
            for code in range(total):
                share += energies[code] if (code >> k) & 1 else -energies[code]
            linear[ends[k]] += share / total
        for other in range(k):
            share = 0.0
            for code in range(total):
                share += energies[code] if (code >> k) & 1 == (code >> other) & 1 else -energies[code]
            if share != 0:
                _couple(begins, degrees, indices, couplings, ends[k], ends[other], share / total)
                _couple(begins, degrees, indices, couplings, ends[other], ends[k], share / total)


@_kernel
def _couple(begins: Array, degrees: Array, indices: Array, couplings: Array, u: int, v: int, value: float) -> None:
    """Add to the coupling that row u has for v; one that cancels out is removed."""
    for at in range(begins[u], begins[u] + degrees[u]):
        if indices[at] == v:
            size = abs(couplings[at]) + abs(value)
            couplings[at] += value
            if abs(couplings[at]) <= 1e-13 * size:
                _remove(begins, degrees, indices, couplings, u, v)
            return
    indices[begins[u] + degrees[u]], couplings[begins[u] + degrees[u]] = v, value
    degrees[u] += 1


@_kernel
def _remove(begins: Array, degrees: Array, indices: Array, couplings: Array, u: int, v: int) -> None:
    """Remove v from row u; the last entry takes its place."""
    last = begins[u] + degrees[u] - 1
    for at in range(begins[u], last + 1):
        if indices[at] == v:
            indices[at], couplings[at] = indices[last], couplings[last]
            degrees[u] -= 1
            return


@_kernel
def _complete(spins: Array, gone: Array, neighbours: Array, weights: Array, fields: Array) -> None:
    for place in range(len(gone) - 1, -1, -1):
        field = fields[place]
        for k in range(MOST):
            if neighbours[place, k] >= 0:
                field += weights[place, k] * spins[neighbours[place, k]]
        spins[gone[place]] = -1 if field > 0 else 1
