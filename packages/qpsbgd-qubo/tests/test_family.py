import numpy as np
import pytest
from closeness import assert_close
from lazy import Lazy

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.solvers import make_solver

dimod = Lazy("dimod")


def small_family():
    parts = [[1.0, 2.0], [2.0, 3.0]], [[0.5, -1.0, 0.0], [1.5, 2.0, 0.0]], [10.0, 20.0, 30.0]
    return QuboFamily(*(np.array(part, np.float32) for part in parts))


def test_energies_are_those_computed_by_hand():
    spins = np.array([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
    # gᵀQg is 1 + 3 ∓ 4; the fields add 0.5 − 1.5, 1 − 2 and nothing.
    assert small_family().energies(spins).tolist() == [10 + 0 - 1.0, 20 + 8 - 1.0, 30 + 8.0]


def test_families_add_and_scale_as_their_energies_do():
    family = small_family()
    spins = np.array([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    assert_close((family + family * 0.5).energies(spins), 1.5 * family.energies(spins))
    assert_close((2 * family).energies(spins), 2 * family.energies(spins))


@pytest.mark.parametrize("column", [0, 1, -1])
def test_a_column_as_a_dimod_model_has_equal_energies(column):
    family = small_family()
    bqm = family.to_bqm(column)
    assert bqm.vartype is dimod.SPIN
    for first in (-1, 1):
        for second in (-1, 1):
            spins = np.array([[float(first)] * 3, [float(second)] * 3])
            assert bqm.energy({0: first, 1: second}) == pytest.approx(float(family.energies(spins)[column]))


def test_whole_numbers_and_half_precision_are_widened():
    assert QuboFamily([[0, 1], [1, 0]], [[1], [2]]).quadratic.dtype == np.float64
    assert QuboFamily(np.eye(2, dtype=np.float16), np.zeros((2, 1), np.float16)).linear.dtype == np.float32


@pytest.mark.parametrize(
    ("quadratic", "linear", "offset", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 1)), None, "quadratic must have shape"),
        (np.zeros((2, 2)), np.zeros((3, 1)), None, "linear must have shape"),
        (np.zeros((2, 2)), np.zeros(2), None, "linear\\[:, None\\]"),
        (np.zeros((2, 2)), np.zeros((2, 0)), None, "at least one spin and one column"),
        (np.zeros((0, 0)), np.zeros((0, 1)), None, "at least one spin and one column"),
        (np.zeros((2, 2)), np.zeros((2, 1)), np.zeros(2), "offset must have shape"),
        (np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros((2, 1)), None, "symmetric.*\\(Q \\+ Q.T\\) / 2"),
        (np.full((2, 2), np.nan), np.zeros((2, 1)), None, "quadratic holds NaN"),
        (np.zeros((2, 2)), np.full((2, 1), np.inf), None, "linear holds NaN or infinite"),
        (np.zeros((2, 2)), np.zeros((2, 1)), np.array([np.nan]), "offset holds NaN"),
        (np.zeros((2, 2), dtype=np.complex64), np.zeros((2, 1)), None, "real coefficients"),
        ([[0, 2**53 + 1], [2**53 + 1, 0]], [[0], [0]], None, "exact in double precision.*got 9007199254740993"),
    ],
)
def test_bad_families_are_refused(quadratic, linear, offset, message):
    with pytest.raises(ValueError, match=message):
        QuboFamily(quadratic, linear, offset)


def test_bad_requests_are_refused():
    family = small_family()
    with pytest.raises(ValueError, match="spins must have shape"):
        family.energies(np.ones((3, 2)))
    with pytest.raises(ValueError, match="different shapes"):
        family + QuboFamily(np.eye(2), np.zeros((2, 1)))
    with pytest.raises(IndexError, match="out of range"):
        family.to_bqm(3)
    with pytest.raises(TypeError):
        family * "2"


def test_a_solution_computes_its_energies():
    family = small_family()
    solution = Solution.of(family, np.ones((2, 3), dtype=np.int8), proven_optimal=True, solver="mine")
    assert_close(solution.energies, family.energies(np.ones((2, 3))))
    assert solution.proven_optimal.tolist() == [True, True, True]
    assert "3/3 proven optimal" in repr(solution)


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float32, 1e-5), (np.float64, 1e-10)])
def test_asymmetry_of_rounding_is_averaged_out_and_more_is_refused(dtype, rounding):
    quadratic = np.array([[0.0, 1.0], [1.0, 0.0]], dtype=dtype)
    quadratic[0, 1] += rounding
    family = QuboFamily(quadratic, np.zeros((2, 1), dtype=dtype))
    assert np.array_equal(family.quadratic, family.quadratic.T)
    assert family.quadratic[0, 1].item() == pytest.approx(1 + rounding / 2, rel=rounding / 10)
    quadratic[0, 1] += 100 * rounding
    with pytest.raises(ValueError, match="must be symmetric"):
        QuboFamily(quadratic, np.zeros((2, 1), dtype=dtype))


@pytest.mark.parametrize(
    ("quadratic", "linear", "dtype", "message"),
    [
        (3e37, 3e38, np.float32, "must stay below 3.4e\\+38 in float32.*power of two"),
        (1e30, 3e38, np.float32, "must stay below"),
        (1.7e308, 0.0, np.float64, "must stay below 1.8e\\+308"),
        (1e-44, 1e-44, np.float32, "below 1.2e-38, where float32 loses digits.*power of two"),
        (0.0, 1e-310, np.float64, "loses digits"),
    ],
)
def test_families_whose_sums_overflow_or_that_are_too_small_are_refused(quadratic, linear, dtype, message):
    parts = (np.full((20, 20), quadratic, dtype=dtype), np.full((20, 2), linear, dtype=dtype))
    with pytest.raises(ValueError, match=message):
        QuboFamily(*parts)


def test_an_offset_counts_among_the_sums():
    parts = np.full((2, 2), 5e37, np.float32), np.full((2, 1), 5e37, np.float32)
    with pytest.raises(ValueError, match="must stay below"):
        QuboFamily(*parts, np.array([2e38], np.float32))
    QuboFamily(*parts, np.array([1e37], np.float32))
    QuboFamily(np.zeros((2, 2)), np.zeros((2, 1)), np.array([1e-44]))


@pytest.mark.parametrize(
    ("solver", "kind"),
    [("exact", "array"), ("auto", "tensor"), ("descent", "array"), ("annealing", "tensor"), ("descent", "tensor")],
)
def test_the_layout_of_the_numbers_does_not_matter(solver, kind):
    random = np.random.default_rng(0)
    quadratic, linear = random.normal(size=(14, 14)), random.normal(size=(14, 3))
    by_rows = QuboFamily(quadratic + quadratic.T, linear)
    crooked = [np.asfortranarray(quadratic + quadratic.T), np.repeat(linear, 2, 1)[:, ::2]]
    if kind == "tensor":
        torch = pytest.importorskip("torch")
        crooked = [torch.from_numpy(part) for part in crooked]
    solutions = [make_solver(solver).solve(family) for family in (by_rows, QuboFamily(*crooked))]
    assert solutions[0].spins.tolist() == solutions[1].spins.tolist()
