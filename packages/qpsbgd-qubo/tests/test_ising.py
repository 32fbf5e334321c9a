import itertools

import numpy as np
import pytest

from qpsbgd_qubo.ising import Ising, check_finite, direct_sum, in_range, ising_columns, largest_eigenvalue
from qpsbgd_qubo.testing import random_family


def energy(ising, spins):
    """Written out: Σ hᵢ gᵢ + Σ_{i<j} Jᵢⱼ gᵢ gⱼ."""
    pairs = itertools.combinations(range(len(spins)), 2)
    return sum(ising.fields * spins) + sum(ising.couplings[i, j] * spins[i] * spins[j] for i, j in pairs)


def all_spins(n):
    return [np.array(spins) for spins in itertools.product((-1, 1), repeat=n)]


def test_columns_have_the_energies_of_the_family_up_to_a_constant():
    family = random_family(4, 3, 8, dtype=np.float64)
    for column, ising in enumerate(ising_columns(family)):
        assert (np.diag(ising.couplings) == 0).all()
        differences = [
            family.energies(np.repeat(np.array(spins)[:, None], 3, 1))[column] - energy(ising, spins)
            for spins in all_spins(4)
        ]
        assert np.ptp(differences) < 1e-9


ISING = Ising(np.array([1.0, -2.0]), np.array([[0.0, 3.0], [3.0, 0.0]]))


def test_the_strength_is_a_multiple_of_the_largest_eigenvalue():
    assert largest_eigenvalue(np.diag([1.0, -5.0, 2.0])) == 5
    assert largest_eigenvalue(np.diag([1.0, 4.0])) == 4
    assert largest_eigenvalue(np.zeros((0, 0))) == 0
    assert ISING.strength(0.5) == pytest.approx(1.5)
    assert Ising(ISING.fields, ISING.couplings, norm=10.0).strength(0.5) == 5
    assert Ising(ISING.fields, np.zeros((2, 2))).strength(0.5) == 1, "of the largest field where nothing is coupled"
    assert Ising(np.zeros(2), np.zeros((2, 2))).strength(0.5) == 0.5


@pytest.mark.parametrize("size", [1.0, 1e200, 1e-200])
def test_the_typical_field_is_that_of_random_spins(size):
    ising = Ising(ISING.fields * size, ISING.couplings * size)
    assert ising.typical_field / size == pytest.approx(np.sqrt((1 + 9 + 4 + 9) / 2))
    assert Ising(np.zeros(2), np.zeros((2, 2))).typical_field == 1


def test_a_turned_problem_has_the_energies_of_turned_spins():
    gauge = np.array([1, -1])
    turned = Ising(ISING.fields, ISING.couplings, norm=3.0).spin_reversed(gauge)
    assert turned.norm == 3.0
    assert [energy(turned, spins) for spins in all_spins(2)] == [energy(ISING, gauge * spins) for spins in all_spins(2)]


def test_a_direct_sum_is_the_problems_side_by_side():
    both = direct_sum([ISING, Ising(np.array([5.0]), np.zeros((1, 1)))])
    assert both.fields.tolist() == [1, -2, 5]
    assert both.couplings.tolist() == [[0, 3, 0], [3, 0, 0], [0, 0, 0]]
    with pytest.raises(ValueError, match="at least one problem"):
        direct_sum([])


@pytest.mark.parametrize(("h_range", "j_range", "factor"), [(4.0, 1.0, 1 / 3), (0.5, 6.0, 1 / 4), (4.0, 6.0, 2.0)])
def test_a_problem_fills_the_ranges(h_range, j_range, factor):
    scaled = in_range(ISING, h_range=h_range, j_range=j_range)
    np.testing.assert_allclose(scaled.fields, ISING.fields * factor)
    np.testing.assert_allclose(scaled.couplings, ISING.couplings * factor)
    assert in_range(ISING).couplings[0, 1] == pytest.approx(1.0), "the ranges of a chip"
    zero = in_range(Ising(np.zeros(2), np.zeros((2, 2))))
    assert not zero.fields.any() and not zero.couplings.any()


@pytest.mark.parametrize(
    ("fields", "couplings", "message"),
    [
        ([1.0, np.nan], np.zeros((2, 2)), "must be finite"),
        ([1.0, 2.0], np.full((2, 2), np.inf), "must be finite"),
        ([1.0, 2.0], np.zeros((2, 3)), r"must have shape \(n, n\) = \(2, 2\), n ≥ 1, got \(2, 3\)"),
        ([], np.zeros((0, 0)), "n ≥ 1"),
    ],
)
def test_what_is_not_a_finite_problem_is_refused(fields, couplings, message):
    for check in (check_finite, in_range):
        with pytest.raises(ValueError, match=message):
            check(Ising(np.array(fields), couplings))
