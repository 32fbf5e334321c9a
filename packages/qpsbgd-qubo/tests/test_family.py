import dimod
import pytest
import torch

from qpsbgd.qubo import QuboFamily, Solution


def small_family():
    quadratic = torch.tensor([[1.0, 2.0], [2.0, 3.0]])
    linear = torch.tensor([[0.5, -1.0, 0.0], [1.5, 2.0, 0.0]])
    return QuboFamily(quadratic, linear, torch.tensor([10.0, 20.0, 30.0]))


def test_energies_are_those_computed_by_hand():
    spins = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
    # gᵀQg is 1 + 3 ∓ 4; the fields add 0.5 − 1.5, 1 − 2 and nothing.
    assert small_family().energies(spins).tolist() == [10 + 0 - 1.0, 20 + 8 - 1.0, 30 + 8.0]


def test_energies_take_whole_numbers_and_leading_dimensions():
    spins = torch.ones(4, 2, 3, dtype=torch.int8)
    assert small_family().energies(spins).shape == (4, 3)


def test_families_add_and_scale_as_their_energies_do():
    family = small_family()
    spins = torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    torch.testing.assert_close((family + family * 0.5).energies(spins), 1.5 * family.energies(spins))
    torch.testing.assert_close((2 * family).energies(spins), 2 * family.energies(spins))


@pytest.mark.parametrize("column", [0, 1, -1])
def test_a_column_as_a_dimod_model_has_equal_energies(column):
    family = small_family()
    bqm = family.to_bqm(column)
    assert bqm.vartype is dimod.SPIN
    for first in (-1, 1):
        for second in (-1, 1):
            spins = torch.tensor([[float(first)] * 3, [float(second)] * 3])
            assert bqm.energy({0: first, 1: second}) == pytest.approx(float(family.energies(spins)[column]))


def test_the_offset_is_zero_when_left_out():
    assert QuboFamily(torch.eye(2), torch.zeros(2, 3)).offset.tolist() == [0, 0, 0]


def test_whole_numbers_and_half_precision_are_widened():
    assert QuboFamily([[0, 1], [1, 0]], [[1], [2]]).quadratic.dtype == torch.float64
    assert QuboFamily(torch.eye(2).bfloat16(), torch.zeros(2, 1).half()).linear.dtype == torch.float32


@pytest.mark.parametrize(
    ("quadratic", "linear", "offset", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 1), None, "quadratic must have shape"),
        (torch.zeros(2, 2), torch.zeros(3, 1), None, "linear must have shape"),
        (torch.zeros(2, 2), torch.zeros(2), None, "linear\\[:, None\\]"),
        (torch.zeros(2, 2), torch.zeros(2, 0), None, "at least one spin and one column"),
        (torch.zeros(0, 0), torch.zeros(0, 1), None, "at least one spin and one column"),
        (torch.zeros(2, 2), torch.zeros(2, 1), torch.zeros(2), "offset must have shape"),
        (torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.zeros(2, 1), None, "symmetric.*\\(Q \\+ Q.T\\) / 2"),
        (torch.full((2, 2), torch.nan), torch.zeros(2, 1), None, "quadratic holds NaN"),
        (torch.zeros(2, 2), torch.full((2, 1), torch.inf), None, "linear holds NaN or infinite"),
        (torch.zeros(2, 2), torch.zeros(2, 1), torch.tensor([torch.nan]), "offset holds NaN"),
        (torch.zeros(2, 2, dtype=torch.complex64), torch.zeros(2, 1), None, "real coefficients"),
    ],
)
def test_bad_families_are_refused(quadratic, linear, offset, message):
    with pytest.raises(ValueError, match=message):
        QuboFamily(quadratic, linear, offset)


def test_bad_requests_are_refused():
    family = small_family()
    with pytest.raises(ValueError, match="spins must have shape"):
        family.energies(torch.ones(3, 2))
    with pytest.raises(ValueError, match="different shapes"):
        family + QuboFamily(torch.eye(2), torch.zeros(2, 1))
    with pytest.raises(IndexError, match="out of range"):
        family.to_bqm(3)
    with pytest.raises(TypeError):
        family * "2"


def test_a_solution_computes_its_energies():
    family = small_family()
    solution = Solution.of(family, torch.ones(2, 3, dtype=torch.int8), proven_optimal=True, solver="mine")
    torch.testing.assert_close(solution.energies, family.energies(torch.ones(2, 3)))
    assert solution.proven_optimal.tolist() == [True, True, True]
    assert "3/3 proven optimal" in repr(solution)


def test_half_precision_is_widened_and_double_precision_kept():
    assert QuboFamily(torch.eye(2).half(), torch.zeros(2, 1).half()).linear.dtype == torch.float32
    assert QuboFamily(torch.eye(2).double(), torch.zeros(2, 1).double()).linear.dtype == torch.float64


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_asymmetry_of_rounding_is_averaged_out_and_more_is_refused(dtype, rounding):
    quadratic = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=dtype)
    quadratic[0, 1] += rounding
    family = QuboFamily(quadratic, torch.zeros(2, 1, dtype=dtype))
    assert torch.equal(family.quadratic, family.quadratic.T)
    assert family.quadratic[0, 1].item() == pytest.approx(1 + rounding / 2, rel=rounding / 10)
    quadratic[0, 1] += 100 * rounding
    with pytest.raises(ValueError, match="must be symmetric"):
        QuboFamily(quadratic, torch.zeros(2, 1, dtype=dtype))


def test_a_family_shows_its_shape_type_and_device():
    assert repr(small_family()) == "QuboFamily(n=2, m=3, float32, cpu)"


def test_a_family_may_have_fields_alone():
    family = QuboFamily(torch.zeros(2, 2), torch.tensor([[1.0], [-2.0]]))
    assert family.energies(torch.tensor([[-1.0], [1.0]])).tolist() == [-3.0]


@pytest.mark.parametrize(
    ("quadratic", "linear", "dtype", "message"),
    [
        (3e37, 3e38, torch.float32, "must stay below 3.4e\\+38 in float32.*power of two"),
        (1e30, 3e38, torch.float32, "must stay below"),
        (1.7e308, 0.0, torch.float64, "must stay below 1.8e\\+308"),
        (1e-44, 1e-44, torch.float32, "below 1.2e-38, where float32 loses digits.*power of two"),
        (0.0, 1e-310, torch.float64, "loses digits"),
    ],
)
def test_families_whose_sums_overflow_or_that_are_too_small_are_refused(quadratic, linear, dtype, message):
    parts = (torch.full((20, 20), quadratic, dtype=dtype), torch.full((20, 2), linear, dtype=dtype))
    with pytest.raises(ValueError, match=message):
        QuboFamily(*parts)


def test_an_offset_counts_among_the_sums():
    with pytest.raises(ValueError, match="must stay below"):
        QuboFamily(torch.full((2, 2), 5e37), torch.full((2, 1), 5e37), torch.tensor([2e38]))
    QuboFamily(torch.full((2, 2), 5e37), torch.full((2, 1), 5e37), torch.tensor([1e37]))
    QuboFamily(torch.zeros(2, 2), torch.zeros(2, 1), torch.tensor([1e-44]))
