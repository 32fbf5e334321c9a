"""Groups of spins of which one is +1, in plain Python: found in the couplings, and moves that keep them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpsbgd_qubo.kernels.reference_sparse import Rows
from qpsbgd_qubo.kernels.sampling import Random, accepts

Array = np.ndarray[Any, Any]

ALIKE, TRIED, WEAK, MOST, SAMPLE = 1e-9, 4, 0.5, 8, 64  # as in groups.cpp


def _entry(rows: Rows, i: int, j: int) -> float:
    near = rows.indices[rows.of(i)]
    at = int(np.searchsorted(near, j))
    return float(rows.couplings[rows.of(i)][at]) if at < len(near) and near[at] == j else 0.0


def _alike(a: float, b: float) -> bool:
    return abs(a - b) <= ALIKE * b


def _cliques(rows: Rows, stop: Array) -> list[tuple[list[int], float]]:
    """Cliques of three spins or more, of couplings that are equal, and the coupling."""
    n, lone, work = len(rows), 0, 64 * len(rows) + 8 * len(rows.indices)
    found: list[tuple[list[int], float]] = []
    of: list[list[int]] = [[] for _ in range(n)]
    least = [0.0] * n  # couplings of every spin below which they are costs
    for i in range(n):
        if stop[0] or work < 0:
            break
        covered = {j for g in of[i] for j in found[g][0]}
        pairs = zip(rows.couplings[rows.of(i)].tolist(), rows.indices[rows.of(i)].tolist(), strict=True)
        near = sorted((-value, j) for value, j in pairs if value > 0)
        tried, first = 0, 0
        while first < len(near) and tried < TRIED:
            value, last = -near[first][0], first + 1
            if value < least[i]:
                break
            while last < len(near) and _alike(-near[last][0], value):
                last += 1
            count, alikes = last - first, sorted(j for _, j in near[first:last] if value >= least[j])
            first = last
            if count < 2:
                continue
            tried += 1
            for j in alikes:
                if j in covered or len(of[i]) >= MOST:
                    continue
                clique = [i, j]
                for k in alikes:
                    if k == j:
                        continue
                    fits = True
                    for member in clique[1:]:
                        work -= 1
                        fits = _alike(_entry(rows, member, k), value)
                        if not fits:
                            break
                    if fits:
                        clique.append(k)
                if len(clique) < 3:
                    continue
                for k in clique:
                    of[k].append(len(found))
                    covered.add(k)
                    least[k] = max(least[k], WEAK * (1 - ALIKE) * value)
                found.append((sorted(clique), value))
        lone += not of[i]
        if i + 1 == min(n, SAMPLE) and 2 * lone > i + 1:
            return []
    return found


def find_groups(rows: Rows, linear: Array, stop: Array) -> tuple[Array, Array, int]:
    """Cliques of equal couplings J > 0 that are "exactly one" by their fields.

    Returns:
        Where each group begins, and the end of the last; the spins of all groups, one after the other; and how many
        groups, the first ones, have no spin in common: the bases. No group at all unless these hold half the spins.
    """
    none = np.zeros(1, np.int64), np.zeros(0, np.int32), 0
    if not linear.any():
        return none
    found = _cliques(rows, stop)

    def span(g: int) -> int:
        members = found[g][0]
        return members[-1] - members[0] + 1 - len(members)

    best: list[int] = []
    most = 0
    for strongest in (False, True):
        taken: set[int] = set()
        bases = []
        for g in sorted(
            range(len(found)), key=lambda g: (-found[g][1] if strongest else span(g), -len(found[g][0]), g)
        ):
            if taken.isdisjoint(found[g][0]):
                taken.update(found[g][0])
                bases.append(g)
        if len(taken) > most:
            most, best = len(taken), bases
    penalties, fields = np.zeros(len(rows)), -2 * linear
    for members, value in found:
        penalties[members] += 2 * value
    for i in range(len(rows)):
        fields[i] += 2 * rows.couplings[rows.of(i)].sum()
    like = (fields > 0) & (fields <= 1.5 * penalties)
    exact = sum(int(like[found[g][0]].sum()) for g in best)
    if 2 * most < len(rows) or 2 * exact < most:
        return none
    ordered = [found[g][0] for g in (*best, *(g for g in range(len(found)) if g not in set(best)))]
    begins = np.concatenate([[0], np.cumsum([len(group) for group in ordered])]).astype(np.int64)
    return begins, np.concatenate(ordered).astype(np.int32), len(best)


class Groups:
    """A problem and its groups, made ready for moves."""

    def __init__(self, rows: Rows, linear: Array, begins: Array, members: Array, bases: int) -> None:
        if len(begins) < 2 or begins[0] != 0 or begins[-1] != len(members) or (np.diff(begins) <= 0).any():
            raise ValueError("begins must ascend from 0 to the number of members")
        if not 0 <= bases < len(begins):
            raise ValueError("there must be at most as many bases as groups")
        if len(members) and (members.min() < 0 or members.max() >= len(rows)):
            raise ValueError(f"members must be from 0 to {len(rows) - 1}")
        self.rows, self.linear = rows, linear.copy()
        self.groups = [members[begins[g] : begins[g + 1]].tolist() for g in range(len(begins) - 1)]
        self.bases = bases
        self.base_of = [-1] * len(rows)
        self.others: list[list[int]] = [[] for _ in range(len(rows))]
        for g, group in enumerate(self.groups):
            for i in group:
                if g >= bases:
                    self.others[i].append(g)
                elif self.base_of[i] >= 0:
                    raise ValueError("bases must have no spin in common")
                else:
                    self.base_of[i] = g
        random = Random(1)
        state = _State(self, np.full(len(rows), -1, np.int8), random)
        sizes = sorted(abs(state.gain(i, random)[0]) for i in range(len(rows)))
        sizes = [size for size in sizes if 0 < size < math.inf]
        self.scale = sizes[len(sizes) // 2] if sizes else 0.0

    def partner(self, spin: int, base: int) -> int:
        """The spin of a base that shares a group with a spin; −1: none."""
        beside = (i for g in self.others[spin] for i in sorted(self.groups[g]) if self.base_of[i] == base)
        return next(beside, -1)


class _State:
    """One chain: every base has one spin up; of the other groups, which are."""

    def __init__(self, groups: Groups, spins: Array, random: Random) -> None:
        self.groups, self.spins = groups, spins
        self.up = [-1] * groups.bases
        for g in range(groups.bases):  # groups with one spin up stay as they are
            ups = [i for i in groups.groups[g] if spins[i] > 0]
            spins[groups.groups[g]] = -1
            if len(ups) == 1:
                self.up[g] = ups[0]
        spins[[i for i in self.up if i >= 0]] = 1
        for g in range(groups.bases):  # in others, one that disturbs the fewest
            if self.up[g] < 0:
                members = groups.groups[g]
                shift = random.next(31) % len(members)
                turned = members[shift:] + members[:shift]
                self.up[g] = min(turned, key=lambda i: sum(len(self.ups(other)) for other in groups.others[i]))
                spins[self.up[g]] = 1
        self.fields = groups.rows.fields(groups.linear, spins)

    def ups(self, group: int) -> list[int]:
        """The spins of a group that are up."""
        return [i for i in self.groups.groups[group] if self.spins[i] > 0]

    def gain(self, i: int, random: Random) -> tuple[float, list[int]]:
        """What a move that ends with spin i up lowers the energy by, and the spins that it flips, up to four.

        A spin in no base is flipped. Else the one that is up in its base goes down; and where another spin that is up
        in a group of i can make room, because its base has a spin in a group of the one that goes down, it may do so.
        """
        groups, fields, rows = self.groups, self.fields, self.groups.rows
        g = groups.base_of[i]
        if g < 0:
            return float(2 * self.spins[i] * fields[i]), [i]
        down = self.up[g]
        if down == i:
            return -math.inf, [i]
        shift = float(2 * (fields[down] - fields[i]) + 4 * _entry(rows, down, i))
        choices = groups.others[i]
        if not choices:
            return shift, [i, down]
        up = self.ups(choices[random.next(31) % len(choices) if len(choices) > 1 else 0])
        if len(up) != 1 or groups.base_of[up[0]] in (-1, g):
            return shift, [i, down]
        other = up[0]
        instead = groups.partner(down, groups.base_of[other])
        if instead < 0 or instead == other:
            return shift, [i, down]
        swap = shift + 2 * float(fields[other] - fields[instead]) + 4 * _entry(rows, other, instead)
        swap -= 4 * (_entry(rows, down, other) + _entry(rows, i, instead))
        swap += 4 * (_entry(rows, down, instead) + _entry(rows, i, other))
        return (shift, [i, down]) if swap < shift else (swap, [i, down, other, instead])

    def make(self, flips: list[int]) -> None:
        """Flip these spins."""
        for i in flips:
            self.groups.rows.flip(self.fields, self.spins, i)
            if self.groups.base_of[i] >= 0 and self.spins[i] > 0:
                self.up[self.groups.base_of[i]] = i


def _energy(groups: Groups, spins: Array) -> float:
    return float((spins * (groups.linear + groups.rows.fields(groups.linear, spins))).sum() / 2)


def anneal_groups(
    groups: Groups, spins: Array, sites: Array, temperatures: Array, chains: int, fresh: bool, state: int, stop: Array
) -> float:
    """Chains of Metropolis sweeps over `sites`, one per temperature; ends with the lowest, whose energy it returns.

    Every move keeps one spin of each base up. Chains begin with `spins`, or, unless they are fresh, with the lowest so
    far; where no spin of a base is up, or several, a random one becomes it.
    """
    random, start, lowest = Random(state), spins.copy(), math.inf
    for k in range(chains):
        if k and stop[0]:
            break
        current = start.copy() if fresh or k == 0 else spins.copy()
        chain = _State(groups, current, random)
        for temperature in temperatures:
            if stop[0]:
                break
            for i in sites:
                gain, flips = chain.gain(int(i), random)
                if accepts(gain, temperature, random):
                    chain.make(flips)
        energy = _energy(groups, current)
        if energy <= lowest:
            lowest = energy
            spins[:] = current
    return lowest


def tabu_groups(groups: Groups, spins: Array, moves: int, tenure: int, state: int, stop: Array) -> float:
    """Make the best shift within a base, or flip of a spin in none, that was not undone in the last moves, uphill too.

    Returns:
        The energy of the spins it ends with, the lowest met.
    """
    random = Random(state)
    chain = _State(groups, spins, random)
    energy = lowest_energy = _energy(groups, spins)
    free_from, lowest = np.zeros(len(spins), np.int64), spins.copy()
    strengths = [_entry(groups.rows, group[0], group[1]) if len(group) > 1 else 0.0 for group in groups.groups]
    for move in range(1, moves + 1):
        if stop[0]:
            break
        enough = energy - lowest_energy + 1e-12 * abs(lowest_energy)  # a new low is never tabu
        shift = random.next(31) % groups.bases if groups.bases else 0
        order = [(k + shift) % groups.bases for k in range(groups.bases)]
        looks = [
            (i, float(2 * chain.fields[chain.up[g]] + 4 * strengths[g] - 2 * chain.fields[i]))
            for g in order
            for i in groups.groups[g]
            if i != chain.up[g]
        ]
        looks += [(i, float(2 * spins[i] * chain.fields[i])) for i, g in enumerate(groups.base_of) if g < 0]
        looks = [(i, gain) for i, gain in looks if free_from[i] <= move or gain > enough]
        if not looks:
            continue
        pick, _ = max(looks, key=lambda look: look[1])
        g = groups.base_of[pick]
        flips = [pick] if g < 0 else [pick, chain.up[g]]
        for i in flips:
            energy -= 2 * float(spins[i] * chain.fields[i])
            chain.make([i])
        free_from[flips[-1]] = move + 1 + tenure + random.next(31) % max(6, tenure // 2)
        if energy < lowest_energy - 1e-12 * abs(lowest_energy):
            lowest_energy = energy
            lowest = spins.copy()
    spins[:] = lowest
    return lowest_energy
