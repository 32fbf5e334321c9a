import itertools
import math

import numpy as np
import pytest
import torch

from qpsbgd.qubo import QuboFamily
from qpsbgd_paper.chip_studies.spectrum import ADVANTAGE, direct_sum, in_range, levels, spectral_gap
from qpsbgd_qubo.ising import Ising, ising_columns

X, Z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])


def problem(fields, pairs=()):
    """Fields, and couplings as (i, j, J)."""
    couplings = np.zeros((len(fields), len(fields)))
    for i, j, value in pairs:
        couplings[i, j] = couplings[j, i] = value
    return Ising(np.array(fields, dtype=float), couplings)


def random_problem(spins, seed=0):
    generator = np.random.default_rng(seed)
    pairs = [(i, j, generator.normal()) for i, j in itertools.combinations(range(spins), 2)]
    return problem(generator.normal(size=spins), pairs)


def matrix(ising, transverse, weight):
    """H from products of Pauli matrices."""
    n = len(ising.fields)

    def at(operators):
        found = np.eye(1)
        for spin in range(n):
            found = np.kron(found, operators.get(spin, np.eye(2)))
        return found

    total = np.zeros((2**n, 2**n))
    for i in range(n):
        total += -transverse / 2 * at({i: X}) + weight / 2 * ising.fields[i] * at({i: Z})
        for j in range(i + 1, n):
            total += weight / 2 * ising.couplings[i, j] * at({i: Z, j: Z})
    return total


def test_one_spin_has_the_gap_known_from_books():
    field = 0.7
    s = np.linspace(0, 1, 11)
    found = levels(problem([field]), points=11, count=2)
    np.testing.assert_allclose(found[:, 1] - found[:, 0], np.sqrt((1 - s) ** 2 + (s * field) ** 2))
    gap = spectral_gap(problem([field]), points=11)
    # The least of (1 − s)² + s²h² is at s = 1/(1 + h²).
    assert gap.position == pytest.approx(1 / (1 + field**2), abs=1e-4)
    assert gap.smallest == pytest.approx(field / math.sqrt(1 + field**2))
    assert gap.final == pytest.approx(field)
    assert (gap.degeneracy, gap.unit) == (1, "")


@pytest.mark.parametrize("spins", [1, 2, 3, 5])
def test_levels_are_the_eigenvalues_of_the_matrix_of_pauli_operators(spins):
    ising = random_problem(spins)
    grid = np.array([0.0, 0.3, 0.8, 1.0])
    for s, found in zip(grid, levels(ising, points=grid, count=2**spins), strict=True):
        np.testing.assert_allclose(found, np.linalg.eigvalsh(matrix(ising, 1 - s, s)), atol=1e-12)


def test_ground_states_are_counted_and_the_gap_is_to_the_next_level():
    # Antiferromagnetic triangle: six ground states of eight.
    triangle = problem([0.0] * 3, [(0, 1, 1.0), (1, 2, 1.0), (0, 2, 1.0)])
    gap = spectral_gap(triangle, points=21)
    assert gap.degeneracy == 6
    assert gap.final == pytest.approx(2.0)
    found = levels(triangle, points=21, count=8)
    assert gap.smallest <= (found[:, 6] - found[:, 0]).min() + 1e-9


def test_the_gap_of_a_direct_sum_is_the_least_of_its_parts():
    parts = [random_problem(3, seed) for seed in range(3)]
    together, single = spectral_gap(parts), [spectral_gap(part) for part in parts]
    assert together.smallest == pytest.approx(min(gap.smallest for gap in single), rel=1e-6)
    # With one ground state each, that is what the matrix of the whole has.
    whole = spectral_gap(direct_sum(parts[:2]))
    assert whole.smallest == pytest.approx(spectral_gap(parts[:2]).smallest, rel=1e-6)
    assert whole.degeneracy == 1


def test_gaps_grow_with_the_problem_and_have_the_schedules_unit():
    ising = problem([1.0, 0.5], [(0, 1, 0.2)])
    double = Ising(2 * ising.fields, 2 * ising.couplings)
    assert spectral_gap(double).final == pytest.approx(2 * spectral_gap(ising).final)
    chip = spectral_gap(ising, schedule=ADVANTAGE)
    assert chip.unit == "GHz"
    assert chip.final == pytest.approx(8.586335 * spectral_gap(ising).final)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: levels(problem([float("nan"), 1.0])), "finite"),
        (
            lambda: ising_columns(QuboFamily.trusted(torch.eye(2), torch.full((2, 1), torch.inf), torch.zeros(1))),
            "finite",
        ),
        (lambda: levels(random_problem(11)), "up to 10 spins, got 11"),
        (lambda: spectral_gap(problem([0.0, 0.0])), "no gap"),
        (lambda: levels(Ising(np.ones(2), np.zeros((3, 3)))), "shape"),
    ],
)
def test_what_has_no_spectrum_is_refused(action, message):
    with pytest.raises(ValueError, match=message):
        action()


PAIR = Ising(np.array([1.0, -2.0]), np.array([[0.0, 3.0], [3.0, 0.0]]))


def test_a_direct_sum_is_the_problems_side_by_side():
    both = direct_sum([PAIR, Ising(np.array([5.0]), np.zeros((1, 1)))])
    assert both.fields.tolist() == [1, -2, 5]
    assert both.couplings.tolist() == [[0, 3, 0], [3, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(("h_range", "j_range", "factor"), [(4.0, 1.0, 1 / 3), (0.5, 6.0, 1 / 4), (4.0, 6.0, 2.0)])
def test_a_problem_fills_the_ranges(h_range, j_range, factor):
    scaled = in_range(PAIR, h_range=h_range, j_range=j_range)
    np.testing.assert_allclose(scaled.fields, PAIR.fields * factor)
    np.testing.assert_allclose(scaled.couplings, PAIR.couplings * factor)
    assert in_range(PAIR).couplings[0, 1] == pytest.approx(1.0), "the ranges of a chip"
    zero = in_range(Ising(np.zeros(2), np.zeros((2, 2))))
    assert not zero.fields.any() and not zero.couplings.any()
