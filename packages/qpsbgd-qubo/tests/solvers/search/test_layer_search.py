import numpy as np
import pytest
from closeness import assert_close

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.solvers.exact.exact import Exact
from qpsbgd_qubo.solvers.search import layer_search
from qpsbgd_qubo.solvers.search.descent import Descent
from qpsbgd_qubo.solvers.search.layer_search import LayerSearch, round_relaxation
from qpsbgd_qubo.testing import binary_map, lowest_energies, random_family


def words(width, columns, scale=1.0):
    """A bag of words: 64 rows with few ones."""
    generator = np.random.default_rng(0)
    inputs = (generator.random((64, width)) < 0.01).astype(np.float64)
    inputs[np.arange(64), np.arange(64) % width] = 1
    return binary_map(inputs, generator.standard_normal((64, columns)), scale=scale)


def uneven(width, columns, scale=0.3):
    """Inputs whose sizes differ by orders of magnitude."""
    generator = np.random.default_rng(1)
    sizes = np.logspace(-1.5, 1.5, width, dtype=np.float64)
    inputs = generator.standard_normal((2 * width, width)) * sizes
    return binary_map(inputs, generator.standard_normal((2 * width, columns)), scale=scale)


@pytest.mark.parametrize("scale", [0.01, 0.3, 3.0])
def test_the_rounded_start_does_not_depend_on_units(scale):
    family = uneven(24, 6, scale)
    for factor in (2.0**-9, 2.0**9):
        assert np.array_equal(round_relaxation(family * factor), round_relaxation(family))


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_nearly_all_columns_of_small_layers_are_solved(scale):
    missed = 0
    for seed in range(3):
        family = random_family(15, 8, 12, scale=scale, seed=seed, dtype=np.float64)
        missed += (~np.isclose(LayerSearch().solve(family).energies, lowest_energies(family))).sum()
    assert missed <= 1


@pytest.mark.parametrize(("width", "kind"), [(40, np.float32), (260, np.float64)])
def test_answers_are_no_higher_than_those_of_descent(width, kind):
    for scale in (0.1, 0.3, 8.0):
        family = random_family(width, 20, 50, scale=scale, dtype=kind)
        found, plain = LayerSearch().solve(family), Descent().solve(family)
        assert found.spins.dtype == kind and (abs(found.spins) == 1).all()
        assert (found.energies <= plain.energies * (1 + 1e-5)).all()
        assert found.energies.mean() < plain.energies.mean() or scale == 8.0


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_bags_of_words_are_reduced_and_mostly_proven(scale):
    family = words(32, 10, scale)
    solution = LayerSearch().solve(family)
    exact = Exact().solve(family)
    assert solution.stats["search"] == "sparse annealing"
    assert_close(solution.energies, exact.energies)
    assert solution.proven_optimal.any()


def test_inputs_of_different_size_are_rounded_first():
    family = uneven(24, 20)
    solution = LayerSearch().solve(family)
    assert solution.stats["search"] == "tabu and rounding"
    assert LayerSearch().solve(random_family(24, 3, 48)).stats["search"] == "tabu"
    descent = Descent(tabu=100).solve(family).energies.mean()
    assert solution.energies.mean() < descent
    assert solution.energies.mean() <= 1.05 * Exact().solve(family).energies.mean()


def test_rounding_finds_spins_that_the_rows_were_made_of():
    generator = np.random.default_rng(2)
    rows = generator.standard_normal((60, 20))
    spins = np.where(generator.standard_normal((20, 4)) > 0, 1.0, -1.0).astype(np.float64)
    family = QuboFamily(rows.T @ rows, -2 * rows.T @ (rows @ spins))
    assert np.array_equal(round_relaxation(family), spins)


def test_rounding_needs_a_positive_definite_matrix():
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert round_relaxation(QuboFamily(matrix, np.ones((2, 1)))) is None


def test_columns_of_bags_of_words_are_put_back_where_they_were(monkeypatch):
    family = words(32, 11, scale=0.1)
    monkeypatch.setattr(layer_search, "TOGETHER", 70)  # so that the columns go in several groups
    assert_close(LayerSearch().solve(family).energies, Exact().solve(family).energies)
