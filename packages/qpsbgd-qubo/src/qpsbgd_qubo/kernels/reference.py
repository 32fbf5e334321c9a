"""The solvers' kernels in plain Python, for reading, for testing, and for machines without a compiler.

Functions have the names, arguments and answers of the compiled ones; the number of threads is ignored. What searches
can do without is compiled alone: moves within one-hot groups, the sphere decoder, the reduction of sparse problems.

Arrays hold one column of a family per row: `spins` and `fields` have shape (m, n). `couplings` is 2 Q with a zero
diagonal, `fields` = s + couplings · spins; a flip of spin i changes the energy by −2 · spins[i] · fields[i].
"""

# ruff: noqa: F401  # the kernels of the other files are this module's too

from __future__ import annotations

from typing import Any

import numpy as np

from qpsbgd_qubo.kernels.reference_exact import Array, complete, decode, exhaust, fix_dominated, fix_spins
from qpsbgd_qubo.kernels.reference_sparse import (
    Random,
    Rows,
    accepts,
    anneal_lanes,
    anneal_sparse,
    colour,
    complete_reduced,
    find_groups,
    harvest,
    reduce,
    sweep_chip,
    tabu_sparse,
)

WON_BACK = 4.0  # largest cost of a flip, in units of its diagonal, that others may win back
COPY_UP_TO = 0.8  # share of open spins up to which a column is searched without those that are fixed


def search(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: Array,
    flips: Array,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
    stop: Array,
    threads: int = 1,
) -> None:
    """Lower every column in place: best-improvement descent, then tabu moves; writes the flips of each, (m,), int64.

    A gain of up to `threshold` (m,) may be a rounding error. `max_flips` limits the flips per column, tabu moves
    included. A column ends after `patience` moves without a new lowest energy (0: descent alone), and with its best
    spins so far once `stop` is set. A flipped spin stays tabu for `tenure` moves and up to half as many more, at least
    5; `seed` decides how many.
    """
    for j in range(len(spins)):
        held = np.zeros(spins.shape[1], bool)
        limits = (max_flips, patience, tenure, j, seed)
        flips[j] = _lower(couplings, fields[j], spins[j], threshold[j], limits, held, stop)[0]


def _lower(
    couplings: Array, fields: Array, spins: Array, threshold: float, limits: tuple[int, ...], held: Array, stop: Array
) -> tuple[int, float]:
    """Flips and the energy gained, at most 0; spins that are `held` are not flipped."""
    max_flips, patience, tenure, column, seed = limits
    flips, energy = 0, 0.0
    while flips < max_flips and not stop[0]:
        gains = np.where(held, -np.inf, spins * fields)
        best = int(np.argmax(gains))
        if not gains[best] > threshold:
            break
        _flip(couplings, fields, spins, best)
        flips, energy = flips + 1, energy - 2 * float(gains[best])
    if not patience:
        return flips, energy
    lowest, lowest_energy, free_from = spins.copy(), energy, np.zeros(len(spins))
    descending, move, last = False, 0, patience
    while move < last and flips < max_flips and not stop[0]:
        move += 1
        gains = np.where(held | (free_from > move), -np.inf, spins * fields)
        best = int(np.argmax(gains))
        if gains[best] == -np.inf:
            continue
        # The spins of a new low are kept where it ends: before the first move that does not lower the energy further.
        if descending and gains[best] <= 0:
            lowest, descending = spins.copy(), False
        _flip(couplings, fields, spins, best)
        flips, energy = flips + 1, energy - 2 * float(gains[best])
        free_from[best] = move + 1 + tenure_of(move, column, seed, tenure)
        if energy < lowest_energy - 2 * float(threshold):
            lowest_energy, descending, last = energy, True, move + patience
    if not descending:
        for k in np.flatnonzero(spins != lowest):
            _flip(couplings, fields, spins, int(k))
    return flips, lowest_energy


