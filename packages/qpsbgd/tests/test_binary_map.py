import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpsbgd import QPSBGD
from qpsbgd.binary_map import binary_map
from qpsbgd.nn import BinaryLinear
from qpsbgd.projections import Printed
from qpsbgd.solvers import Solver, make_solver

sizes = st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(1, 9), st.integers(0, 10_000))


def rows(n, m, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(batch, n, generator=generator, dtype=torch.float64)
    grads = torch.randn(batch, m, generator=generator, dtype=torch.float64)
    spins = torch.randint(0, 2, (n, m), generator=generator).double() * 2 - 1
    return inputs, grads, spins


@given(sizes, st.sampled_from([1.0, 0.25]))
def test_energies_are_the_squared_distances_of_definition_1(size, gain):
    inputs, grads, spins = rows(*size)
    slopes = gain * inputs
    directions = slopes / slopes.square().sum(1, keepdim=True)
    distances = (grads - directions @ spins).square().sum(0)
    family = binary_map(inputs, grads, gain=gain, scale="literal")
    torch.testing.assert_close(family.energies(spins), distances)


@given(sizes)
def test_proposition_1_the_gradient_itself_fits_one_row_without_error(size):
    n, m, _, seed = size
    inputs, grads, _ = rows(n, m, 1, seed)
    gradient = inputs.T @ grads
    family = binary_map(inputs, grads, scale="literal")
    torch.testing.assert_close(family.energies(gradient), torch.zeros(m, dtype=torch.float64), atol=1e-9, rtol=0)


@given(sizes, st.sampled_from([0.5, 1.0, 4.0]))
def test_the_scale_makes_the_target_as_large_as_the_reach(size, scale):
    inputs, grads, spins = rows(*size)
    family = binary_map(inputs, grads, scale=scale)
    directions = inputs / inputs.square().sum(1, keepdim=True)
    reach = directions.abs().sum(1).mean()
    targets = scale * reach * grads / grads.square().mean(0).sqrt()
    torch.testing.assert_close(family.energies(spins), (targets - directions @ spins).square().sum(0))


@given(sizes, st.floats(-30, 30))
def test_the_answer_does_not_depend_on_the_size_of_the_loss(size, power):
    inputs, grads, _ = rows(*size)
    family, other = binary_map(inputs, grads), binary_map(inputs, grads * 10.0**power)
    torch.testing.assert_close(family.linear, other.linear)


@given(sizes)
def test_a_large_scale_gives_the_sign_of_zv(size):
    inputs, grads, _ = rows(*size)
    family = binary_map(inputs, grads, scale=1e9)
    directions = inputs / inputs.square().sum(1, keepdim=True)
    assert torch.equal(make_solver("exact").solve(family).spins, (directions.T @ grads).sign())


@given(sizes, st.sampled_from([0.3, 1.0, "literal"]))
def test_an_exact_answer_never_points_against_zv(size, scale):
    inputs, grads, _ = rows(*size)
    family = binary_map(inputs, grads, scale=scale)
    spins = make_solver("exact").solve(family).spins
    # −g has the same quadratic energy, so the linear term −2 gᵀ(Zv) cannot be positive.
    assert ((-family.linear * spins).sum(0) >= -1e-9).all()


def test_rows_without_gradient_are_left_out():
    inputs, grads, _ = rows(4, 3, 6, 0)
    grads[[1, 4]] = 0
    kept = [0, 2, 3, 5]
    family, expected = binary_map(inputs, grads), binary_map(inputs[kept], grads[kept])
    torch.testing.assert_close(family.quadratic, expected.quadratic)
    torch.testing.assert_close(family.linear, expected.linear)


@pytest.mark.parametrize("scale", [1.0, "literal"])
def test_rows_of_zero_input_do_not_change_the_answer(scale):
    inputs, grads, _ = rows(4, 3, 6, 0)
    inputs[[0, 5]] = 0
    family, expected = (
        binary_map(inputs, grads, scale=scale),
        binary_map(inputs[1:5], grads[1:5], scale=scale),
    )
    torch.testing.assert_close(family.quadratic, expected.quadratic)
    torch.testing.assert_close(family.linear, expected.linear)


def test_a_column_without_gradient_has_no_linear_term():
    inputs, grads, _ = rows(4, 3, 6, 0)
    grads[:, 1] = 0
    assert (binary_map(inputs, grads).linear != 0).any(0).tolist() == [True, False, True]


def test_all_zero_inputs_or_gradients_give_a_family_of_zeros():
    family = binary_map(torch.zeros(3, 4), torch.ones(3, 2))
    assert not family.quadratic.any() and not family.linear.any()
    family = binary_map(torch.ones(3, 4), torch.zeros(3, 2))
    assert not family.quadratic.any() and not family.linear.any()


@pytest.mark.parametrize(("factor", "scale"), [(1e8, 1.0), (1e12, "literal"), (1e18, 1.0)])
def test_one_huge_row_does_not_drop_the_others(factor, scale):
    inputs, grads, _ = rows(6, 3, 8, 0)
    inputs[2] *= factor
    inputs[5] = 0
    family = binary_map(inputs.float(), grads.float(), scale=scale)
    slopes = inputs[inputs.any(1)]
    directions = slopes / slopes.square().sum(1, keepdim=True)
    expected = directions.T @ directions
    torch.testing.assert_close(family.quadratic.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "scale"), [(1e30, 1.0), (1e38, "literal"), (1e-30, 1.0)])
