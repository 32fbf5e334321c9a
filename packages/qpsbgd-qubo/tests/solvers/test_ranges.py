"""Families near the ends of their type's range: the same answers as in its middle, or a refusal."""

import itertools

import numpy as np
import pytest
from closeness import assert_close

from qpsbgd_qubo import solve
from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.solvers import Solver, make_solver
from qpsbgd_qubo.testing import random_family

LOCAL = {
    "auto": {},
    "exact": {},
    "descent": {"tabu": 30, "restarts": 1},
    "annealing": {},
    "quantum-annealing": {},
    "portfolio": {"rounds": 2},
}


def scaled(family, factor):
    """Nothing is checked."""
    return QuboFamily.trusted(*(part * factor for part in (family.quadratic, family.linear, family.offset)))


@pytest.mark.parametrize(
    ("num_spins", "dtype", "exponents"),
    [(9, np.float64, (-1000, 1005)), (20, np.float32, (-110, 115)), (40, np.float64, (-1000, 1005))],
)
@pytest.mark.parametrize("name", LOCAL)
def test_a_power_of_two_changes_no_answer(name, num_spins, dtype, exponents):
    solver, family = make_solver(name, **LOCAL[name]), random_family(num_spins, 3, 12, dtype=dtype)
    expected = solver.solve(family)
    for exponent in exponents:
        found = solver.solve(scaled(family, 2.0**exponent))
        assert np.array_equal(found.spins, expected.spins)
        assert np.array_equal(found.proven_optimal, expected.proven_optimal)
        assert_close(found.energies * 2.0**-exponent, expected.energies)
        assert found.stats["solver"] == expected.stats["solver"]


@pytest.mark.parametrize("name", LOCAL)
def test_what_no_family_may_be_is_refused_where_nobody_checked_it(name):
    family = QuboFamily(np.full((20, 20), 10.0, np.float32), np.full((20, 2), 10.0, np.float32))
    for factor in (3e36, np.nan, 1e-44):
        with pytest.raises(ValueError, match=r"must stay below|NaN|loses digits"):
            make_solver(name, **LOCAL[name]).solve(scaled(family, factor))


@pytest.mark.parametrize("name", LOCAL)
def test_the_largest_and_the_smallest_normal_number_are_solved(name):
    for dtype, end in itertools.product((np.float32, np.float64), ("max", "tiny")):
        value = getattr(np.finfo(dtype), end)
        family = QuboFamily(np.zeros((1, 1), dtype=dtype), np.full((1, 2), value, dtype=dtype))
        solution = make_solver(name, **LOCAL[name]).solve(family)
        assert (solution.spins == -1).all()
        assert (solution.energies == -value).all()


def test_numbers_that_span_more_than_a_type_has_are_refused_where_they_would_be_rounded():
    quadratic = np.zeros((12, 12), np.float32)
    quadratic[0, 1] = quadratic[1, 0] = 1e37
    linear = np.full((12, 1), 1e-37, np.float32)
    with pytest.raises(ValueError, match=r"from 1e-37 to 1e\+37.*float64"):
        make_solver("descent").solve(QuboFamily(quadratic, linear))
    solution = make_solver("descent").solve(QuboFamily(quadratic.astype(np.float64), linear.astype(np.float64)))
    assert (solution.spins[2:] == -1).all()


def test_a_solver_of_ones_own_sees_the_middle_of_the_range():
    seen = []

    class Mine(Solver):
        def _solve(self, family):
            seen.append(float(abs(family.linear).max()))
            return make_solver("descent").solve(family)

    family = random_family(6, 2, 8)
    Mine().solve(family)
    Mine().solve(scaled(family, 2.0**100))
    assert seen[0] == float(abs(family.linear).max())
    assert 2**-4 <= seen[1] <= 2**4


@pytest.mark.parametrize("name", ["auto", "exact", "portfolio"])
def test_an_optimum_among_whole_numbers_is_proven_only_where_double_precision_holds_their_sums(name):
    """2ᵏ g₁ g₂ + g₁ − 2 g₂ is −2ᵏ − 3 at (−1, 1), its optimum, and −2ᵏ + 3 at (1, −1)."""
    for exponent, proven in ((40, True), (51, True), (58, False)):
        couplings = np.array([[0.0, 1.0], [1.0, 0.0]]) * 2.0 ** (exponent - 1)
        family = QuboFamily(couplings, np.array([[1.0], [-2.0]]))
        for answer in (make_solver(name).solve(family), solve(family, solver=name)):
            assert answer.proven_optimal.tolist() == [proven]
            assert not proven or answer.spins[:, 0].tolist() == [-1, 1]
