import itertools

import numpy as np
import pytest

from qpsbgd_qubo.kernels import NEVER
from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio
from qpsbgd_qubo.solvers.portfolio.sums import Sums, signs_for_sum
from qpsbgd_qubo.sparse import SparseIsing


def squared(weights, target, values):
    """½ (aᵀg − t)² + vᵀg as a problem, dense: couplings and fields."""
    weights = np.asarray(weights, float)
    couplings = np.outer(weights, weights)
    np.fill_diagonal(couplings, 0)
    return couplings, values - target * weights


def lowest(couplings, linear):
    spins = np.array(list(itertools.product((-1, 1), repeat=len(linear))))
    return min((spins @ couplings * spins).sum(1) / 2 + spins @ linear)


def energy(couplings, linear, spins):
    return spins @ couplings @ spins / 2 + linear @ spins


@pytest.mark.parametrize(("seed", "target"), [(0, 0.0), (1, 7.0), (2, 0.0), (3, 7.0)])
def test_numbers_are_parted_as_evenly_as_possible(seed, target):
    generator = np.random.default_rng(seed)
    weights = generator.integers(1, 1000, 12) * generator.choice([-1, 1], 12)
    couplings, linear = squared(weights, target, np.zeros(12))
    sums = Sums.of(couplings, linear)
    assert not sums.values.any()
    spins = sums.solve(seed=0, stop=NEVER)
    assert energy(couplings, linear, spins) == pytest.approx(lowest(couplings, linear))


@pytest.mark.parametrize("seed", range(4))
def test_a_knapsack_with_slack_bits_is_packed_as_well_as_possible(seed):
    generator = np.random.default_rng(seed)
    weights, values = generator.integers(3, 12, 8), generator.integers(1, 20, 8)
    capacity = int(weights.sum() // 2)
    coins = [1, 2, 4, 8, capacity - 15]
    every = np.concatenate([weights, coins])
    # Bits: 25 (Σ wx − C)² − Σ vx, as spins.
    n = len(every)
    rows, cols = np.triu_indices(n)
    entries = np.where(rows == cols, 25 * every[rows] * (every[rows] - 2 * capacity), 50 * every[rows] * every[cols])
    entries[rows == cols] -= np.concatenate([values, np.zeros(5, int)])
    problem = SparseIsing.from_qubo(n, rows, cols, entries.astype(float), 25.0 * capacity**2)
    best = max(values @ chosen for chosen in itertools.product((0, 1), repeat=8) if weights @ chosen <= capacity)
    dense = problem.to_dense()
    sums = Sums.of(dense.couplings(), dense.linear[:, 0])
    assert np.flatnonzero(sums.values).tolist() == list(range(8))
    assert problem.energy(sums.solve(seed=0, stop=NEVER)) == pytest.approx(-best)


def test_many_large_numbers_are_parted_without_a_rest_before_any_search():
    numbers = np.random.default_rng(0).integers(1, 1 << 20, 100).astype(float)
    i, j = np.triu_indices(100, 1)
    problem = SparseIsing.from_edges(100, i, j, 2 * numbers[i] * numbers[j], offset=float(np.square(numbers).sum()))
    spins, _, _ = Portfolio(rounds=1).answer(problem)
    assert abs(numbers @ spins[:, 0]) == numbers.sum() % 2


def test_thirty_numbers_are_added_up_by_trying_all_signs():
    numbers = np.random.default_rng(1).standard_normal(16)
    signs = signs_for_sum(numbers, 0.3, np.random.default_rng(0), NEVER)
    every = np.array(list(itertools.product((-1, 1), repeat=16)))
    assert abs(numbers @ signs - 0.3) == pytest.approx(np.abs(every @ numbers - 0.3).min())


def test_items_are_packed_with_coins_that_cannot_make_every_sum_as_well_as_they_always_were():
    found = []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        weights = np.concatenate([generator.uniform(3, 9, 14), [4.0, 4.0, 4.0]])
        values = np.concatenate([-generator.uniform(0, 20, 14), np.zeros(3)])
        couplings, linear = squared(weights, generator.uniform(-9, 9), values)
        found.append(energy(couplings, linear, Sums.of(couplings, linear).solve(seed=0, stop=NEVER)))
    assert found == pytest.approx(
        [-428.05692, -396.177146, -350.163084, -370.240991, -439.966221, -416.75529, -389.308793, -393.741221]
    )


def test_more_numbers_than_are_tried_at_once_miss_as_little_as_they_always_did():
    numbers = np.random.default_rng(0).integers(1, 2**40, 45).astype(float)
    found = [abs(numbers @ signs_for_sum(numbers, seed * 1e6, np.random.default_rng(seed), NEVER)) for seed in range(2)]
    assert found == [347.0, 999731.0]


@pytest.mark.parametrize(
    ("couplings", "linear"),
    [
        (np.ones((2, 2)) - np.eye(2), np.zeros(2)),
        (np.zeros((5, 5)), np.ones(5)),
        (np.eye(5, k=1) + np.eye(5, k=-1), np.zeros(5)),
        (np.eye(6) - np.ones((6, 6)), np.zeros(6)),  # products of no real numbers
        (squared(np.arange(1.0, 9), 0, np.zeros(8))[0] + 1e-6 * (np.eye(8, k=3) + np.eye(8, k=-3)), np.zeros(8)),
        (squared(np.arange(1.0, 9), 0, np.zeros(8))[0], np.arange(8.0) ** 2),  # no two fields in one ratio
    ],
)
def test_other_problems_are_not_taken_for_sums(couplings, linear):
    assert Sums.of(couplings, linear) is None


def test_a_sum_out_of_time_is_still_an_answer():
    couplings, linear = squared(np.arange(1.0, 41), 5.0, np.where(np.arange(40) < 20, -1.0, 0.0))
    spins = Sums.of(couplings, linear).solve(seed=0, stop=np.ones(1, np.uint8))
    assert spins.shape == (40,)
    assert set(np.abs(spins)) == {1}
