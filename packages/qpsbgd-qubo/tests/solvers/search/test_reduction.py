import itertools

import numpy as np
import pytest
from sparse_problems import least_energy, model_of, random_sparse, torus

from qpsbgd_qubo.kernels import NEVER, kernels
from qpsbgd_qubo.solvers.search.chains import Reduction
from qpsbgd_qubo.sparse import SparseIsing


def core_of(problem):
    """What is left, as a problem, which checks it; None if nothing is."""
    *core, kept, gone, _, _, _ = kernels.reduce(model_of(problem).rows, problem.linear, NEVER)
    if not len(gone):
        return problem
    return SparseIsing(*core) if len(kept) else None


def solved(problem):
    """Spins of the whole problem, from the best of all spins of the core."""
    reduction, core = Reduction.of(model_of(problem), NEVER), core_of(problem)
    if core is None:
        return reduction.complete(np.zeros(0, np.int8))
    spins = np.array(list(itertools.product([-1, 1], repeat=core.num_spins)), np.int8)
    return reduction.complete(spins[core.energy(spins).argmin()])


@pytest.mark.parametrize("fields", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_the_best_spins_of_the_core_lead_to_the_best_of_all(whole, fields):
    for seed, couplings in itertools.product(range(6), (4, 12, 18, 30)):
        problem = random_sparse(10, couplings, seed=seed, whole=whole, fields=fields)
        assert problem.energy(solved(problem)) == pytest.approx(least_energy(problem), abs=1e-9)


def test_trees_and_cycles_vanish():
    ends = np.arange(1, 40)
    tree = SparseIsing.from_edges(40, ends, ends // 2, np.sin(ends), linear=np.cos(np.arange(40)))
    cycle = SparseIsing.from_edges(9, np.arange(9), np.roll(np.arange(9), 1), np.ones(9))
    for problem in (tree, cycle):
        assert Reduction.of(model_of(problem), NEVER).core is None
    # One edge of an odd cycle must stay unsatisfied.
    assert cycle.energy(solved(cycle)) == -7


def test_a_grid_has_nothing_to_eliminate_and_stays_as_it_is():
    model = model_of(torus(4, 5))
    reduction = Reduction.of(model, NEVER)
    assert reduction.core is model
    spins = np.ones(20, np.int8)
    assert np.array_equal(reduction.complete(spins), spins)


def test_strong_fields_decide_everything():
    problem = random_sparse(30, 200, seed=1)
    strong = SparseIsing.from_edges(30, *problem.edges(), linear=100 * np.sign(problem.linear))
    reduction = Reduction.of(model_of(strong), NEVER)
    assert reduction.core is None
    assert np.array_equal(reduction.complete(np.zeros(0, np.int8)), -np.sign(strong.linear))


def test_without_time_nothing_is_eliminated():
    model = model_of(random_sparse(12, 10))
    assert Reduction.of(model, np.ones(1, np.uint8)).core is model


@pytest.mark.parametrize("spokes", [60, 70, 200])
def test_hubs_lose_and_gain_neighbours(spokes):
    generator = np.random.default_rng(spokes)
    for seed in range(30):
        # Hubs, some of whose spokes are chained: an eliminated one takes a hub's neighbour away and gives it another.
        pairs = [(leg, 8 + k) for k, leg in enumerate(generator.integers(0, 3, spokes))]
        pairs += [(8 + k, 8 + (k + 1) % spokes) for k in range(spokes) if generator.random() < 0.6]
        pairs += [(a, b) for a in range(8) for b in range(a) if generator.random() < 0.7]
        values = generator.integers(-3, 4, len(pairs))
        fields = generator.integers(-1, 2, 8 + spokes) * (seed % 2)
        problem = SparseIsing.from_edges(8 + spokes, *np.transpose(pairs), values, linear=fields)
        reduction, core, shifts = Reduction.of(model_of(problem), NEVER), core_of(problem), []
        assert len(reduction.gone) >= spokes // 4
        couplings = problem.to_dense().couplings()
        for _ in range(3):
            spins = 2 * generator.integers(0, 2, len(reduction.kept), np.int8) - 1
            whole = reduction.complete(spins)
            assert (whole * (problem.linear + couplings @ whole))[reduction.gone].max() <= 1e-9
            shifts.append(problem.energy(whole) - (core.energy(spins) if core else 0))
        assert np.ptp(shifts) < 1e-9


def test_large_stars_and_fans_vanish():
    n = 200_000  # quadratic work would take minutes
    ends = np.arange(1, n)
    star = SparseIsing.from_edges(n, np.zeros(n - 1, int), ends, np.cos(ends), linear=np.sin(np.arange(n)))
    legs = SparseIsing.from_edges(n, np.where(ends % 3 == 1, 0, ends - 1), ends, np.cos(ends))
    fan = SparseIsing.from_edges(
        n, np.append(np.zeros(n - 1, int), ends[:-1]), np.append(ends, ends[1:]), np.cos(np.arange(2 * n - 3))
    )
    for problem in (star, legs, fan):
        assert Reduction.of(model_of(problem), NEVER).core is None
