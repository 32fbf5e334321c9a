import time

import numpy as np
import pytest
from closeness import assert_close
from sparse_problems import least_energy, model_of, random_sparse, torus

from qpsbgd_qubo import ising_problem, solve
from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.solvers.portfolio import portfolio
from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio
from qpsbgd_qubo.solvers.portfolio.search_problem import DenseSearchProblem, SparseSearchProblem
from qpsbgd_qubo.sparse import SparseIsing
from qpsbgd_qubo.testing import lowest_energies, random_family

NEVER = np.zeros(1, np.uint8)


def dense(problem):
    return problem.to_dense().quadratic * 2


@pytest.mark.parametrize("fields", [True, False])
def test_small_problems_are_solved_sparse_and_dense(fields):
    problem = random_sparse(15, 60, seed=2, fields=fields)
    least = least_energy(problem)
    sparse = solve(problem, solver=Portfolio(rounds=3))
    assert sparse.energies.item() == pytest.approx(least)
    assert sparse.energies.item() == pytest.approx(problem.energy(sparse.spins[:, 0]))
    family = Portfolio(rounds=3).solve(problem.to_dense())
    assert family.energies.item() == pytest.approx(least)


def test_a_problem_that_can_be_reduced_to_nothing_is_proven():
    ends = np.arange(1, 5000)
    tree = SparseIsing.from_edges(5000, ends, ends // 2, np.ones(4999))
    solution = solve(tree, solver=Portfolio())
    assert solution.proven_optimal and solution.energies.item() == -4999
    assert not solve(torus(10, 10), solver=Portfolio(rounds=2)).proven_optimal


@pytest.mark.parametrize(
    ("limit", "density", "scale"),
    [
        ({}, 1.0, 1.0),
        ({}, 0.1, 2.0**-800),
        ({"rounds": 20}, 0.1, 1.0),
        ({"rounds": 20}, 1.0, 2.0**900),
        ({"time_limit": 60.0}, 1.0, 2.0**-800),
    ],
)
def test_a_single_problem_is_proven_where_that_is_cheap(limit, density, scale):
    generator = np.random.default_rng(1)
    matrix = np.where(generator.random((30, 30)) < density, generator.normal(size=(30, 30)), 0) * scale
    answer = solve(matrix, **limit)
    assert answer.proven_optimal.all() and answer.stats.get("rounds", 0) <= 2
    assert answer.value / scale == pytest.approx(solve(matrix / scale, solver="exact").value)


def test_a_proof_that_is_not_cheap_leaves_the_search_as_it_is(monkeypatch):
    couplings = np.triu(np.random.default_rng(2).choice([-1.0, 1.0], (70, 70)), 1)
    problem = ising_problem(np.zeros(70), couplings)  # many answers that are nearly as good: a proof takes hours
    tried = solve(problem, seed=3)
    assert not tried.proven_optimal.any() and tried.stats["rounds"] == portfolio.ROUNDS
    assert np.array_equal(tried.spins, solve(problem, seed=3).spins)
    monkeypatch.setattr(portfolio, "PROVE_UP_TO", 0)
    assert tried.value <= solve(problem, seed=3).value


def test_all_columns_of_a_family_are_solved():
    family = random_family(14, 5, 20, scale=0.3, dtype=np.float64)
    solution = Portfolio(rounds=3).solve(family)
    assert_close(solution.energies, lowest_energies(family))
    limited = Portfolio(time_limit=1.0).solve(family)
    assert_close(limited.energies, lowest_energies(family))


def test_more_rounds_than_one_find_the_ground_state_of_a_grid():
    problem = torus(20, 20, seed=1)
    energies = [solve(problem, solver=Portfolio(rounds=12, seed=seed)).energies.item() for seed in range(3)]
    assert len(set(energies)) == 1
    assert energies[0] <= solve(problem, solver=Portfolio(rounds=1)).energies.item()


def test_two_rounds_on_many_spins_are_better_than_greedy():
    n = 50_000
    generator = np.random.default_rng(0)
    problem = SparseIsing.from_edges(n, *generator.integers(0, n, (2, 3 * n)), generator.choice([-1.0, 1.0], 3 * n))
    # Single flips from random spins end near −1.4 per spin.
    assert solve(problem, solver=Portfolio(rounds=2)).energies.item() / n < -1.5


def test_no_time_at_all_gives_the_sign_vector():
    problem = random_sparse(40, 150, seed=5)
    with pytest.warns(RuntimeWarning, match="no time for a search"):
        solution = solve(problem, solver=Portfolio(time_limit=0))
    assert (abs(solution.spins) == 1).all()
    assert solution.energies.item() == pytest.approx(problem.energy(solution.spins[:, 0]))


def test_an_error_behind_the_answer_is_raised(monkeypatch):
    def fail(self, stop):
        raise RuntimeError("no prepared")

    monkeypatch.setattr(portfolio._SparseProblem, "prepare", fail)
    with pytest.raises(RuntimeError, match="no prepared"):
        solve(torus(5, 5), solver=Portfolio(time_limit=5.0))


@pytest.mark.parametrize("fields", [True, False])
def test_every_move_gives_the_energy_of_its_spins(fields):
    problem = random_sparse(60, 400, seed=6, fields=fields)
    sparse = SparseSearchProblem(model_of(problem))
    one = SparseSearchProblem(model_of(problem))
    one.one_by_one = True
    start = np.where(np.random.default_rng(0).random(60) < 0.5, 1, -1).astype(np.int8)
    cold = sparse.typical * np.linspace(0.5, 0, 20)
    for prepared in (sparse, one, DenseSearchProblem(dense(problem), problem.linear)):
        answers = [
            prepared.anneal(None, temperatures=cold, seed=1, stop=NEVER),
            prepared.anneal(start, temperatures=cold, seed=1, stop=NEVER),
            prepared.anneal(start, temperatures=cold, seed=1, stop=NEVER, sites=np.arange(9, dtype=np.int32)),
            prepared.tabu_search(start, moves=50, tenure=4, seed=1, stop=NEVER),
            prepared.merge(start, -start),
        ]
        for spins, energy in answers:
            assert energy + problem.offset == pytest.approx(problem.energy(spins), rel=1e-4)
            assert spins.dtype == np.int8
        assert all(energy <= problem.energy(start) - problem.offset for _, energy in answers)


@pytest.mark.parametrize("exponent", [-900, 200, 900])
def test_numbers_beyond_single_precision_are_searched_like_others(exponent):
    problem = random_sparse(40, 150, seed=2)
    factor = 2.0**exponent
    expected = solve(problem, solver=Portfolio(rounds=3))
    assert np.array_equal(solve(problem * factor, solver=Portfolio(rounds=3)).spins, expected.spins)
    family = random_sparse(30, 300, seed=1).to_dense()
    scaled = QuboFamily(family.quadratic * factor, family.linear * factor, family.offset * factor)
    assert np.array_equal(Portfolio(rounds=3).solve(scaled).spins, Portfolio(rounds=3).solve(family).spins)


@pytest.mark.parametrize("penalty", [1e5, 1e7])
def test_costs_beside_large_penalties_are_seen_in_dense_problems(penalty):
    generator = np.random.default_rng(0)
    costs = np.triu(generator.normal(size=(60, 60)))

    def least(penalty):  # of penalty · (Σx − 15)² + xᵀ costs x
        return solve(costs + penalty * (np.ones((60, 60)) - 30 * np.eye(60))).value + 225 * penalty

    assert least(penalty) == pytest.approx(least(100.0), abs=1e-4)


def test_few_numbers_far_apart_are_tried_out_where_bounds_are_too_weak():
    numbers = np.random.default_rng(0).integers(1, 10**6, 18).astype(float)
    answer = solve(np.outer(numbers, numbers) - np.diag(numbers * numbers.sum()))
    assert answer.proven_optimal.all()
    halves = np.array([0.0])
    for number in numbers:
        halves = np.concatenate([halves, halves + number])
    half = numbers.sum() / 2
    assert abs(numbers @ list(answer.values.values()) - half) == np.abs(halves - half).min()


def covered(elements, sets):
    """Fewest sets that hold all elements, each in six of them, with slack bits: 20 (Σx − 1 − y − 2z − 2u)² and Σx."""
    generator, matrix = np.random.default_rng(0), np.eye(sets + 3 * elements)
    matrix[sets:, sets:] = 0
    for element in range(elements):
        weights = np.zeros(len(matrix))
        weights[generator.permutation(sets)[:6]] = 1
        weights[sets + 3 * element : sets + 3 * element + 3] = -1, -2, -2
        matrix += 20 * (np.outer(weights, weights) - 2 * np.diag(weights))
    sparse = pytest.importorskip("scipy.sparse", reason="needs scipy")
    return sparse.coo_array(matrix)


def test_slack_bits_are_searched_by_many_short_searches():
    sets = [solve(covered(60, 50), seed=seed).value + 20 * 60 for seed in range(3)]
    assert np.mean(sets) <= 20  # 23 without them


def test_columns_that_the_time_does_not_suffice_for_are_searched_together(monkeypatch):
    family, built = random_family(40, 200, 80, scale=0.1, dtype=np.float64), []

    def slow(*given, make=portfolio._DenseProblem):
        built.append(given)
        time.sleep(0.1)
        return make(*given)

    monkeypatch.setattr(portfolio, "_DenseProblem", slow)
    with pytest.warns(RuntimeWarning, match="left no time"):
        solution = make_solver("portfolio", time_limit=0.5).solve(family)
    assert len(built) < 100
    assert (solution.energies <= make_solver("descent").solve(family).energies + 1e-9).all()
