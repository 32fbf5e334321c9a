"""Dense problems whose couplings are products a_i a_j: number partitioning, subset sums, one knapsack with slack bits.

Then E = ½ (aᵀg − t)² + vᵀg + constant. Spins without a value v are numbers that shall add up: half of up to thirty of
them at a time are met in the middle with the other half, which finds the best of all their 2³⁰ sums. Spins with a value
are items: of the sums and values of these, only those are kept that no other beats in both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpsbgd_qubo.kernels import Array

ALIKE = 1e-9  # relative difference up to which couplings are equal
SAME = (1e-15, 1e-12, 1e-9)
"""Relative differences up to which fields are in one ratio to weights: values of items may be far below penalties."""
HALF = 15  # spins of which all sums are made, twice: about 5 ms
TRIES, REPEATS = 40, 3
"""Sets of numbers that are tried out, and how often the least miss may come before it is believed to be the least."""
MOST_SUMS, WORK = 20_000, 2_000_000
"""Sums of items that are kept, evenly spaced ones of more; over all items no more than WORK, which takes 0.2 s."""
CANDIDATES = 5  # best sums of items that are completed by slack


@dataclass(frozen=True, eq=False)
class Sums:
    """A problem ½ (aᵀg − t)² + vᵀg."""

    weights: Array  # a, (n,)
    target: float  # t
    values: Array  # v, (n,); zero for numbers that shall only add up

    @classmethod
    def of(cls, couplings: Array, linear: Array) -> Sums | None:
        """The problem with these couplings (n, n), zero on the diagonal, and fields (n,); None if it is none such."""
        n = len(linear)
        if n < 3 or not (couplings[0, 1:].all() and couplings[1, 2]):
            return None
        with np.errstate(over="ignore"):
            square = couplings[0, 1] * couplings[0, 2] / couplings[1, 2]
        if not 0 < square < np.inf:
            return None
        weights = couplings[0] / np.sqrt(square)
        weights[0] = np.sqrt(square)
        for i in range(n):  # row by row: no second matrix, and others are seen to be none such after a few
            expected = weights[i] * weights
            expected[i] = 0
            if (np.abs(couplings[i] - expected) > ALIKE * np.abs(expected)).any():
                return None
        ratios = -linear / weights
        for same in SAME:
            order = np.argsort(ratios)
            steps = np.diff(ratios[order]) > same * np.abs(ratios).max()
            numbers = max(np.split(order, np.flatnonzero(steps) + 1), key=len)
            if len(numbers) >= 3:
                break
        else:
            return None
        target = float(ratios[numbers[np.abs(weights[numbers]).argmax()]])
        values = linear + target * weights
        values[numbers] = 0
        return cls(weights, target, values)

    def energy(self, spins: Array) -> float:
        """The energy, up to a constant."""
        return float((self.weights @ spins - self.target) ** 2 / 2 + self.values @ spins)

    def solve(self, *, seed: int, stop: Array) -> Array:
        """The best spins found, int8, (n,)."""
        generator, best = np.random.default_rng(seed), (np.inf, np.ones(len(self.weights), np.int8))
        items = np.flatnonzero(self.values)
        numbers = np.flatnonzero(self.values == 0)
        for chosen in self._item_choices(items, float(np.abs(self.weights[numbers]).sum()), stop):
            if stop[0] and best[0] < np.inf:
                break
            spins = np.ones(len(self.weights), np.int8)
            spins[items] = chosen
            missing = self.target - float(self.weights[items] @ chosen)
            spins[numbers] = signs_for_sum(self.weights[numbers], missing, generator, stop)
            best = min(best, (self.energy(spins), spins), key=lambda pair: pair[0])
        return best[1]

    def _item_choices(self, items: Array, slack: float, stop: Array) -> list[Array]:
        """The best choices of items, each a vector ±1, if slack can make any sum up to ± its whole."""
        weights, signs = np.abs(self.weights[items]), np.sign(self.weights[items])
        costs = 2 * self.values[items] * signs
        sums, totals = np.array([-weights.sum()]), np.zeros(1)
        most = min(MOST_SUMS, max(CANDIDATES, WORK // max(1, len(items))))
        steps: list[tuple[Array, Array]] = []
        for weight, cost in zip(weights, costs, strict=True):
            count = len(sums)
            sums, totals = np.concatenate([sums, sums + 2 * weight]), np.concatenate([totals, totals + cost])
            order = np.lexsort((totals, sums))
            before = np.concatenate([[np.inf], np.minimum.accumulate(totals[order])[:-1]])
            kept = order[totals[order] < before]
            kept = kept[sums[kept] <= self.target + slack + weights.max()]
            if len(kept) > most:
                kept = kept[np.linspace(0, len(kept) - 1, most).astype(int)]
            if stop[0]:
                kept = kept[:1]
            steps.append((kept % count, kept >= count))
            sums, totals = sums[kept], totals[kept]
        missed = np.maximum(0, np.abs(self.target - sums) - slack)
        best = np.argsort(missed**2 / 2 + totals)[:CANDIDATES]
        chosen = []
        for place in best:
            taken = np.zeros(len(items), bool)
            for k in range(len(items) - 1, -1, -1):
                taken[k] = steps[k][1][place]
                place = steps[k][0][place]
            chosen.append(np.where(taken, signs, -signs))
        return chosen


def signs_for_sum(numbers: Array, target: float, generator: np.random.Generator, stop: Array) -> Array:
    """Signs ±1 with which the numbers add up to about the target."""
    n, tiny, repeats = len(numbers), 1e-14 * np.abs(numbers).sum(), 0
    best, least = np.where(numbers > 0, 1, -1) * (1 if target > 0 else -1), np.inf
    for _ in range(TRIES if n > 2 * HALF else 1):
        if stop[0]:
            break
        order = generator.permutation(n)
        inner, outer = order[: 2 * HALF], order[2 * HALF :]
        signs, rest = np.ones(n, int), target
        for i in outer[np.argsort(-np.abs(numbers[outer]))]:  # the largest first, each so that the rest shrinks
            signs[i] = 1 if rest * numbers[i] > 0 else -1
            rest -= signs[i] * numbers[i]
        left, right = np.array_split(inner, 2)
        sums, others = _signed_sums(numbers[left]), _signed_sums(numbers[right])
        ranks = np.argsort(others)
        near = np.searchsorted(others[ranks], rest - sums)
        pairs = [ranks[np.clip(near + shift, 0, len(others) - 1)] for shift in (-1, 0)]
        misses = np.abs(rest - sums - np.stack([others[pair] for pair in pairs]))
        which, code = np.unravel_index(misses.argmin(), misses.shape)
        for part, bits in ((left, code), (right, pairs[which][code])):
            signs[part] = np.where(int(bits) >> np.arange(len(part)) & 1, 1, -1)
        miss = abs(target - float(numbers @ signs))
        repeats = repeats + 1 if abs(miss - least) <= tiny else 0 if miss < least else repeats
        if miss < least:
            best, least = signs, miss
        if least <= tiny or repeats == REPEATS:
            break
    return best


def _signed_sums(numbers: Array) -> Array:
    """Σ ± numbers for all signs; bit k of a place is set where number k counts positively."""
    sums = np.zeros(1)
    for number in numbers:
        sums = np.concatenate([sums - number, sums + number])
    return sums
