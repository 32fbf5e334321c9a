import numpy as np
import pytest
from sparse_problems import least_energy, model_of, random_sparse, torus

from qpsbgd_qubo.kernels import NEVER, kernels
from qpsbgd_qubo.solvers.search import chains


def random_spins(count, n, seed=0):
    return np.random.default_rng(seed).choice([-1, 1], (count, n)).astype(np.int8)


def test_a_merged_answer_is_a_local_minimum():
    problem = random_sparse(50, 200)
    (spins,) = random_spins(1, 50)
    found, energy = model_of(problem).merge(spins, spins[None].copy(), NEVER)
    assert problem.energy(found) == pytest.approx(energy + problem.offset)
    neighbours = found * (1 - 2 * np.eye(50, dtype=np.int8))
    assert problem.energy(neighbours).min() >= energy + problem.offset - 1e-9


@pytest.mark.parametrize("couplings", [40, 70, 300])
def test_merged_answers_are_no_higher_than_either(couplings):
    problem = random_sparse(60, couplings)
    for seed in range(20):
        spins, other = random_spins(2, 60, seed)
        best = min(problem.energy(spins), problem.energy(other))
        found, energy = model_of(problem).merge(spins, other[None].copy(), NEVER)
        assert problem.energy(found) == pytest.approx(energy + problem.offset)
        assert problem.energy(found) <= best + 1e-9


def test_every_part_comes_from_the_better_answer():
    # Two parts without a coupling between them: each answer is right in one of them.
    left, right = random_sparse(8, 20, seed=1), random_sparse(8, 20, seed=2)
    ends = [np.concatenate([a, b + 8]) for a, b in zip(left.edges()[:2], right.edges()[:2], strict=True)]
    values, linear = np.append(left.edges()[2], right.edges()[2]), np.append(left.linear, right.linear)
    problem = type(left).from_edges(16, *ends, values, linear=linear)
    best = [min(random_spins(3000, 8, 5), key=part.energy) for part in (left, right)]
    spins, other = np.append(best[0], -best[1]), np.append(-best[0], best[1])
    found, _ = model_of(problem).merge(spins, other[None], NEVER)
    assert problem.energy(found) <= left.energy(best[0]) + right.energy(best[1]) - left.offset - right.offset + 1e-9


def test_annealed_chains_reach_the_optimum_of_small_problems():
    for seed in range(5):
        problem = random_sparse(14, 40, seed=seed)
        _, energy = model_of(problem).anneal(None, temperatures=np.linspace(3, 0.1, 100), seed=seed, stop=NEVER)
        assert energy + problem.offset == pytest.approx(least_energy(problem), abs=1e-6)


def test_spins_that_are_not_swept_stay():
    problem = torus(6, 6)
    bits = np.random.default_rng(0).integers(0, 1 << 16, 36, dtype=np.uint16)
    before, few = bits.copy(), np.array([3, 8], np.int32)
    kernels.anneal_lanes(model_of(problem).rows, problem.linear, bits, few, np.full(20, 9.0), 1, NEVER)
    assert np.array_equal(np.delete(bits, few), np.delete(before, few))
    assert not np.array_equal(bits[few], before[few])


def test_bits_are_chains():
    bits, (spins,) = np.array([0b1, 0b110, 0xFFFF, 0], np.uint16), random_spins(1, 50)
    found = chains.chains_of(bits)
    assert found.shape == (chains.LANES, 4) and (np.abs(found) == 1).all()
    assert found[:, 0].tolist() == [1] + 15 * [-1]
    assert found[:3, 1].tolist() == [-1, 1, 1]
    assert (found[:, 2] == 1).all() and (found[:, 3] == -1).all()
    assert (chains.chains_of(chains.bits_of(spins)) == spins).all()


@pytest.mark.parametrize(("block", "tenure"), [(1, 6), (4, 1), (100, 6)])
def test_tabu_moves_find_the_optimum_whatever_the_blocks(block, tenure):
    for seed in range(4):
        problem = random_sparse(14, 45, seed=seed)
        (spins,) = random_spins(1, 14, seed)
        rows = model_of(problem).rows
        energy = kernels.tabu_sparse(rows, problem.linear, spins, block, 3000, tenure, seed + 1, NEVER)
        assert problem.energy(spins) == pytest.approx(energy + problem.offset)
        assert energy + problem.offset == pytest.approx(least_energy(problem), abs=1e-9)


def test_every_search_ends_at_once_when_the_time_is_up():
    problem, now, sites = random_sparse(30, 80), np.ones(1, np.uint8), np.arange(30, dtype=np.int32)
    rows, (one,) = model_of(problem).rows, random_spins(1, 30)
    for kernel, spins in ((kernels.anneal_lanes, chains.bits_of(one)), (kernels.anneal_sparse, one.copy())):
        assert kernel(rows, problem.linear, spins, sites, np.ones(5), 1, now) == 0
    before = one.copy()
    kernels.tabu_sparse(rows, problem.linear, one, 8, 10**12, 3, 1, now)
    assert np.array_equal(one, before)
