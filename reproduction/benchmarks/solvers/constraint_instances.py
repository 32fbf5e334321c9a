"""Problems with constraints as QUBOs, as people write them: a cost plus penalties; the same name, the same problem.

Bits are spins: +1 is 1. Penalties of assignments and tours are large enough that the optimum keeps all constraints.
"""

from functools import cached_property, partial

import numpy as np

from qpsbgd_qubo import SparseIsing

DRAW = 1
"""Number of the draw of all that is random; the search was tuned on the instances of draw 0."""


class Instance:
    """A QUBO that grows term by term and remembers its constraints.

    Args:
        n: Number of bits.
        optimum: The least energy where it is known.
    """

    def __init__(self, n, optimum=None):
        self.n, self.optimum, self.offset = n, optimum, 0.0
        self.entries, self.sums, self.conflicts = [], [], []

    def add(self, rows, cols, values):
        self.entries.append([part.ravel() for part in np.broadcast_arrays(rows, cols, np.asarray(values, float))])

    def add_square(self, bits, total, penalty, weights=1.0):
        """penalty · (Σ weights · bits − total)²."""
        weights = np.broadcast_to(np.asarray(weights, float), len(bits))
        self.add(bits, bits, penalty * weights * (weights - 2 * total))
        i, j = np.triu_indices(len(bits), 1)
        self.add(bits[i], bits[j], 2 * penalty * weights[i] * weights[j])
        self.offset += penalty * total**2

    def equal(self, bits, total, penalty, weights=1.0):
        """The same as a constraint."""
        self.add_square(bits, total, penalty, weights)
        self.sums.append((bits, weights, total))

    def forbid(self, rows, cols, penalty):
        """penalty · Σ x_row x_col."""
        self.add(rows, cols, penalty)
        self.conflicts.append((rows, cols))

    def feasible(self, bits):
        """Whether bits (n,) keep all constraints."""
        kept = all(np.isclose((bits[where] * weights).sum(), total) for where, weights, total in self.sums)
        return bool(kept and not any((bits[rows] * bits[cols]).any() for rows, cols in self.conflicts))

    @cached_property
    def problem(self):
        rows, cols, values = (np.concatenate(parts) for parts in zip(*self.entries, strict=True))
        return SparseIsing.from_qubo(self.n, rows, cols, values, self.offset)


def generator_of(*key):
    """The source of random numbers of an instance."""
    return np.random.default_rng([*key[:-1], key[-1] + 100 * DRAW])


def symmetric(matrix):
    upper = np.triu(matrix, 1)
    return upper + upper.T


def assignment(flows, distances):
    """Quadratic assignment: facilities to places, Σ flow · distance over ordered pairs."""
    n = len(flows)
    model, bits = Instance(n * n), np.arange(n * n).reshape(n, n)
    i, j = np.nonzero(np.triu(flows, 1))
    model.add(bits[i][:, :, None], bits[j][:, None, :], 2 * flows[i, j][:, None, None] * distances)
    for group in (*bits, *bits.T):
        model.equal(group, 1, float(flows.sum(1).max() * distances.max()))
    return model


def like_nugent(height, width):
    """Distances between the fields of a grid, as in Nugent's problems."""
    n = height * width
    flows = generator_of(height, width, 5).choice([0, 0, 0, 1, 2, 3, 4, 5, 5, 6, 10], (n, n))
    rows, cols = np.divmod(np.arange(n), width)
    return assignment(symmetric(flows), np.abs(rows[:, None] - rows) + np.abs(cols[:, None] - cols))


def random_assignment(n):
    return assignment(*(symmetric(generator_of(n, k, 6).integers(0, 100, (n, n))) for k in (0, 1)))


def tour(n):
    """The shortest closed tour of random cities: city c at time t."""
    places = 1000 * generator_of(n, 7).random((n, 2))
    distances = np.round(np.linalg.norm(places[:, None] - places, axis=2))
    model, bits = Instance(n * n), np.arange(n * n).reshape(n, n)
    i, j = np.nonzero(distances)
    for t in range(n):
        model.add(bits[i, t], bits[j, (t + 1) % n], distances[i, j])
    for group in (*bits, *bits.T):
        model.equal(group, 1, float(round(1.2 * distances.max())))
    return model