def _flip(couplings: Array, fields: Array, spins: Array, i: int) -> None:
    fields -= 2 * spins[i] * couplings[i]
    spins[i] = -spins[i]


def tenure_of(move: int, column: int, seed: int, tenure: int) -> int:
    """Moves for which the spin flipped in this move stays tabu: a hash, the same on every device."""
    mixed = (move * 2654435761 + column * 2246822519 + seed * 3266489917) % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return tenure + (mixed >> 13) % max(6, tenure // 2)


def anneal(
    couplings: Array,
    fields: Array,
    spins: Array,
    sites: Array,
    temperatures: Array,
    states: Array,
    sweeps: Array,
    stop: Array,
    threads: int = 1,
) -> None:
    """Metropolis sweeps of every column in place over `sites`, one per temperature; writes the whole sweeps made.

    `states` (m,) are the random numbers' seeds; int32 `sites` and int64 `sweeps` (m,).
    """
    for j, state in enumerate(states):
        random, sweeps[j] = Random(int(state)), 0
        for temperature in temperatures:
            if stop[0]:
                break
            for i in sites:
                if accepts(2 * spins[j, i] * fields[j, i], temperature, random):
                    _flip(couplings, fields[j], spins[j], i)
            sweeps[j] += 1


def anneal_slices(
    couplings: Array,
    fields: Array,
    spins: Array,
    ties: Array,
    scale: Array,
    temperature: float,
    states: Array,
    threads: int = 1,
) -> None:
    """Path-integral sweeps of every column in place, one per tie between slices; `spins` and `fields` are (m, P, n).

    Energies of column j are in units of scale[j], which includes the number of slices.
    """
    slices, n = spins.shape[1:]
    heat = spins.dtype.type(temperature)
    for j, state in enumerate(states):
        random, weight = Random(int(state)), 1 / scale[j]
        for tie in ties:
            for k in range(slices):
                before, after = spins[j, k - 1], spins[j, (k + 1) % slices]
                for i in range(n):
                    gain = 2 * spins[j, k, i] * (weight * fields[j, k, i] - tie * (before[i] + after[i]))
                    if accepts(gain, heat, random):
                        _flip(couplings, fields[j, k], spins[j, k], i)


def flip_marked(couplings: Array, fields: Array, spins: Array, marked: Array, threads: int = 1) -> None:
    """Flip every spin (m, n) that is marked; fields follow."""
    for field, spin, own in zip(fields, spins, marked, strict=True):
        for i in np.flatnonzero(own):
            _flip(couplings, field, spin, int(i))


def fields_of(couplings: Array, linear: Array, spins: Array, fields: Array) -> None:
    """Write the local fields of one column."""
    fields[:] = linear + np.einsum("ij,j->i", couplings, spins)


def search_layer(
    couplings: Array,
    diagonal: Array,
    linear: Array,
    coupling_sums: Array,
    starts: Array,
    fields: Array,
    threshold: Array,
    found: Array,
    patience: int,
    tenure: int,
    kicks: int,
    forced: int,
    seed: int,
    threads: int = 1,
) -> None:
    """Write the best spins `found` for every column, (m, n), from several starts.

    `starts` and `fields` (k, m, n) are overwritten. `diagonal` (n,) is that of Q, `linear` (m, n) is s,
    `coupling_sums` (n,) are the sums of the rows of |couplings|; `threshold`, `patience` and `tenure` are those of
    `search`. Where the best spins differ from the first start in more than an eighth, a tenth of them is flipped and
    the search repeated, `kicks` times. Then a spin of the best is flipped and held while the others follow, `forced`
    times.
    """
    for j in range(len(linear)):
        limits = (patience, tenure, kicks, forced, seed, j)
        column = (linear[j], coupling_sums, starts[:, j], fields[:, j], threshold[j])
        found[j] = _search_one(couplings, diagonal, column, limits)


def _search_one(couplings: Array, diagonal: Array, own: tuple[Any, ...], limits: tuple[int, ...]) -> Array:
    """The best spins found for one column, linear (n,), from `starts` (k, n)."""
    linear, coupling_sums, starts, fields, threshold = own
    n, (patience, tenure, kicks, forced, seed, column) = len(linear), limits
    never, most = np.zeros(1, np.uint8), 100 * (n + patience) + 1000
    fixed = fix_spins(couplings, linear, coupling_sums, lambda _, field, reach: field > reach + threshold, never)
    if (fixed == 0).sum() > COPY_UP_TO * n:
        fixed[:] = 0
    places = np.flatnonzero(fixed == 0)
    core, count = np.ascontiguousarray(couplings[np.ix_(places, places)]), len(places)
    first, best, distance = starts[0].copy(), (np.inf, starts[0][places], fields[0][places]), 0

    def lowered(energy: float, spins: Array, local: Array, patience: int, seed: int, held: int = -1) -> Any:
        gained = 0.0
        if len(spins):
            limits = (most, patience, tenure, column, seed)
            gained = _lower(core, local, spins, threshold, limits, np.arange(count) == held, never)[1]
        return energy + gained, spins, local

    for trial in range(len(starts) + kicks):
        if trial < len(starts):
            spins, local = starts[trial], fields[trial]
            energy = float((spins * (linear + local) / 2).astype(np.float64).sum())
            for i in np.flatnonzero((fixed != 0) & (fixed != spins)):
                energy -= 2 * float(spins[i] * local[i])
                _flip(couplings, local, spins, int(i))
            spins, local = spins[places], local[places]
        else:
            if trial == len(starts) and 8 * distance <= n:
                break
            energy, spins, local = best[0], best[1].copy(), best[2].copy()
            random = Random((seed + 1000003 * column + trial) * 0x9E3779B97F4A7C15 % 2**64 | 1)
            for _ in range(count // 10 + 1):
                site = random.next(31) % count
                energy -= 2 * float(spins[site] * local[site])
                _flip(core, local, spins, site)
        answer = lowered(energy, spins, local, patience, seed + trial)
        if answer[0] < best[0]:
            best, distance = answer, int((answer[1] != first[places]).sum())
    tried = np.zeros(count, bool)
    for _ in range(forced):
        worth = np.where(tried, 0, -2.0 * best[1] * best[2] - WON_BACK * diagonal[places])
        if not count or worth.min() >= 0:
            break
        site = int(worth.argmin())
        tried[site] = True
        energy, spins, local = best[0], best[1].copy(), best[2].copy()
        energy -= 2 * float(spins[site] * local[site])
        _flip(core, local, spins, site)
        answer = lowered(energy, spins, local, 0, seed, held=site)
        if answer[0] < best[0] - threshold:
            energy, spins, local = answer
            best = lowered(energy, spins, local, patience, seed)
    fixed[places] = best[1]
    return fixed


def relax(twice: Array, slopes: Array, points: Array, passes: int, threads: int = 1) -> None:
    """Coordinate descent of every row of `points` (m, n) in the box; `slopes` = s + 2Ax are kept up to date."""
    for point, slope in zip(points, slopes, strict=True):
        for _ in range(passes):
            moved = False
            for i in range(len(point)):
                change = np.clip(point[i] - slope[i] / twice[i, i], -1, 1) - point[i]
                if abs(change) > 0.01:
                    point[i] += change
                    slope += change * twice[i]
                    moved = True
            if not moved:
                break


def round_down(factor: Array, targets: Array, spins: Array, threads: int = 1) -> None:
    """Set `spins` (m, n) from the last to the first; `factor` is Rᵀ and `targets` = R x, which is used up."""
    for target, spin in zip(targets, spins, strict=True):
        for i in range(len(spin) - 1, -1, -1):
            spin[i] = 1 if target[i] >= 0 else -1
            target[:i] -= spin[i] * factor[i, :i]
