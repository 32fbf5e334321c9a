import warnings

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant, real_optimizer
from qpsbgd.nn import BinaryLinear, convert


def network():
    first = nn.Linear(6, 8, bias=False)  # in front of a batch norm a bias would have no gradient
    layers = (first, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    return convert(nn.Sequential(*layers), scale=None)


def train(model, *steps, count=5):
    for _ in range(count):
        model.zero_grad()
        model(torch.randn(16, 6)).square().mean().backward()
        for step in steps:
            step()


def caught(act):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in found]


@pytest.mark.parametrize("make", [QPSBGD, BinaryConnect, ProxQuant])
def test_parameters_that_nothing_trains_are_named_once_with_the_remedy(make):
    model = network()
    optimizer = make(model)
    found = caught(lambda: train(model, optimizer.step, count=12))
    assert len(found) == 1
    assert "nothing has changed 4 other trainable parameters" in found[0]
    assert "1.weight, 1.bias, 3.bias, 5.bias;" in found[0]
    assert "real=True" in found[0]


def test_the_warning_points_at_the_line_that_steps():
    model = network()
    with pytest.warns(UserWarning, match="nothing has changed") as found:
        train(model, QPSBGD(model).step)
    assert found[0].filename == __file__


def data_sgd(parameters):
    """A step of the old kind, which writes to `.data`."""

    def step():
        for p in parameters:
            p.data.sub_(0.1 * p.grad)

    return step


OTHERS = {
    "real_optimizer": lambda model, optimizer: real_optimizer(model, beside=optimizer).step,
    "AdamW": lambda model, optimizer: torch.optim.AdamW(real(model)).step,
    "foreach": lambda model, optimizer: torch.optim.SGD(real(model), lr=0.1, foreach=True).step,
    "data": lambda model, optimizer: data_sgd(real(model)),
}


def real(model):
    binary = {m.weight for m in model.modules() if isinstance(m, BinaryLinear)}
    return [p for p in model.parameters() if p not in binary]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_an_optimiser_beside_it_keeps_it_silent(other):
    for order in (1, -1):
        model = network()
        optimizer = QPSBGD(model)
        steps = [optimizer.step, other(model, optimizer)][::order]
        assert caught(lambda steps=steps, model=model: train(model, *steps)) == []


@pytest.mark.parametrize(
    "given",
    [
        lambda model: {"params": [m.weight for m in model if isinstance(m, BinaryLinear)]},
        lambda model: {"params": model.parameters()},
        lambda model: {"params": model, "real": True},
        lambda model: {"params": model, "real": {}},
        lambda model: {"params": model, "real": False},
        lambda model: {"params": [{"params": model, "real": False}]},
        lambda model: {"params": [{"params": model, "real": True}]},
        lambda model: {"params": [model, *real(model)]},
    ],
)
def test_it_is_silent_where_all_is_trained_or_said(given):
    model = network()
    options = given(model)
    optimizer = QPSBGD(options.pop("params"), **options)
    assert caught(lambda: train(model, optimizer.step)) == []


def test_frozen_parameters_and_those_without_gradient_are_not_missed():
    model = network()
    for p in real(model):
        p.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    assert caught(lambda: train(model, QPSBGD(model).step)) == []


def test_a_group_without_real_parameters_overrules_the_optimiser():
    model = network()
    optimizer = QPSBGD([{"params": model[:4], "real": False}, {"params": model[4:]}], real={"lr": 0.1})
    before = model[3].bias.clone()
    assert caught(lambda: train(model, optimizer.step)) == []
    assert torch.equal(model[3].bias, before)
    assert optimizer.real_groups[0]["params"] == [model[5].bias]