def colouring(n, edges, colours, optimum=None):
    """As few edges as possible between nodes of one colour."""
    model, bits = Instance(n * colours, optimum), np.arange(n * colours).reshape(n, colours)
    model.forbid(bits[edges[0]], bits[edges[1]], 1)
    for group in bits:
        model.equal(group, 1, 1.0 * max(1, np.bincount(np.concatenate(edges)).max() // colours))
    return model


def random_colouring(n, density, colours):
    return colouring(n, np.nonzero(np.triu(generator_of(n, 8).random((n, n)) < density, 1)), colours)


def planted_colouring(n, density, colours):
    generator = generator_of(n, 9)
    kinds = generator.permutation(np.arange(n) % colours)
    edges = np.nonzero(np.triu((generator.random((n, n)) < density) & (kinds[:, None] != kinds), 1))
    return colouring(n, edges, colours, optimum=0)


def schedule(jobs, machines, horizon):
    """A job shop: every operation begins in one slot; the sum of the times at which jobs end is least."""
    generator = generator_of(jobs, machines, 10)
    lengths = generator.integers(1, 4, (jobs, machines))
    order = np.stack([generator.permutation(machines) for _ in range(jobs)])
    operations = [(j, k, order[j, k], lengths[j, k]) for j in range(jobs) for k in range(machines)]
    model = Instance(len(operations) * horizon)
    bits = np.arange(model.n).reshape(-1, horizon)
    slots, penalty = np.arange(horizon), float(2 * horizon)
    first, second = slots[:, None], slots
    for place, (j, k, machine, length) in enumerate(operations):
        model.equal(bits[place], 1, penalty)
        late = slots > horizon - length
        model.forbid(bits[place][late], bits[place][late], penalty)
        if k == machines - 1:
            model.add(bits[place], bits[place], slots + length)
        for other, (j2, k2, machine2, length2) in enumerate(operations[place + 1 :], place + 1):
            too_early = (second < first + length) & (j == j2 and k2 == k + 1)
            overlapping = (first < second + length2) & (second < first + length) & (machine == machine2)
            ours, theirs = np.nonzero(too_early | overlapping)
            model.forbid(bits[place][ours], bits[other][theirs], penalty)
    return model


def sudoku(size, clues):
    """A square of size² × size² digits, of which some are given and those that cannot be are left out."""
    n, generator = size * size, generator_of(size, clues, 11)
    rows, cols = np.divmod(np.arange(n * n), n)
    mixed = [
        (generator.permutation(size)[:, None] * size + generator.permuted(np.tile(np.arange(size), (size, 1)), axis=1))
        for _ in range(2)
    ]
    base = (size * (np.arange(n) % size) + np.arange(n) // size)[:, None] + np.arange(n)
    full = generator.permutation(n)[(base % n)[np.ix_(mixed[0].ravel(), mixed[1].ravel())]].ravel()
    blocks = rows // size * size + cols // size
    given = generator.permutation(n * n)[:clues]
    every = (("row", rows), ("column", cols), ("block", blocks))
    taken = {(name, lines[cell], full[cell]) for name, lines in every for cell in given}
    bits, groups = 0, {}
    for cell in np.setdiff1d(np.arange(n * n), given):
        for digit in range(n):
            wanted = [(name, lines[cell], digit) for name, lines in every]
            if taken.isdisjoint(wanted):
                for key in (("cell", cell), *wanted):
                    groups.setdefault(key, []).append(bits)
                bits += 1
    model = Instance(bits, optimum=0)
    for group in groups.values():
        model.equal(np.array(group), 1, 1)
    return model


def knapsack(n, largest):
    """The most valuable items that a knapsack holds, slack bits for what stays empty."""
    generator = generator_of(n, largest, 12)
    weights = generator.integers(largest // 10 + 1, largest + 1, n)
    values = np.round(weights * generator.uniform(0.5, 1.5, n) * 100 / largest) + 1
    capacity = int(weights.sum() // 2)
    coins = [1 << k for k in range(capacity.bit_length() - 1)]
    coins.append(capacity - sum(coins))
    model = Instance(n + len(coins))
    model.add(np.arange(n), np.arange(n), -values)
    model.equal(np.arange(model.n), capacity, float(values.max()), np.concatenate([weights, coins]))
    return model


def partition(n, bits):
    """Numbers in two parts of sums as equal as possible."""
    numbers = generator_of(n, bits, 13).integers(1 << (bits - 1), 1 << bits, n).astype(float)
    model = Instance(n)
    model.add_square(np.arange(n), numbers.sum() / 2, 4.0, numbers)  # no constraint: every answer is valid
    return model


CLASSES = {
    "assignment": {f"grid {h} × {w}": partial(like_nugent, h, w) for h, w in ((3, 4), (4, 4), (5, 6))}
    | {f"random {n}": partial(random_assignment, n) for n in (15, 20)},
    "tour": {f"{n} cities": partial(tour, n) for n in (10, 15, 18, 21, 25, 29)},
    "colouring": {f"random {n}, {k} colours": partial(random_colouring, n, 0.5, k) for n, k in ((60, 8), (125, 17))}
    | {
        f"planted {n}, {k} colours": partial(planted_colouring, n, p, k)
        for n, p, k in ((150, 0.08, 4), (300, 0.025, 3))
    },
    "schedule": {
        f"{j} jobs, {m} machines": partial(schedule, j, m, t) for j, m, t in ((4, 3, 16), (6, 4, 24), (8, 5, 32))
    },
    "sudoku": {
        f"{n * n} × {n * n}, {clues} clues": partial(sudoku, n, clues) for n, clues in ((3, 24), (3, 30), (4, 110))
    },
    "knapsack": {
        f"{n} items to {largest}": partial(knapsack, n, largest)
        for n, largest in ((30, 50), (50, 100), (100, 1000), (200, 100), (60, 1_000_000))
    },
    "partition": {
        f"{n} numbers, {bits} bits": partial(partition, n, bits)
        for n, bits in ((30, 20), (60, 16), (100, 20), (200, 18))
    },
}
"""Makers of instances by class and name."""
