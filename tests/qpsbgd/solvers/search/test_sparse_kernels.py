import numpy as np
import pytest

from qpsbgd.solvers.search import lanes, sparse_kernels
from qpsbgd.solvers.search.kernels import LOG_UNIFORM

from .sparse_problems import least_energy, random_sparse, torus

NEVER = np.zeros(1, np.uint8)


def rows(problem):
    return problem.indptr, problem.indices, problem.couplings


def random_bits(n, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << lanes.LANES, n, dtype=np.uint16)


def random_spins(count, n, seed=0):
    return np.random.default_rng(seed).choice([-1, 1], (count, n)).astype(np.int8)


def fields_of(problem, spins):
    fields = np.empty(problem.num_spins)
    energy = sparse_kernels.set_fields(*rows(problem), problem.linear, spins, fields)
    return fields, energy


def test_fields_energies_and_flips_agree_with_the_problem():
    problem = random_sparse(20, 60)
    (spins,) = random_spins(1, 20)
    fields, energy = fields_of(problem, spins)
    assert energy + problem.offset == pytest.approx(problem.energy(spins))
    change = -2 * spins[7] * fields[7]
    sparse_kernels.flip(*rows(problem), fields, spins, 7)
    assert problem.energy(spins) == pytest.approx(energy + problem.offset + change)
    np.testing.assert_allclose(fields, fields_of(problem, spins)[0])


def test_descent_ends_where_no_flip_gains():
    problem = random_sparse(50, 200)
    (spins,) = random_spins(1, 50)
    fields, energy = fields_of(problem, spins)
    gained = sparse_kernels.descend(*rows(problem), fields, spins, np.full(50, 1e-12), NEVER)
    assert (spins * fields <= 1e-12).all()
    assert problem.energy(spins) == pytest.approx(energy + problem.offset + gained)


@pytest.mark.parametrize("couplings", [40, 70, 300])
def test_merged_answers_are_no_higher_than_either(couplings):
    problem = random_sparse(60, couplings)
    marks, queue = np.zeros(60, np.int8), np.empty(60, np.int64)
    for seed in range(20):
        spins, other = random_spins(2, 60, seed)
        best = min(problem.energy(spins), problem.energy(other))
        fields, energy = fields_of(problem, spins)
        gained = sparse_kernels.merge(*rows(problem), fields, spins, other, marks, queue)
        assert problem.energy(spins) == pytest.approx(energy + problem.offset + gained)
        assert problem.energy(spins) <= best + 1e-9
        np.testing.assert_allclose(fields, fields_of(problem, spins)[0])
        assert not marks.any()


def test_every_part_comes_from_the_better_answer():
    # Two parts without a coupling between them: each answer is right in one of them.
    left, right = random_sparse(8, 20, seed=1), random_sparse(8, 20, seed=2)
    ends = [np.concatenate([a, b + 8]) for a, b in zip(left.edges()[:2], right.edges()[:2], strict=True)]
    values, linear = np.append(left.edges()[2], right.edges()[2]), np.append(left.linear, right.linear)
    problem = type(left).from_edges(16, *ends, values, linear=linear)
    best = [min(random_spins(3000, 8, 5), key=part.energy) for part in (left, right)]
    spins, other = np.append(best[0], -best[1]), np.append(-best[0], best[1])
    fields, _ = fields_of(problem, spins)
    sparse_kernels.merge(*rows(problem), fields, spins, other, np.zeros(16, np.int8), np.empty(16, np.int64))
    assert problem.energy(spins) <= left.energy(best[0]) + right.energy(best[1]) - left.offset - right.offset + 1e-9


