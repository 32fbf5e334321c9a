import itertools

import numpy as np
import pytest

from qpsbgd_qubo.ising import Ising, ising_columns, largest_eigenvalue
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
