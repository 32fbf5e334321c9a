import numpy as np
import pytest
from closeness import assert_close

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.solvers.exact import exact
from qpsbgd_qubo.solvers.exact.exact import Exact
from qpsbgd_qubo.testing import binary_map, lowest_energies, random_family

NEVER = np.zeros(1, np.uint8)
DECODED = 11  # the least number of spins for which the sphere decoder is used


def assert_optimal(family):
    solution = Exact().solve(family)
    assert solution.stats["method"] == "sphere decoder"
    assert solution.proven_optimal.all()
    assert_close(solution.energies, lowest_energies(family), rtol=1e-9, atol=1e-9)


def test_the_oracle_agrees_with_a_case_solved_by_hand():
    # E = 2·2 g₁g₂ + g₁ with trace 2: (−1, +1) gives 2 − 4 − 1.
    family = QuboFamily(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[1.0], [0.0]]))
    assert lowest_energies(family).tolist() == [-3.0]
    solution = Exact().solve(family)
    assert solution.spins.tolist() == [[-1.0], [1.0]]
    assert solution.energies.tolist() == [-3.0]


@pytest.mark.parametrize("scale", [0.05, 0.5, 1.0, 8.0])
@pytest.mark.parametrize("rows", [1, 4, DECODED, 40])
def test_the_decoder_equals_brute_force_on_random_families(rows, scale):
    for seed in range(4):
        assert_optimal(random_family(DECODED + seed, 5, rows, scale=scale, seed=seed, dtype=np.float64))


def special_families():
    generator = np.random.default_rng(0)
    normal = generator.standard_normal
    for seed in range(5):
        inputs = np.maximum(0, normal((30, 12)) + 1)
        yield f"correlated rows {seed}", binary_map(inputs, normal((30, 6)), scale=2.0**-seed)
        half = normal((13, 13))
        yield f"not positive {seed}", QuboFamily(half + half.T, normal((13, 3)))
    yield "no couplings", QuboFamily(np.zeros((12, 12)), normal((12, 3)))
    vector = normal((12, 1))
    yield "rank one", QuboFamily(vector @ vector.T, normal((12, 3)))
    # Whole numbers from a small set, and no field at all in one column: every optimum has a twin.
    half, linear = (generator.integers(-1, 2, (12, columns)).astype(np.float64) for columns in (12, 4))
    linear[:, 0] = 0
    yield "ties", QuboFamily(half + half.T, linear)
    yield "equal rows", QuboFamily(np.full((12, 12), 5.0), np.zeros((12, 2)))


@pytest.mark.parametrize("family", [pytest.param(family, id=name) for name, family in special_families()])
def test_the_decoder_equals_brute_force_on_special_families(family):
    assert_optimal(family)


def test_a_column_that_reaches_the_node_limit_is_not_called_proven():
    family = random_family(36, 3, 40, scale=0.2, dtype=np.float64)
    limited, full = Exact(node_limit=50).solve(family), Exact().solve(family)
    assert not limited.proven_optimal.any()
    assert limited.stats["unproven"] == 3
    assert full.proven_optimal.all()
    assert (full.energies <= limited.energies + 1e-9).all()


def test_the_search_of_a_single_column_ends_when_the_time_is_up():
    # Without a look at the clock inside the column this would go on for years.
    solution = Exact(time_limit=0.5, node_limit=2**62).solve(random_family(150, 1, 150, scale=0.1))
    assert not solution.proven_optimal.any()
    assert (abs(solution.spins) == 1).all()


def test_a_column_that_its_field_decides_needs_no_search():
    solution = Exact().solve(random_family(60, 20, 30, scale=50.0))
    assert solution.proven_optimal.all()
    assert solution.stats["fixed"] == 1.0 and solution.stats["nodes"] == 0


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e12])
def test_a_column_much_larger_than_the_others_does_not_spoil_their_proofs(factor):
    for seed in range(5):
        generator = np.random.default_rng(seed)
        rows = generator.standard_normal((7, 14))
        linear = 0.3 * generator.standard_normal((14, 9))
        linear[:, -1] *= factor
        family = QuboFamily(rows.T @ rows, linear)
        solution = Exact().solve(family)
        assert solution.proven_optimal.all()
        assert_close(solution.energies[:-1], lowest_energies(family)[:-1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("quadratic", [np.zeros((40, 40)), np.eye(40)], ids=["zero", "diagonal"])
def test_families_without_couplings_are_proven_at_once(quadratic):
    linear = np.zeros((40, 3))
    linear[5, 1] = 2.0
    solution = Exact().solve(QuboFamily(quadratic, linear))
    assert solution.proven_optimal.all() and solution.stats["nodes"] == 0


@pytest.mark.parametrize("scale", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("rows", [1, 4, 30])
def test_the_decoder_finds_the_optimum_from_bad_spins_too(rows, scale):
    # Tabu search nearly always starts the decoder at the optimum, where a search that finds nothing would look right.
    for seed in range(4):
        family = random_family(11, 6, rows, scale=scale, seed=seed, dtype=np.float64)
        couplings = family.couplings()
        spins = np.random.default_rng(seed).choice([-1.0, 1.0], size=(6, 11))
        shift = exact.least_shift(family.quadratic)
        linear = family.linear.T.copy()
        nodes = exact.decode(couplings, linear, np.zeros((6, 11)), spins, shift, 10**6, NEVER)
        assert (nodes > 0).all()
        found = family.energies(spins.T.copy())
        assert_close(found, lowest_energies(family), rtol=1e-9, atol=1e-9)


def test_columns_that_the_decoder_gives_up_are_tried_out_beside_their_fixed_spins(monkeypatch):
    family = random_family(24, 6, 40, scale=0.6, seed=2, dtype=np.float64)  # 17 to 24 open spins
    expected = Exact().solve(family)
    monkeypatch.setattr(exact, "decode", lambda couplings, linear, fixed, found, *_: np.full(len(found), -1))
    solution = Exact().solve(family)
    assert 0 < solution.stats["fixed"] < 1 and solution.proven_optimal.all()
    assert_close(solution.energies, expected.energies)


def test_without_time_few_spins_stand_against_their_fields_and_up_where_there_is_none():
    family = random_family(12, 2, 20, scale=0.2, dtype=np.float64)
    linear = np.linspace(-0.5, 0.5, 24).reshape(12, 2)
    linear[3, 0] = linear[4, 1] = 0
    solution = Exact(time_limit=0).solve(QuboFamily(family.quadratic, linear))
    assert solution.spins.tolist() == np.where(linear <= 0, 1.0, -1.0).tolist()
    assert not solution.proven_optimal.any()


def test_whole_numbers_of_very_different_size_are_proven_exactly():
    generator = np.random.default_rng(3)
    for trial in range(25):
        n, large = int(generator.integers(11, 18)), 10 ** int(generator.integers(11, 15))
        quadratic = np.triu(generator.integers(-3, 4, (n, n)), 1)
        quadratic = np.where(generator.random((n, n)) < 0.2, large, 1) * quadratic
        quadratic += quadratic.T
        linear = generator.integers(-3, 4, n)
        spins = 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) - 1
        least = (((spins @ quadratic) + linear) * spins).sum(1).min()
        for name in ("exact", "portfolio"):
            solution = make_solver(name).solve(QuboFamily(quadratic, linear[:, None]))
            answer = solution.spins[:, 0].astype(np.int64)
            assert not solution.proven_optimal or (quadratic @ answer + linear) @ answer == least, (trial, name)
