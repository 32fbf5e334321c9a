"""Compiled loops of the CPU solvers, parallel over columns; compiled on first use and cached on disk.

Arrays hold one column of a family per row: `spins` and `fields` have shape (m, n). `couplings` is 2 Q with a zero
diagonal, `fields` = s + couplings · spins; a flip of spin i changes the energy by −2 · spins[i] · fields[i].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.compilation import compiled, instruction

Array = np.ndarray[Any, Any]

# There is no NaN here. Sums are not reordered: a largest gain must be found again by comparing for equality.
_fast = compiled(fastmath={"nnan", "nsz", "contract"}, error_model="numpy")

TABU = -np.inf
"""Added to the gain of a spin that must not be flipped; others get 0, which changes nothing by rounding."""

LOG_UNIFORM = np.log(np.random.default_rng(0).permutation((np.arange(4096) + 0.5) / 4096)).astype(np.float32)
"""log u for evenly spaced u ∈ (0, 1), in random order: cheaper to look up than to compute."""


@instruction
def larger(typing: Any, a: Any, b: Any) -> Any:
    """max(a, b) in a form that LLVM turns into vector instructions within a loop, which numba's own is not."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", *values, flags=flags), *values, flags=flags)

    return a(a, a), generate


# Inlined before it is optimised: as a call it would slow quantum annealing down by a sixth.
@compiled(fastmath={"nnan", "nsz", "contract"}, error_model="numpy", inline="always")
def flip(couplings: Array, fields: Array, spins: Array, i: int) -> None:
    """Flip spin i and bring the fields up to date."""
    # A literal 2 would make numba compute in double precision.
    change, row = -(spins[i] + spins[i]), couplings[i]
    spins[i] = -spins[i]
    for k in range(fields.shape[0]):
        fields[k] += change * row[k]


@compiled(nogil=True, fastmath=True, error_model="numpy")
def fields_of(couplings: Array, linear: Array, spins: Array) -> Array:
    """The local fields of one column, in the type of `couplings`; numpy's product would wake threads that then spin."""
    fields = np.empty_like(spins)
    for i in range(len(spins)):
        field, row = couplings.dtype.type(0), couplings[i]
        for k in range(len(spins)):
            field += row[k] * spins[k]
        fields[i] = linear[i] + field
    return fields


@_fast
def copy(source: Array, target: Array) -> None:
    """Write `source` into `target`; numba takes seconds to compile the same as an assignment to a slice."""
    for k in range(source.shape[0]):
        target[k] = source[k]


@_fast
def _largest(fields: Array, spins: Array, penalties: Array) -> Any:
    """The largest gain, penalties included."""
    most = spins[0] * fields[0] + penalties[0]
    for k in range(fields.shape[0]):
        most = larger(most, spins[k] * fields[k] + penalties[k])
    return most


@_fast
def _first(fields: Array, spins: Array, penalties: Array, gain: Any) -> int:
    """The first spin with that gain."""
    first = np.int32(fields.shape[0])
    for k in range(fields.shape[0]):
        first = min(first, np.int32(k) if spins[k] * fields[k] + penalties[k] >= gain else np.int32(fields.shape[0]))
    return int(first)


@_fast
def accepts(gain: float, temperature: float, log_uniform: Array, state: np.uint64) -> tuple[bool, np.uint64]:
    """Whether Metropolis makes a move that lowers the energy by `gain`, and the next state of xorshift64*."""
    if gain <= -10 * temperature:
        return False, state
    if gain > 0:
        return True, state
    state ^= state >> np.uint64(12)
    state ^= state << np.uint64(25)
    state ^= state >> np.uint64(27)
    draw = (state * np.uint64(2685821657736338717)) >> np.uint64(52)
    return gain > temperature * log_uniform[draw], state


