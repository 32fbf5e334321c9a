"""A seed gives the answer that it always gave: what changes a search, in its speed or its quality alone, is seen here.

Problems have whole numbers, so that energies are exact, and searches are too short for them: answers are as varied as
the searches. An answer that is meant to change gets its new numbers from the test's message.
"""

import itertools
import zlib

import numpy as np
import pytest
from sparse_problems import model_of, torus

from qpsbgd_qubo import SparseIsing, solve
from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import NEVER
from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.solvers.portfolio.pool import PoolSearch
from qpsbgd_qubo.solvers.portfolio.search_problem import DenseSearchProblem, SparseSearchProblem
from qpsbgd_qubo.solvers.search.chains import cooling


def dense(n, columns, *, uneven=False):
    """A family without structure; with inputs of uneven size, a positive definite one."""
    generator, largest = np.random.default_rng(0), 9
    half = np.triu(generator.integers(-9, 10, (n, n)), 1).astype(float)
    if uneven:
        rows = generator.integers(-2, 3, (n, n)) * 2.0 ** np.linspace(0, 4, n).round()
        half, largest = np.triu(rows.T @ rows), 300
    return QuboFamily((half + half.T) / 2, generator.integers(-largest, largest + 1, (n, columns)).astype(float))


def sparse(n, pairs):
    generator = np.random.default_rng(0)
    ends, sizes = generator.integers(0, n, (2, pairs)), generator.integers(1.0, 5.0, pairs)
    values = sizes * generator.choice([-1.0, 1.0], pairs)
    return SparseIsing.from_edges(n, *ends, values, linear=generator.integers(-2, 3, n).astype(float))


def tour(n):
    """A tour of places in the plane as a QUBO: one bit for every place and time."""
    generator, bits = np.random.default_rng(0), np.arange(n * n).reshape(n, n)
    lengths, entries = generator.integers(1, 50, (n, n)), {}
    for group in (*bits, *bits.T):
        for i in group:
            entries[i, i] = entries.get((i, i), 0) - 100
            entries |= {(i, j): 200 for j in group if i < j}
    for a, b in zip(*np.nonzero(1 - np.eye(n)), strict=True):
        for t in range(n):
            pair = tuple(sorted((bits[a, t], bits[b, (t + 1) % n])))
            entries[pair] = entries.get(pair, 0) + int(lengths[a, b])
    return SparseIsing.from_qubo(n * n, *zip(*entries, strict=True), np.array(list(entries.values()), float))


PROBLEMS = {
    "dense": dense(60, 6),
    "wide": dense(260, 3),
    "uneven": dense(48, 6, uneven=True),
    "few couplings": QuboFamily(sparse(120, 300).to_dense().quadratic, dense(120, 20).linear / 3),
    "grid": torus(30, 30),
    "graph": sparse(400, 1400),
    "dense graph": sparse(150, 9000),
    "tour": tour(7),
    "long tour": tour(12),
}
SINGLE = {name for name, problem in PROBLEMS.items() if isinstance(problem, SparseIsing)}
SEARCHES = (
    ("dense", "descent", {}, 3021546129),
    ("dense", "descent", {"max_flips": 8}, 772116544),
    ("dense", "descent", {"tabu": 20, "tenure": 7}, 1670694077),
    ("dense", "descent", {"restarts": 2}, 4187958761),
    ("wide", "descent", {"tabu": 150}, 1066346426),
    ("dense", "annealing", {}, 2139095951),
    ("dense", "annealing", {"sweeps": 4, "reads": 2, "hot": 0.7, "cold": 0.1}, 60117440),
    ("dense", "quantum-annealing", {}, 3904721436),
    (
        "dense",
        "quantum-annealing",
        {"sweeps": 6, "slices": 3, "reads": 2, "field": 2.0, "temperature": 0.2},
        3605384678,
    ),
    ("dense", "auto", {}, 3569567182),
    ("wide", "auto", {}, 768902427),
    ("uneven", "auto", {}, 2857284939),
    ("few couplings", "auto", {}, 1894418337),
    ("dense", "portfolio", {"rounds": 4}, 894051542),
    ("wide", "portfolio", {}, 1552134654),
    ("grid", "portfolio", {"rounds": 25}, 1424863529),
    ("graph", "portfolio", {"rounds": 15}, 705657382),
    ("dense graph", "portfolio", {"rounds": 12}, 3667137269),
    ("tour", "portfolio", {"rounds": 3}, 1789553446),
    ("long tour", "portfolio", {"rounds": 15}, 1625124404),
)
MOVES = {
    "graph, one by one": 501714796,
    "tour": 1147718517,
    "long tour": 2892621046,
    "grid": 3229676395,
    "graph": 4190768714,
    "dense graph": 931339768,
}


