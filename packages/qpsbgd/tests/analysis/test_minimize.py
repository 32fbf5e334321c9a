import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpsbgd import minimize
from qpsbgd.binary_map import binary_map
from qpsbgd.nn import sign
from qpsbgd_qubo.solvers.exact.exact import Exact

SIGNS = list(itertools.product((-1.0, 1.0), repeat=2))


def rosenbrock(x):
    return torch.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])


def squared_norm(y):
    return y.square().sum()


class QuadraticTask:
    """Random f_i(x) = xᵀA_i x + b_iᵀx + c_i with E(y) = ‖y‖²; without a large c there are no fixed points."""

    def __init__(self, seed, spins=3, outputs=4):
        generator = torch.Generator().manual_seed(seed)
        self.a, self.b, self.c = (
            torch.randn(outputs, *rest, generator=generator, dtype=torch.float64)
            for rest in ((spins, spins), (spins,), ())
        )
        self.c *= 10
        self.visited = set()
        self.x0 = torch.randn(spins, generator=generator, dtype=torch.float64)

    def f(self, x):
        self.visited.add(tuple(x.tolist()))
        return torch.einsum("kij,i,j->k", self.a, x, x) + self.b @ x + self.c

    def projected(self, spins):
        """Π_Z(∇_y E) at `spins`, with the Jacobian written out."""
        products = self.a @ spins
        jacobian = products + self.a.mT @ spins + self.b
        output = products @ spins + self.b @ spins + self.c
        return Exact().solve(binary_map(jacobian, 2 * output[:, None], scale="literal")).spins[:, 0]

    def run(self, x0, **options):
        return minimize(self.f, squared_norm, x0, scale="literal", solver="exact", **options)


@pytest.mark.parametrize("signs", SIGNS)
def test_rosenbrocks_minimum_is_reached_from_all_signs(signs):
    torch.manual_seed(0)
    result = minimize(rosenbrock, squared_norm, torch.rand(2) * torch.tensor(signs))
    assert result.x.tolist() == [1, 1]
    assert result.value == 0
    assert result.fixed_point


def test_rosenbrock_as_printed_goes_as_computed_by_hand():
    # At (−1, 1) are y = (2, 0), z₁ = (−1, 0) and z₂ = (0.04, 0.02): Π = (−1, 1), and x₁ passes zero first.
    start = torch.tensor([-0.25, 0.35])
    result = minimize(rosenbrock, squared_norm, start, lr=0.1, solver="exact", scale="literal")
    assert result.values == [4, 4, 4, 0]
    torch.testing.assert_close(result.latent, torch.tensor([0.05, 0.05]))
    assert result.fixed_point


def test_a_step_moves_the_real_iterate_against_the_projected_gradient():
    task = QuadraticTask(seed=3)
    latent = task.x0
    for steps in range(1, 5):
        latent = latent - 0.3 * task.projected(sign(latent))
        result = task.run(task.x0, lr=0.3, steps=steps, stop_at_fixed_point=False)
        torch.testing.assert_close(result.latent, latent)


def test_the_rate_can_depend_on_the_step():
    task = QuadraticTask(seed=3)
    latent = task.x0 - task.projected(sign(task.x0))
    result = task.run(task.x0, lr=lambda step: 1 / (1 + step), steps=2, stop_at_fixed_point=False)
    torch.testing.assert_close(result.latent, latent - 0.5 * task.projected(sign(latent)))


def test_values_are_those_of_the_signs_from_the_start_on():
    task = QuadraticTask(seed=4)
    before = task.x0.clone()
    result = task.run(task.x0, lr=0.5, steps=6, stop_at_fixed_point=False)
    assert torch.equal(task.x0, before)
    assert len(result.values) == 7
    assert result.values[0] == pytest.approx(squared_norm(task.f(sign(task.x0))).item())
    assert result.value == min(result.values)


def fixed_points(task):
    spins = (torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1, 1), repeat=len(task.x0)))
    return [s for s in spins if torch.equal(-task.projected(s), s)]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), lr=st.floats(0.01, 2.0))
def test_no_step_changes_the_signs_of_a_fixed_point_of_theorem_1(seed, lr):
    task = QuadraticTask(seed)
    for spins in fixed_points(task):
        result = task.run(task.x0.abs() * spins, lr=lr, steps=12, stop_at_fixed_point=False)
        assert torch.equal(sign(result.latent), spins)
        assert len(set(result.values)) == 1
        assert result.fixed_point


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), lr=st.floats(0.05, 2.0))
def test_the_signs_change_where_the_condition_of_theorem_1_fails(seed, lr):
    task = QuadraticTask(seed)
    start = sign(task.x0)
    toward_zero = task.projected(start) == start
    assert task.run(task.x0, steps=0).fixed_point == (not toward_zero.any())
    if toward_zero.any():
        # Until a sign changes, every such coordinate comes nearer to zero by lr in each step.
        bound = math.floor(task.x0[toward_zero].abs().min().item() / lr) + 1
        task.run(task.x0, lr=lr, steps=bound, stop_at_fixed_point=False)
        assert len(task.visited) > 1


@pytest.mark.parametrize("x0", [torch.ones(2, 2), torch.tensor(1.0), torch.ones(0)])
def test_a_start_that_is_not_a_vector_raises(x0):
    with pytest.raises(ValueError, match=r"x0 must have shape \(n,\), got"):
        minimize(rosenbrock, squared_norm, x0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_start_that_is_not_finite_raises(value):
    with pytest.raises(ValueError, match="x0 holds NaN or infinite values"):
        minimize(rosenbrock, squared_norm, torch.tensor([1.0, value]))


@pytest.mark.parametrize(
    ("f", "loss", "message"),
    [
        (lambda x: x[:, None] * x, lambda y: y.sum(), r"f must return a vector \(m,\), got shape \(2, 2\)"),
        (lambda x: x.sum(), lambda y: y, r"f must return a vector \(m,\), got shape \(\)"),
        (lambda x: 2 * x, lambda y: y, r"loss must return a scalar, got shape \(2,\)"),
        (lambda x: x / 0, squared_norm, "NaN or infinite"),
    ],
)
def test_functions_of_the_wrong_kind_raise(f, loss, message):
    with pytest.raises(ValueError, match=message):
        minimize(f, loss, torch.ones(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "steps must not be negative"),
        ({"scale": 0}, "scale .*must be"),
        ({"solver": "x"}, "unknown solver"),
    ],
)
def test_bad_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        minimize(rosenbrock, squared_norm, torch.tensor([-1.0, 1.0]), **options)


def test_a_hundred_updates_are_made_where_nothing_is_said():
    rates = []
    rate = lambda step: rates.append(step) or 0.001  # noqa: E731
    found = minimize(lambda x: x, torch.sum, torch.ones(2), lr=rate, stop_at_fixed_point=False)
    assert rates == list(range(100)) and len(found.values) == 101