@compiled()
def _tenure(move: int, column: int, seed: int, tenure: int) -> int:
    """`reference.tenure_of`."""
    mixed = (move * 2654435761 + column * 2246822519 + seed * 3266489917) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
    return tenure + (mixed >> 13) % max(6, tenure // 2)


@_fast
def lower(
    couplings: Array,
    fields: Array,
    spins: Array,
    lowest: Array,
    penalties: Array,
    threshold: float,
    max_flips: int,
    patience: int,
    tenure: int,
    column: int,
    seed: int,
    stop: Array,
) -> tuple[int, float]:
    """Lower one column with the moves of `reference.search`, until `stop` is set; its flips and the energy gained, ≤ 0.

    `spins` end as the lowest met and `fields` as theirs. `lowest` is working space, (n,), and so is `penalties`, which
    is zero before and after.
    """
    n = spins.shape[0]
    flips, energy = 0, 0.0
    while flips < max_flips and not stop[0]:
        gain = _largest(fields, spins, penalties)
        if not gain > threshold:
            break
        flip(couplings, fields, spins, _first(fields, spins, penalties, gain))
        energy -= 2 * gain
        flips += 1
    if patience == 0:
        return flips, energy

    # Tabu: the best flip that was not made recently, even uphill. Where a new low ends, its spins are kept.
    copy(spins, lowest)
    lowest_energy, descending = energy, False
    # Place t of the ring begins the list of spins that become free at move t, counted around it.
    length = tenure + max(6, tenure // 2) + 2
    ring, following = np.full(length, -1, np.int64), np.empty(n, np.int64)
    move, last, now = 0, patience, 0
    while move < last and flips < max_flips and not stop[0]:
        move += 1
        now = now + 1 if now + 1 < length else 0
        while ring[now] >= 0:
            penalties[ring[now]] = 0
            ring[now] = following[ring[now]]
        gain = _largest(fields, spins, penalties)
        if gain == TABU:  # all spins are
            continue
        best = _first(fields, spins, penalties, gain)
        if descending and gain <= 0:
            copy(spins, lowest)
            descending = False
        flip(couplings, fields, spins, best)
        energy -= 2 * gain
        flips += 1
        penalties[best] = TABU
        until = now + 1 + _tenure(move, column, seed, tenure)
        until = until if until < length else until - length
        following[best], ring[until] = ring[until], best
        if energy < lowest_energy - 2 * threshold:
            lowest_energy, descending = energy, True
            last = move + patience
    for place in range(length):
        while ring[place] >= 0:
            penalties[ring[place]] = 0
            ring[place] = following[ring[place]]
    if not descending:
        for k in range(n):
            if spins[k] != lowest[k]:
                flip(couplings, fields, spins, k)
    return flips, lowest_energy


@_fast
def _search_column(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: float,
    max_flips: int,
    patience: int,
    tenure: int,
    column: int,
    seed: int,
    stop: Array,
) -> int:
    lowest, penalties = np.empty_like(spins), np.zeros_like(spins)
    flips: int = lower(
        couplings, fields, spins, lowest, penalties, threshold, max_flips, patience, tenure, column, seed, stop
    )[0]
    return flips


@compiled(parallel=True, nogil=True)
def search(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: Array,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
    stop: Array,
) -> Array:
    """Lower every column in place with the moves of `reference.search`, until `stop` is set; flips per column."""
    flips = np.zeros(spins.shape[0], np.int64)
    for j in prange(spins.shape[0]):
        flips[j] = _search_column(
            couplings, fields[j], spins[j], threshold[j], max_flips, patience, tenure, j, seed, stop
        )
    return flips


@_fast
def _anneal_column(
    couplings: Array, fields: Array, spins: Array, temperatures: Array, log_uniform: Array, state: np.uint64
) -> int:
    n = spins.shape[0]
    flips = 0
    for temperature in temperatures:
        for i in range(n):
            accepted, state = accepts(2 * spins[i] * fields[i], temperature, log_uniform, state)
            if not accepted:
                continue
            flips += 1
            flip(couplings, fields, spins, i)
    return flips


@compiled(parallel=True)
def anneal(
    couplings: Array,
    fields: Array,
    spins: Array,
    temperatures: Array,
    threshold: Array,
    log_uniform: Array,
    states: Array,
) -> Array:
    """Metropolis sweeps of every column in place, one per temperature, then descent; flips per column."""
    flips = np.zeros(spins.shape[0], np.int64)
    never = np.zeros(1, np.uint8)
    for j in prange(spins.shape[0]):
        flips[j] = _anneal_column(couplings, fields[j], spins[j], temperatures, log_uniform, states[j])
        flips[j] += _search_column(
            couplings, fields[j], spins[j], threshold[j], 100 * spins.shape[1] + 1000, 0, 2, j, 0, never
        )
    return flips


@_fast
def _anneal_slices_of_column(
    couplings: Array,
    fields: Array,
    spins: Array,
    ties: Array,
    scale: float,
    temperature: float,
    log_uniform: Array,
    state: np.uint64,
) -> None:
    slices, n = spins.shape
    for tie in ties:
        for k in range(slices):
            before, after = spins[(k - 1) % slices], spins[(k + 1) % slices]
            for i in range(n):
                gain = 2 * spins[k, i] * (fields[k, i] / scale - tie * (before[i] + after[i]))
                accepted, state = accepts(gain, temperature, log_uniform, state)
                if not accepted:
                    continue
                flip(couplings, fields[k], spins[k], i)


@compiled(parallel=True)
def anneal_slices(
    couplings: Array,
    fields: Array,
    spins: Array,
    ties: Array,
    scale: Array,
    temperature: float,
    log_uniform: Array,
    states: Array,
) -> None:
    """Path-integral sweeps of every column in place, one per tie between slices; `spins` and `fields` are (m, P, n).

    Energies of column j are in units of scale[j], which includes the number of slices.
    """
    for j in prange(spins.shape[0]):
        _anneal_slices_of_column(couplings, fields[j], spins[j], ties, scale[j], temperature, log_uniform, states[j])


@compiled(fastmath=True, error_model="numpy", nogil=True)
def anneal_sites(
    couplings: Array,
    fields: Array,
    spins: Array,
    sites: Array,
    temperatures: Array,
    log_uniform: Array,
    state: np.uint64,
    stop: Array,
) -> int:
    """Metropolis sweeps of one column over `sites`, one per temperature, until `stop` is set; the sweeps begun."""
    sweeps = 0
    for temperature in temperatures:
        for i in sites:
            accepted, state = accepts(2 * spins[i] * fields[i], temperature, log_uniform, state)
            if accepted:
                if stop[0]:
                    return sweeps
                flip(couplings, fields, spins, i)
        sweeps += 1
    return sweeps


@compiled(nogil=True)
def search_column(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: float,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
    stop: Array,
) -> int:
    """`search` of one column on the calling thread."""
    flips: int = _search_column(couplings, fields, spins, threshold, max_flips, patience, tenure, 0, seed, stop)
    return flips