TRAILS = {
    "graph, one by one": 1143641303,
    "tour": 4091663160,
    "long tour": 4140557740,
    "grid": 320777473,
    "graph": 3519835647,
    "dense graph": 1620503311,
}


def prepared(name):
    problem = PROBLEMS[name.removesuffix(", one by one")]
    if name in ("dense graph", "tour"):
        return DenseSearchProblem(problem.to_dense().couplings(), problem.linear)
    found = SparseSearchProblem(model_of(problem))
    found.one_by_one = name.endswith("one by one")
    return found


@pytest.mark.parametrize("name", TRAILS)
def test_a_pool_of_answers_is_filled_as_it_always_was(name):
    search, trail = PoolSearch(prepared(name), 2, 0, NEVER), []
    for _ in range(40):
        search.round(map, 2)
        trail += [*search.made, search.sweeps, search.stale, len(search.pool), *search.gains.round(6)]
        trail += [round(energy) for _, energy in search.pool]
    poor = np.random.default_rng(0).choice([-1, 1], (2, len(search.problem.linear))).astype(np.int8)
    search.pool = [(spins, 0.0) for spins in poor]  # from which every kind of move leads somewhere
    for kind, seed in itertools.product(range(len(search.moves)), range(3)):
        base = -1 if search.moves[kind].name in ("fresh", "assign") else 0
        trail.append(zlib.crc32(search._made(kind, base, 1, seed, sweeps=4)[0].tobytes()))
    found = zlib.crc32(" ".join(map(str, trail)).encode())
    assert found == TRAILS[name]


@pytest.mark.parametrize("name", MOVES)
def test_single_moves_lead_where_they_always_led(name):
    search, spins, many = prepared(name), [], {"sites": np.arange(0, 40, 3, dtype=np.int32)}
    for seed in range(12):
        options = {"seed": seed, "stop": NEVER}
        heat = cooling(search.typical, hot=0.5 + seed / 9, sweeps=2 + seed)
        start, _ = search.annealed(None, temperatures=heat, **options)
        spins += [start, search.searched(start, moves=20, tenure=seed, **options)[0]]
        spins += [search.annealed(start, temperatures=heat, **options, **more)[0] for more in ({}, many)]
        if search.groups is not None:
            spins += [search.groups.annealed(None, hot=0.3, sweeps=3 * seed, **options)]
            spins += [search.groups.searched(spins[-1], sweeps=2, **options)]
            spins += [search.regrouped(spins[-1], across=spins[-2], hot=hot, sweeps=9, **options)[0] for hot in (0, 1)]
    found = zlib.crc32(np.stack(spins).tobytes())
    assert found == MOVES[name]


@pytest.mark.parametrize(("problem", "name", "options", "expected"), SEARCHES)
def test_the_same_seeds_give_the_same_spins_as_ever(problem, name, options, expected, monkeypatch):
    monkeypatch.setattr("qpsbgd_qubo.solvers.portfolio.portfolio.thread_count", lambda: 1)  # which makes one search
    spins = []
    for seed in (0, 5):
        solver = make_solver(name, **options, seed=seed)
        solution = solve(PROBLEMS[problem], solver=solver) if problem in SINGLE else solver.solve(PROBLEMS[problem])
        spins.append(np.asarray(solution.spins > 0).reshape(solution.spins.shape[0], -1))
    found = zlib.crc32(np.stack(spins).tobytes())
    assert found == expected
