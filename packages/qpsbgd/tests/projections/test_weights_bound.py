"""Where c A bounds the curvature of the loss, lower energies are lower losses, and training ends."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear
from qpsbgd.projections.weights import Weights
from qpsbgd.solvers import make_solver
from qpsbgd_qubo.solvers.search.descent import Descent

LOSSES = {
    "squared": (1.0, lambda outputs, targets: 0.5 * (outputs - targets).square().sum(1).mean()),
    "logistic": (0.25, lambda outputs, targets: F.softplus(-outputs * targets.sign()).sum(1).mean()),
    "cross entropy": (0.5, lambda outputs, targets: F.cross_entropy(outputs, targets.argmax(1))),
}
"""Bounds of the second derivative by the outputs, and losses."""
SOLVERS = {
    "exact": "exact",
    "one flip": Descent(max_flips=1, warm=True),
    "descent": Descent(warm=True),
    "few sweeps": make_solver("annealing", sweeps=2, reads=1),
}


def problem(seed):
    """A network whose last layer is trained, its inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    n, m, rows, hidden = torch.randint(2, 9, (4,), generator=generator).tolist()
    torch.manual_seed(seed)
    first = [] if hidden % 2 else [BinaryLinear(hidden, n, dtype=torch.float64), nn.Hardtanh()]
    model = nn.Sequential(*first, BinaryLinear(n, m + 1, dtype=torch.float64))
    model[0].requires_grad_(not first)
    inputs = torch.randn(4 * rows, hidden if first else n, dtype=torch.float64, generator=generator)
    return model, inputs, 2 * torch.randn(4 * rows, m + 1, dtype=torch.float64, generator=generator)


def descending(model, *, bound, **options):
    projection = Weights(curvature=bound, refresh=1, memory=0.0, **options)
    return QPSBGD([model[-1]], 1.0, projection, momentum=0.0, clip=None, real=False)


def losses_until_it_stays(model, optimizer, loss, most=300):
    """The loss before every step that changes a weight, and after the last."""
    found = []
    for _ in range(most):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        found.append(value.item())
        before = model[-1].weight.detach().clone()
        optimizer.step()
        if torch.equal(before, model[-1].weight):
            return found
    raise AssertionError("the weights still change")


@pytest.mark.parametrize(
    ("loss", "solver", "window"),
    [
        ("squared", "exact", None),
        ("logistic", "one flip", 2),
        ("cross entropy", "descent", None),
        ("squared", "few sweeps", 2),
        ("logistic", "exact", 2),
        ("cross entropy", "one flip", None),
    ],
)
def test_full_batch_training_falls_until_the_solver_improves_nothing(loss, solver, window):
    (bound, value), solver = LOSSES[loss], SOLVERS[solver]
    moved = 0
    for seed in range(6):
        model, inputs, targets = problem(seed)
        optimizer = descending(model, bound=bound, solver=solver, window=window)
        found = losses_until_it_stays(model, optimizer, lambda: value(model(inputs), targets))  # noqa: B023
        assert all(after < before for before, after in pairwise(found))
        moved += len(found) - 1
    assert moved >= 3


def test_the_loss_falls_at_least_as_far_as_the_energy():
    for seed in range(15):
        model, inputs, targets = problem(seed)
        bound, value = LOSSES[[*LOSSES][seed % 3]]
        optimizer = descending(model, bound=bound, solver="exact")
        before = value(model(inputs), targets)
        before.backward()
        layer = model[-1]
        gradient, start = layer.weight.grad.clone(), layer.binary_weight
        optimizer.step()
        away = layer.binary_weight - start
        outputs = layer.gain * (model[:-1](inputs) @ away.T)
        energy = (gradient * away).sum() + 0.5 * bound * outputs.square().sum(1).mean()
        assert energy <= 1e-12
        assert value(model(inputs), targets) <= before + energy + 1e-12
        if bound == 1.0:  # the model is the loss
            torch.testing.assert_close(value(model(inputs), targets), before + energy)


def test_where_signs_of_the_gradient_hold_the_weights_no_solver_moves_them():
    """Weights that the gradient pushes outwards, fixed points of Theorem 1 as the scale of v grows, are fixed here."""
    held = 0
    for seed in range(40):
        model, inputs, _ = problem(seed)
        value, layer = LOSSES["squared"][1], model[-1]
        targets = 5 * model(inputs).detach()
        value(model(inputs), targets).backward()
        if (layer.binary_weight * layer.weight.grad < 0).all():
            held += 1
            for bound in (1e-3, 1.0):
                before = layer.weight.detach().clone()
                optimizer = descending(model, bound=bound, solver="exact")
                value(model(inputs), targets).backward()
                optimizer.step()
                assert torch.equal(layer.weight, before)
    assert held > 5


def test_layers_with_scales_are_refused():
    with pytest.raises(ValueError, match="layers without scales"):
        QPSBGD(BinaryLinear(4, 2, scale="learned"), 1.0, Weights(curvature=1.0))


def test_with_a_bound_f_is_the_gradient_of_this_step_alone():
    """What earlier steps have found does not bound the loss."""
    bound, value = LOSSES["cross entropy"]
    for seed in range(6):
        model, inputs, targets = problem(seed)
        layer, optimizer = model[-1], descending(model, bound=bound, delta=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            value(model(inputs), targets).backward()
            before, gradient = layer.binary_weight, layer.weight.grad.clone()
            optimizer.step()
            state = optimizer.state[layer.weight]
            matrix = state["gram"][0] / state["gram"].diagonal(dim1=-2, dim2=-1).mean()
            predicted = gradient + state["curvature"] * (layer.binary_weight - before) @ matrix
            torch.testing.assert_close(state["gradient"], predicted)