def test_annealed_chains_reach_the_optimum_of_small_problems():
    for seed in range(5):
        problem = random_sparse(14, 40, seed=seed)
        single, temperatures = problem.couplings.astype(np.float32), np.linspace(3, 0.1, 100)
        bits, fields = random_bits(14, seed), lanes.first_fields(problem.linear)
        sites = np.arange(14, dtype=np.int32)
        made = lanes.anneal(
            *rows(problem)[:2], single, fields, bits, sites, temperatures, lanes.EXPONENTIAL, np.uint64(9), NEVER
        )
        assert made == 100
        chains = lanes.chains_of(bits)
        np.testing.assert_allclose(fields, np.stack([fields_of(problem, c)[0] for c in chains], 1), atol=1e-4)
        assert problem.energy(chains).min() == pytest.approx(least_energy(problem), abs=1e-6)
        (one,) = random_spins(1, 14, seed)
        sparse_kernels.anneal(
            *rows(problem)[:2], single, problem.linear, one, sites, temperatures, LOG_UNIFORM, np.uint64(5), NEVER
        )
        assert problem.energy(one) <= least_energy(problem) + 3


def test_spins_that_are_not_swept_stay():
    problem = torus(6, 6)
    bits, fields = random_bits(36), lanes.first_fields(problem.linear)
    before = bits.copy()
    few = np.array([3, 8], np.int32)
    single = problem.couplings.astype(np.float32)
    lanes.anneal(
        *rows(problem)[:2], single, fields, bits, few, np.full(20, 9.0), lanes.EXPONENTIAL, np.uint64(1), NEVER
    )
    assert np.array_equal(np.delete(bits, few), np.delete(before, few))
    assert not np.array_equal(bits[few], before[few])


def test_bits_are_chains():
    bits, (spins,) = np.array([0b1, 0b110, 0xFFFF, 0], np.uint16), random_spins(1, 50)
    chains = lanes.chains_of(bits)
    assert chains.shape == (lanes.LANES, 4) and (np.abs(chains) == 1).all()
    assert chains[:, 0].tolist() == [1] + 15 * [-1]
    assert chains[:3, 1].tolist() == [-1, 1, 1]
    assert (chains[:, 2] == 1).all() and (chains[:, 3] == -1).all()
    assert (lanes.chains_of(lanes.bits_of(spins)) == spins).all()


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_every_row_of_fields_is_one_line_of_the_cache(n):
    linear = np.arange(n) - 3.0
    fields = lanes.first_fields(linear)
    assert fields.ctypes.data % 64 == 0 and fields.flags.c_contiguous
    assert (fields == linear[:, None]).all() and fields.shape == (n, lanes.LANES)


@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize("tenure", [1, 6])
def test_tabu_moves_find_the_optimum_whatever_the_blocks(block, tenure):
    for seed in range(4):
        problem = random_sparse(14, 45, seed=seed)
        (spins,) = random_spins(1, 14, seed)
        energy = sparse_kernels.tabu(
            *rows(problem), problem.linear, spins, block, 3000, tenure, np.uint64(seed + 1), NEVER
        )
        assert problem.energy(spins) == pytest.approx(energy + problem.offset)
        assert energy + problem.offset == pytest.approx(least_energy(problem), abs=1e-9)


def test_blocks_do_not_change_the_moves():
    problem = random_sparse(40, 100)
    found = []
    for block in (1, 7, 64):
        (spins,) = random_spins(1, 40)
        sparse_kernels.tabu(*rows(problem), problem.linear, spins, block, 60, 3, np.uint64(4), NEVER)
        found.append(spins)
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_every_search_ends_at_once_when_the_time_is_up():
    problem, now = random_sparse(30, 80), np.ones(1, np.uint8)
    single, sites = problem.couplings.astype(np.float32), np.arange(30, dtype=np.int32)
    fields, temperatures = lanes.first_fields(problem.linear), np.ones(5)
    arrays = (*rows(problem)[:2], single)
    assert (
        lanes.anneal(*arrays, fields, random_bits(30), sites, temperatures, lanes.EXPONENTIAL, np.uint64(1), now) == 0
    )
    (one,) = random_spins(1, 30)
    assert sparse_kernels.anneal(*arrays, problem.linear, one, sites, temperatures, LOG_UNIFORM, np.uint64(1), now) == 0
    before = one.copy()
    sparse_kernels.tabu(*rows(problem), problem.linear, one, 8, 10**12, 3, np.uint64(1), now)
    assert np.array_equal(one, before)
