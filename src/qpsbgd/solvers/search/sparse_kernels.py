"""Compiled loops over one sparse problem: descent, annealing, tabu moves, and the best of two answers part by part.

Couplings are compressed rows as in `SparseIsing`. `spins` (n,) is int8, `fields` = h + J · spins; a flip of spin i
changes the energy by −2 · spins[i] · fields[i] and touches the fields of its neighbours alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qpsbgd.solvers.compilation import compiled
from qpsbgd.solvers.search.kernels import accepts, copy

Array = np.ndarray[Any, Any]

_kernel = compiled(nogil=True, error_model="numpy")


@_kernel
def set_fields(indptr: Array, indices: Array, couplings: Array, linear: Array, spins: Array, fields: Array) -> float:
    """Write h + J · spins into `fields`; the energy, without a constant."""
    twice = 0.0
    for i in range(len(spins)):
        field = linear[i]
        for at in range(indptr[i], indptr[i + 1]):
            field += couplings[at] * spins[indices[at]]
        fields[i] = field
        twice += spins[i] * (linear[i] + field)
    return twice / 2


@_kernel
def coloured(indptr: Array, indices: Array) -> Array:
    """A colour per spin, from 0 on, each the first that no coupled spin before it has."""
    n = len(indptr) - 1
    colours = np.full(n, -1)
    seen = np.full(n + 1, -1)  # which spin last saw a colour beside it
    for i in range(n):
        for at in range(indptr[i], indptr[i + 1]):
            if colours[indices[at]] >= 0:
                seen[colours[indices[at]]] = i
        colour = 0
        while seen[colour] == i:
            colour += 1
        colours[i] = colour
    return colours


@_kernel
def flip(indptr: Array, indices: Array, couplings: Array, fields: Array, spins: Array, i: int) -> None:
    """Flip spin i and bring the fields of its neighbours up to date."""
    change = -2 * spins[i]
    spins[i] = -spins[i]
    for at in range(indptr[i], indptr[i + 1]):
        fields[indices[at]] += couplings[at] * change


@_kernel
def descend(
    indptr: Array, indices: Array, couplings: Array, fields: Array, spins: Array, thresholds: Array, stop: Array
) -> float:
    """Flip every spin that gains more than its threshold, in turn, until none does; the energy gained, at most 0."""
    gained = 0.0
    again = True
    while again:
        again = False
        for i in range(len(spins)):
            gain = spins[i] * fields[i]
            if gain > thresholds[i]:
                if stop[0]:
                    return gained
                gained -= 2 * gain
                again = True
                flip(indptr, indices, couplings, fields, spins, i)
    return gained


@_kernel
def merge(
    indptr: Array,
    indices: Array,
    couplings: Array,
    fields: Array,
    spins: Array,
    other: Array,
    marks: Array,
    queue: Array,
) -> float:
    """Take over from `other` every part that does not raise the energy; the energy gained, at most 0.

    The spins in which the two differ fall into clusters that no coupling connects. Each is taken over or left by
    itself, so the result is the best of 2^clusters combinations and no higher than either.

    Args:
        indptr: Rows of the problem, as `indices` and `couplings`.
        indices: Their columns.
        couplings: Their values.
        fields: Of `spins`, kept up to date.
        spins: Improved in place.
        other: Another answer, (n,).
        marks: Working space, (n,), int8.
        queue: Working space, (n,), int64.
    """
    gained = 0.0
    for i in range(len(spins)):
        marks[i] = spins[i] != other[i]
    for root in range(len(spins)):
        if not marks[root]:
            continue
        size, reached = 1, 0
        queue[0], marks[root] = root, 2
        change = 0.0
        while reached < size:
            i = queue[reached]
            reached += 1
            outside = fields[i]
            for at in range(indptr[i], indptr[i + 1]):
                j = indices[at]
                if marks[j]:
                    # Couplings within the cluster stay as they are when it is flipped.
                    outside -= couplings[at] * spins[j]
                    if marks[j] == 1:
                        queue[size], marks[j] = j, 2
                        size += 1
            change -= 2 * spins[i] * outside
        for place in range(size):
            i = queue[place]
            marks[i] = 0
        if change <= 0:
            gained += change
            for place in range(size):
                flip(indptr, indices, couplings, fields, spins, queue[place])
    return gained


@_kernel
def harvest(
    indptr: Array,
    indices: Array,
    couplings: Array,
    linear: Array,
    thresholds: Array,
    chains: Array,
    spins: Array,
    stop: Array,
) -> float:
    """Merge every chain, a row of `chains`, into `spins` and bring them to a local minimum; their energy.

    Without fields h, an answer and its negative are the same, and the nearer of the two is merged. Once `stop` is set,
    the first chain alone is merged.
    """
    n = len(spins)
    fields, marks, queue = np.empty(n), np.zeros(n, np.int8), np.empty(n, np.int64)
    symmetric = not linear.any()
    energy = set_fields(indptr, indices, couplings, linear, spins, fields)
    energy += descend(indptr, indices, couplings, fields, spins, thresholds, stop)
    for chain in range(len(chains)):
        if stop[0] and chain:
            break
        other = chains[chain]
        if symmetric:
            differing = 0
            for i in range(n):
                differing += spins[i] != other[i]
            if 2 * differing > n:
                for i in range(n):
                    other[i] = -other[i]
        energy += merge(indptr, indices, couplings, fields, spins, other, marks, queue)
    energy += descend(indptr, indices, couplings, fields, spins, thresholds, stop)
    return float(energy)


@_kernel
def anneal(
    indptr: Array,
    indices: Array,
    couplings: Array,
    linear: Array,
    spins: Array,
    sites: Array,
    temperatures: Array,
    log_uniform: Array,
    state: np.uint64,
    stop: Array,
) -> int:
    """Metropolis sweeps of one chain over `sites`, one per temperature, until `stop` is set; the sweeps made."""
    fields = np.empty(len(spins), np.float32)
    set_fields(indptr, indices, couplings, linear, spins, fields)
    sweeps = 0
    for temperature in temperatures:
        for count in range(len(sites)):
            if count & 1023 == 0 and stop[0]:
                return sweeps
            i = sites[count]
            accepted, state = accepts(2 * spins[i] * fields[i], temperature, log_uniform, state)
            if accepted:
                flip(indptr, indices, couplings, fields, spins, i)
        sweeps += 1
    return sweeps


@_kernel
def tabu(
    indptr: Array,
    indices: Array,
    couplings: Array,
    linear: Array,
    spins: Array,
    block: int,
    moves: int,
    tenure: int,
    state: np.uint64,
    stop: Array,
) -> float:
    """Make the best flip that was not made in the last moves, uphill too; ends with the lowest spins met.

    The best flip of every block of spins is kept, so a move looks at the blocks of the flipped spin and its neighbours
    and at the best of each block.

    Returns:
        The energy of the spins it ends with.
    """
    n = len(spins)
    fields = np.empty(n)
    energy = set_fields(indptr, indices, couplings, linear, spins, fields)
    blocks = (n + block - 1) // block
    longest = 2 * tenure + 10
    free_from = np.zeros(n, np.int64)
    # Spins that become free at a move, as linked lists.
    first, following = np.full(longest + 1, -1, np.int64), np.full(n, -1, np.int64)
    best_of, stale = np.zeros(blocks, np.int64), np.ones(blocks, np.bool_)
    waiting, count = np.arange(blocks), blocks
    lowest, lowest_energy = spins.copy(), energy
    descending = False
    for move in range(1, moves + 1):
        if stop[0]:
            break
        i = first[move % (longest + 1)]
        first[move % (longest + 1)] = -1
        while i >= 0:
            if not stale[i // block]:
                stale[i // block] = True
                waiting[count] = i // block
                count += 1
            i = following[i]
        for place in range(count):
            b = waiting[place]
            stale[b] = False
            pick, most = -1, -np.inf
            for k in range(b * block, min(n, (b + 1) * block)):
                gain = spins[k] * fields[k]
                if gain > most and free_from[k] <= move:
                    pick, most = k, gain
            best_of[b] = pick
        count = 0
        best, gain = -1, -np.inf
        for b in range(blocks):
            k = best_of[b]
            if k >= 0 and spins[k] * fields[k] > gain:
                best, gain = k, spins[k] * fields[k]
        if best < 0:
            continue
        if descending and gain <= 0:
            copy(spins, lowest)
            descending = False
        flip(indptr, indices, couplings, fields, spins, best)
        energy -= 2 * gain
        state ^= state >> np.uint64(12)
        state ^= state << np.uint64(25)
        state ^= state >> np.uint64(27)
        draw = np.int64((state * np.uint64(2685821657736338717)) >> np.uint64(33))
        until = move + 1 + tenure + draw % max(6, tenure // 2)
        free_from[best] = until
        following[best] = first[until % (longest + 1)]
        first[until % (longest + 1)] = best
        stale[best // block] = True
        waiting[count] = best // block
        count += 1
        for at in range(indptr[best], indptr[best + 1]):
            b = indices[at] // block
            if not stale[b]:
                stale[b] = True
                waiting[count] = b
                count += 1
        if energy < lowest_energy - 1e-12 * abs(lowest_energy):
            lowest_energy, descending = energy, True
    if not descending:
        copy(lowest, spins)
    return float(lowest_energy)
