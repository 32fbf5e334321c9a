import numpy as np
import pytest
from closeness import assert_close

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.solvers.deadline import deadline
from qpsbgd_qubo.solvers.search.annealing import Annealing
from qpsbgd_qubo.solvers.search.descent import Descent
from qpsbgd_qubo.solvers.search.landscape import sign_start
from qpsbgd_qubo.solvers.search.single_flips import local_search
from qpsbgd_qubo.testing import lowest_energies, random_family


def flip_gains(family, spins):
    """What each single flip would lower the energy by, computed from the energies alone."""
    flips = np.ones((family.num_spins, *spins.shape), spins.dtype)
    for i in range(family.num_spins):
        flips[i, i] = -1
    return family.energies(spins) - family.energies(spins * flips)


def test_descent_ends_where_no_single_flip_helps():
    family = random_family(30, 8, 12, scale=0.5, dtype=np.float64)
    assert (flip_gains(family, Descent().solve(family).spins) <= 1e-9).all()
    assert (flip_gains(family, sign_start(family)) > 1e-9).any()


def test_descent_takes_the_best_flip_first():
    family = random_family(30, 8, 12, scale=0.5, dtype=np.float64)
    start = sign_start(family)
    once = Descent(max_flips=1).solve(family).spins
    best = flip_gains(family, start).argmax(0)
    assert np.array_equal((once != start).astype(int).argmax(0), best)
    assert (once != start).sum() == family.num_columns


@pytest.mark.parametrize("max_flips", [0, 3, 5])
def test_the_number_of_flips_is_bounded(max_flips):
    family = random_family(40, 6, 10, scale=0.1)
    distance = (Descent(max_flips=max_flips).solve(family).spins != sign_start(family)).sum(0)
    assert distance.max() == max_flips


@pytest.mark.parametrize("options", [{"restarts": 3}, {"tabu": 50}, {"restarts": 1, "tabu": 20}])
def test_more_search_never_does_worse(options):
    family = random_family(40, 30, 20, scale=0.3, dtype=np.float64)
    plain, more = Descent().solve(family), Descent(**options).solve(family)
    assert (more.energies <= plain.energies + 1e-12).all()
    assert (more.energies < plain.energies - 1e-6).any()


@pytest.mark.parametrize("solver", [Descent(tabu=100), Annealing(reads=8)], ids=repr)
def test_heuristics_find_the_optimum_of_small_families(solver):
    family = random_family(12, 20, 20, scale=0.7, dtype=np.float64)
    assert_close(solver.solve(family).energies, lowest_energies(family))


@pytest.mark.parametrize("solver", [Descent(restarts=2, tabu=9), Annealing(reads=2)], ids=repr)
def test_the_seed_alone_decides_the_answer(solver):
    from dataclasses import replace

    family = random_family(60, 10, 20, scale=0.2)
    first = solver.solve(family).spins
    assert np.array_equal(solver.solve(family).spins, first)
    others = [replace(solver, seed=seed).solve(family).spins for seed in range(1, 4)]
    assert not all(np.array_equal(other, first) for other in others)


def test_a_search_that_is_stopped_keeps_its_spins():
    family = random_family(60, 4, 30, scale=0.1)
    with deadline(0) as passed:
        assert np.array_equal(
            local_search(family, sign_start(family), patience=50, stop=passed).spins, sign_start(family)
        )


@pytest.mark.parametrize("solver", [Descent(restarts=5), Annealing(reads=5)], ids=repr)
def test_a_large_offset_does_not_hide_which_answer_is_better(solver):
    family = random_family(40, 20, 20, scale=0.3)
    shifted = QuboFamily(family.quadratic, family.linear, family.offset + 1e7)
    assert np.array_equal(solver.solve(shifted).spins, solver.solve(family).spins)
