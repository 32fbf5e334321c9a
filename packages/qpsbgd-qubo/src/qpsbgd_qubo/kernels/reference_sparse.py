"""Kernels of one sparse problem, and the random numbers of all kernels, in plain Python.

`spins` (n,) is int8, fields = h + J · spins; a flip of spin i changes the energy by −2 · spins[i] · fields[i] and
touches the fields of its neighbours alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PLACES, LANES = 4096, 16  # entries of the table of draws, and chains that share one
HOPELESS = 9.02  # above the largest draw, log 8192


class Random:
    """xorshift64*; a state is never 0."""

    def __init__(self, state: int) -> None:
        self._state = state or 1

    def next(self, bits: int) -> int:
        """The upper `bits` of the next 64."""
        state = self._state
        state ^= state >> 12
        state ^= state << 25 & 2**64 - 1
        self._state = state = state ^ state >> 27
        return (state * 2685821657736338717 & 2**64 - 1) >> 64 - bits


def _draws() -> Array:
    table = -np.log((np.arange(PLACES) + 0.5) / PLACES).astype(np.float32)
    random = Random(1)
    for place in range(PLACES - 1, 0, -1):
        other = random.next(31) % (place + 1)
        table[place], table[other] = table[other], table[place]
    return np.concatenate([table, table[:LANES]])


DRAWS = _draws()
"""Exponential variates −log u in random order; sixteen in a row from a random place on are the draws of one step."""


def accepts(gain: Any, temperature: Any, random: Random) -> bool:
    """Whether Metropolis makes a move that lowers the energy by `gain`; draws nothing where no draw is large enough."""
    return bool(gain > -temperature * HOPELESS) and bool(gain + temperature * DRAWS[random.next(12)] > 0)


class Rows:
    """Couplings in compressed rows; `indptr` int64, `indices` int32, `couplings` float64."""

    def __init__(self, indptr: Array, indices: Array, couplings: Array) -> None:
        self.indptr, self.indices, self.couplings = indptr.copy(), indices.copy(), couplings.copy()
        self.singles = couplings.astype(np.float32)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def of(self, i: int) -> slice:
        """Where row i stands."""
        return slice(self.indptr[i], self.indptr[i + 1])

    def fields(self, linear: Array, spins: Array) -> Array:
        """H + J · spins in double precision."""
        rows = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        return linear + np.bincount(rows, self.couplings * spins[self.indices], minlength=len(self))

    def flip(self, fields: Array, spins: Array, i: int) -> None:
        """Flip spin i and bring the fields of its neighbours up to date."""
        row = self.of(i)
        values = self.singles if fields.dtype == np.float32 else self.couplings
        spins[i] = -spins[i]
        fields[self.indices[row]] += 2 * spins[i] * values[row]


def anneal_sparse(
    rows: Rows, linear: Array, spins: Array, sites: Array, temperatures: Array, state: int, stop: Array
) -> int:
    """Metropolis sweeps of one chain over `sites`, one per temperature, until `stop` is set; the sweeps made."""
    fields, random = rows.fields(linear, spins).astype(np.float32), Random(state)
    for sweep, temperature in enumerate(temperatures.astype(np.float32)):
        if stop[0]:
            return sweep
        for i in sites:
            if accepts(2 * spins[i] * fields[i], temperature, random):
                rows.flip(fields, spins, i)
    return len(temperatures)


def anneal_lanes(
    rows: Rows, linear: Array, spins: Array, sites: Array, temperatures: Array, state: int, stop: Array
) -> int:
    """`anneal_sparse` of sixteen chains, the bits of `spins`, uint16; each step has one random number for all."""
    ups = (spins[:, None] >> np.arange(LANES, dtype=np.uint16) & 1).astype(bool)
    fields = np.stack([rows.fields(linear, chain) for chain in np.where(ups.T, 1, -1)], axis=1).astype(np.float32)
    random = Random(state)
    for sweep, temperature in enumerate(temperatures):
        half = np.float32(temperature / 2)
        if stop[0]:
            return sweep
        for i in sites:
            draw = random.next(12)
            flips = np.where(ups[i], fields[i], -fields[i]) + DRAWS[draw : draw + LANES] * half > 0
            if flips.any():
                ups[i] ^= flips
                change = np.where(flips, np.where(ups[i], np.float32(2), np.float32(-2)), np.float32(0))
                fields[rows.indices[rows.of(i)]] += rows.singles[rows.of(i), None] * change
        spins[:] = (ups * (1 << np.arange(LANES))).sum(1)
    return len(temperatures)


def _descend(rows: Rows, fields: Array, spins: Array, thresholds: Array, stop: Array) -> float:
    """Flip every spin that gains more than its threshold, in turn, until none does; the energy gained, at most 0."""
    gained, again = 0.0, True
    while again:
        again = False
        for i in range(len(spins)):
            gain = float(spins[i] * fields[i])
            if gain > thresholds[i]:
                if stop[0]:
                    return gained
                gained, again = gained - 2 * gain, True
                rows.flip(fields, spins, i)
    return gained


def _merge(rows: Rows, fields: Array, spins: Array, other: Array) -> float:
    """Take over from `other` every part that does not raise the energy; the energy gained, at most 0.

    The spins in which the two differ fall into clusters that no coupling connects. Each is taken over or left by
    itself, so the result is the best of 2^clusters combinations and no higher than either.
    """
    gained, open_spins, differs = 0.0, spins != other, spins != other
    for root in range(len(spins)):
        if not open_spins[root]:
            continue
        cluster, change = [root], 0.0
        open_spins[root] = False
        for i in cluster:
            near, values = rows.indices[rows.of(i)], rows.couplings[rows.of(i)]
            for j in near[open_spins[near]]:
                if open_spins[j]:
                    cluster.append(int(j))
                    open_spins[j] = False
            # Couplings within the cluster stay as they are when it is flipped; other clusters are not beside it.
            inside = differs[near]
            change -= 2 * spins[i] * float(fields[i] - (values[inside] * spins[near[inside]]).sum())
        differs[cluster] = False
        if change <= 0:
            gained += change
            for i in cluster:
                rows.flip(fields, spins, i)
    return gained


def harvest(rows: Rows, linear: Array, thresholds: Array, chains: Array, spins: Array, stop: Array) -> float:
    """Merge every chain, a row of `chains`, into `spins` and bring them to a local minimum; their energy.

    Without fields h, an answer and its negative are the same, and the nearer of the two is merged. Once `stop` is set,
    the first chain alone is merged.
    """
    fields = rows.fields(linear, spins)
    energy = float((spins * (linear + fields)).sum() / 2)
    energy += _descend(rows, fields, spins, thresholds, stop)
    for place, other in enumerate(chains):
        if stop[0] and place:
            break
        if not linear.any() and 2 * (spins != other).sum() > len(spins):
            other *= -1
        energy += _merge(rows, fields, spins, other)
    return energy + _descend(rows, fields, spins, thresholds, stop)


def tabu_sparse(
    rows: Rows, linear: Array, spins: Array, block: int, moves: int, tenure: int, state: int, stop: Array
) -> float:
    """Make the best flip that was not made in the last moves, uphill too; ends with the lowest spins met.

    The compiled kernel keeps the best flip of every `block` of spins, which does not change the moves.

    Returns:
        The energy of the spins it ends with.
    """
    fields, random = rows.fields(linear, spins), Random(state)
    energy = lowest_energy = float((spins * (linear + fields)).sum() / 2)
    free_from, lowest, descending = np.zeros(len(spins), np.int64), spins.copy(), False
    for move in range(1, moves + 1):
        if stop[0]:
            break
        gains = np.where(free_from <= move, spins * fields, -np.inf)
        best = int(gains.argmax())
        gain = float(gains[best])
        if gain == -np.inf:
            continue
        if descending and gain <= 0:
            lowest, descending = spins.copy(), False
        rows.flip(fields, spins, best)
        energy -= 2 * gain
        free_from[best] = move + 1 + tenure + random.next(31) % max(6, tenure // 2)
        if energy < lowest_energy - 1e-12 * abs(lowest_energy):
            lowest_energy, descending = energy, True
    if not descending:
        spins[:] = lowest
    return lowest_energy


def colour(rows: Rows, colours: Array) -> None:
    """Write a colour per spin, from 0 on, each the first that no coupled spin before it has."""
    colours[:] = -1
    for i in range(len(rows)):
        beside = set(colours[rows.indices[rows.of(i)]].tolist())
        colours[i] = next(each for each in range(len(rows) + 1) if each not in beside)


def sweep_chip(rows: Rows, h: Array, spins: Array, schedule: Array, states: Array, threads: int = 1) -> None:
    """Metropolis sweeps of every read in place; `spins` is (reads, slices, n), a row of `schedule` (weight, tie, T)."""
    slices = spins.shape[1]
    for read, state in zip(spins, states, strict=True):
        random = Random(int(state))
        fields = np.stack([rows.fields(h, chain) for chain in read]).astype(np.float32)
        for weight, tie, temperature in schedule:
            for k in range(slices):
                before, after = read[k - 1], read[(k + 1) % slices]
                for i in range(len(rows)):
                    gain = 2 * read[k, i] * (weight * fields[k, i] - tie * (before[i] + after[i]))
                    if accepts(gain, temperature, random):
                        rows.flip(fields[k], read[k], i)


def reduce(rows: Rows, linear: Array, stop: Array) -> tuple[Array, ...]:
    """Nothing eliminated: rows and fields of the core, empty where that is all, then the parts of a `Reduction`."""
    places, none, three = np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 3))
    return places, none.astype(np.int32), none, none, np.arange(len(rows)), places, three.astype(np.int64), three, none


def complete_reduced(spins: Array, gone: Array, neighbours: Array, weights: Array, fields: Array) -> None:
    """Set the spins that `reduce` eliminated to their best values, the last first."""
    for place in range(len(gone) - 1, -1, -1):
        there = neighbours[place] >= 0
        field = fields[place] + (weights[place][there] * spins[neighbours[place][there]]).sum()
        spins[gone[place]] = -1 if field > 0 else 1


def find_groups(rows: Rows, linear: Array, stop: Array) -> tuple[Array, Array, int]:
    """No groups: moves within them are compiled alone, and a search without them is slower, not wrong."""
    return np.zeros(1, np.int64), np.zeros(0, np.int32), 0