def test_rows_whose_squares_leave_the_floating_type_are_refused(size, scale):
    message = "inputs are too large" if size > 1 else "inputs are too small"
    with pytest.raises(ValueError, match=message):
        binary_map(size * torch.ones(40, 6), torch.ones(40, 2), scale=scale)
    assert binary_map(size * torch.ones(4, 6).double(), torch.ones(4, 2), scale=scale).linear.any()


@pytest.mark.parametrize(
    ("inputs", "grads", "options", "message"),
    [
        (torch.zeros(3, 4), torch.zeros(2, 1), {}, "same number of rows"),
        (torch.zeros(4), torch.zeros(4, 1), {}, "must have shape"),
        (torch.zeros(0, 4), torch.zeros(0, 1), {}, "batch is empty"),
        (torch.full((1, 2), torch.nan), torch.ones(1, 1), {}, "inputs hold NaN"),
        (torch.ones(1, 2), torch.full((1, 1), torch.inf), {}, "output_grads hold NaN"),
        (torch.ones(1, 2), torch.ones(1, 1), {"scale": 0}, "scale .*must be"),
        (torch.ones(1, 2), torch.ones(1, 1), {"scale": "big"}, "scale .*must be"),
        (torch.ones(1, 2), torch.ones(1, 1), {"scale": float("nan")}, "scale .*must be"),
        (torch.ones(1, 2), torch.ones(1, 1), {"gain": -1}, "gain must be"),
    ],
)
def test_bad_rows_and_options_are_refused(inputs, grads, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        binary_map(inputs, grads, **options)


@pytest.mark.parametrize("size", [1e-18, 1e-6, 1e15, 1e18])
def test_inputs_of_any_size_give_the_same_answer(size):
    inputs, grads, _ = rows(6, 3, 8, 0)
    expected = make_solver("exact").solve(binary_map(inputs, grads)).spins
    small = binary_map(inputs.float() * size, grads.float())
    assert torch.equal(make_solver("exact").solve(small).spins.double(), expected)


def test_a_family_is_not_rounded_in_an_autocast_block():
    rows = torch.randn(20, 7), torch.randn(20, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = binary_map(*rows)
    expected = binary_map(*rows)
    assert found.quadratic.equal(expected.quadratic) and found.linear.equal(expected.linear)


class Keeping(Solver):
    """Keeps the families that it is given."""

    def __init__(self):
        self.families = []

    def _solve(self, family):
        self.families.append(family)
        return make_solver("exact").solve(family)


def test_printed_solves_the_mean_family_of_all_steps_corrected_for_its_start():
    torch.manual_seed(0)
    layer, solver, beta, fresh = BinaryLinear(6, 3), Keeping(), 0.8, []
    optimizer = QPSBGD(layer, lr=0.1, projection=Printed(solver=solver, scale="literal"), momentum=beta)
    for _ in range(4):
        rows, grads = torch.randn(9, 6), torch.randn(9, 3)
        optimizer.zero_grad()
        layer(rows).backward(grads)
        optimizer.step()
        fresh.append(binary_map(rows, grads, gain=layer.gain, scale="literal"))
        weights = [(1 - beta) * beta**age / (1 - beta ** len(fresh)) for age in range(len(fresh))][::-1]
        for name in ("quadratic", "linear", "offset"):
            mean = sum(w * np.asarray(getattr(family, name)) for w, family in zip(weights, fresh, strict=True))
            np.testing.assert_allclose(getattr(solver.families[-1], name), mean, rtol=1e-4, atol=1e-5)
