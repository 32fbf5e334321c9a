import itertools

import numpy as np
import pytest
from sparse_problems import random_sparse, torus

from qpsbgd_qubo.kernels import NEVER, kernels
from qpsbgd_qubo.solvers.portfolio.groups import OneHot
from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio, _SparseProblem
from qpsbgd_qubo.solvers.portfolio.search_problem import DenseSearchProblem, SparseSearchProblem
from qpsbgd_qubo.sparse import SparseIsing


def qubo(n, groups, costs=(), penalty=20.0):
    """penalty · (1 − Σx)² for every group, and costs (i, j, value)."""
    entries = [(i, i, -penalty) for group in groups for i in group]
    entries += [(i, j, 2 * penalty) for group in groups for i, j in itertools.combinations(group, 2)]
    rows, cols, values = zip(*entries, *costs, strict=True)
    return SparseIsing.from_qubo(n, rows, cols, values, penalty * len(groups))


def colouring(nodes=12, colours=3, seed=0, order="C"):
    """Nodes of a random graph that shall not have the colour of a neighbour; bits by node or by colour."""
    bits = np.arange(nodes * colours).reshape((nodes, colours), order=order)
    generator = np.random.default_rng(seed)
    edges = [pair for pair in itertools.combinations(range(nodes), 2) if generator.random() < 0.3]
    costs = [(int(bits[a, c]), int(bits[b, c]), 1.0) for a, b in edges for c in range(colours)]
    return qubo(nodes * colours, bits.tolist(), costs), bits, edges


def tour(n, seed=0):
    """Places on a line in a random order, to be visited on the shortest closed tour, and its length."""
    places = np.random.default_rng(seed).permutation(n)
    bits = np.arange(n * n).reshape(n, n)
    costs = [
        (int(bits[a, t]), int(bits[b, (t + 1) % n]), float(abs(places[a] - places[b])))
        for a, b in itertools.permutations(range(n), 2)
        for t in range(n)
    ]
    return qubo(n * n, [*bits.tolist(), *bits.T.tolist()], costs, penalty=float(n)), 2 * (n - 1)


def groups_of(problem):
    return OneHot.of(kernels.Rows(problem.indptr, problem.indices, problem.couplings), problem.linear)


@pytest.mark.parametrize("order", ["C", "F"])
def test_one_hot_groups_are_found_however_bits_are_numbered(order):
    problem, bits, _ = colouring(order=order)
    bases = groups_of(problem).bases
    assert (bases >= 0).all()
    assert all(len(set(bases[row])) == 1 for row in bits)
    assert len(set(bases)) == len(bits)


def test_groups_of_different_penalties_beside_free_spins_are_found():
    generator = np.random.default_rng(0)
    groups = [range(k, k + 4) for k in range(0, 24, 4)]
    costs = [(i, i, 3.0 * k) for k, group in enumerate(groups) for i in group]
    costs = [(i, j, float(generator.uniform(-1, 1))) for i in range(30) for j in range(i + 1, 30) if i // 4 != j // 4]
    costs += [(i, j, 2.0 * k) for k, group in enumerate(groups) for i, j in itertools.combinations(group, 2)]
    costs += [(i, i, -1.0 * k) for k, group in enumerate(groups) for i in group]
    bases = groups_of(qubo(30, groups, costs)).bases
    assert all(len(set(bases[list(group)])) == 1 for group in groups)
    assert (bases[24:] == -1).all()


@pytest.mark.parametrize(
    "problem",
    [
        random_sparse(60, 400, seed=1),
        random_sparse(60, 400, seed=1, fields=False),
        torus(8, 8),
        SparseIsing.from_edges(30, *np.triu_indices(30, 1), np.ones(435)),  # the largest cut of a complete graph
        SparseIsing.from_edges(30, *np.triu_indices(30, 1), np.ones(435), linear=np.full(30, 0.5)),  # fourteen of 30
        SparseIsing.from_edges(30, *np.triu_indices(30, 1), -np.ones(435), linear=np.ones(30)),
    ],
)
def test_problems_without_one_hot_groups_have_none(problem):
    assert groups_of(problem) is None


def test_dense_and_sparse_problems_have_the_same_groups():
    problem, _ = tour(5)
    dense = OneHot.of_dense(problem.to_dense().couplings(), problem.linear)
    assert np.array_equal(dense.bases, groups_of(problem).bases)
    assert OneHot.of_dense(np.zeros((3, 3)), np.ones(3)) is None
    assert OneHot.of_dense(np.eye(20) - 1, np.ones(20)) is None  # no positive coupling, and no warning of it
    alone = np.kron(np.eye(8), 4 - 4 * np.eye(4))  # nothing but groups
    assert OneHot.of_dense(alone, alone.sum(1) - 4).bases.tolist() == np.repeat(np.arange(8), 4).tolist()


def test_every_move_within_groups_gives_the_energy_of_its_spins_and_none_goes_up():
    problem, _ = tour(6)
    for prepared in (
        SparseSearchProblem(_SparseProblem(problem).model),
        DenseSearchProblem(problem.to_dense().couplings(), problem.linear),
    ):
        start, before = prepared.anneal_groups(None, across=None, hot=0.3, sweeps=2, seed=0, stop=NEVER)
        other, _ = prepared.anneal_groups(None, across=None, hot=0.3, sweeps=2, seed=1, stop=NEVER)
        for across, hot in ((None, 0.3), (None, 0.0), (other, 0.3)):
            kept = start.copy()
            spins, energy = prepared.anneal_groups(start, across=across, hot=hot, sweeps=20, seed=3, stop=NEVER)
            assert energy <= before + 1e-4
            assert energy + problem.offset == pytest.approx(problem.energy(spins), abs=1e-3)
            assert np.array_equal(start, kept)


def test_only_groups_in_which_two_answers_differ_are_annealed():
    groups = np.arange(24).reshape(8, 3)
    problem = qubo(
        24, groups.tolist(), [(int(group[k]), int(group[k]), float(2 - k)) for group in groups for k in range(3)]
    )
    prepared = SparseSearchProblem(_SparseProblem(problem).model)
    start = np.full(24, -1, np.int8)
    start[groups[:, 0]] = 1  # the worst of every group
    other = start.copy()
    other[groups[:2, :2]] = -other[groups[:2, :2]]
    spins, _ = prepared.anneal_groups(start, across=other, hot=0.3, sweeps=20, seed=0, stop=NEVER)
    best = np.where(np.arange(24) % 3 == 2, 1, -1)
    assert np.array_equal(spins, np.where(np.arange(24) < 6, best, start))


@pytest.mark.parametrize("n", [6, 9])  # dense and sparse
def test_the_shortest_tour_is_found(n):
    problem, length = tour(n)
    spins, _, stats = Portfolio(rounds=15).answer(problem)
    assert problem.energy(spins[:, 0]) == pytest.approx(length)
    assert stats["rounds"] <= 15


@pytest.mark.parametrize("seed", range(2))
def test_edges_of_an_independent_set_are_not_taken_for_one_hot_groups(seed):
    generator = np.random.default_rng(0)
    ends = np.stack(np.nonzero(np.triu(generator.random((300, 300)) < 0.05, 1)))
    every = np.arange(300)  # −Σx + 2 Σ x_i x_j: a triangle has the couplings and fields of (1 − Σx)²
    values = np.concatenate([np.full(300, -1.0), np.full(ends.shape[1], 2.0)])
    problem = SparseIsing.from_qubo(300, *(np.concatenate([every, end]) for end in ends), values)
    assert groups_of(problem) is not None
    spins, _, _ = Portfolio(rounds=20, seed=seed).answer(problem)
    assert problem.energy(spins[:, 0]) <= -73
