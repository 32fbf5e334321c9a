import pytest
import torch
import torch.nn.utils.prune
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant, real_optimizer
from qpsbgd.nn import BinaryLinear


def model_with_bias():
    return nn.Sequential(BinaryLinear(4, 3, bias=True), nn.BatchNorm1d(3), BinaryLinear(3, 2))


def claimed(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def test_the_real_optimiser_is_an_adam_on_all_that_is_left():
    model = model_with_bias()
    optimizer = real_optimizer(model, QPSBGD(model), lr=0.5)
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert claimed(optimizer) == [model[0].bias, model[1].weight, model[1].bias]
    model[0].bias.requires_grad_(False)
    sgd = real_optimizer(model, BinaryConnect(model), torch.optim.SGD, lr=0.1, momentum=0.5)
    assert claimed(sgd) == [model[1].weight, model[1].bias] and type(sgd) is torch.optim.SGD


def test_binary_weights_that_no_binary_optimiser_trains_are_named():
    model = model_with_bias()
    with pytest.raises(ValueError, match=r"QPSBGD does not train the binary weights 2\.weight;"):
        real_optimizer(model, QPSBGD(model[0]))


COMPUTED = {
    "weight_norm": lambda layer: nn.utils.parametrizations.weight_norm(layer),
    "spectral_norm": lambda layer: nn.utils.parametrizations.spectral_norm(layer),
    "prune": lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 0.5),
}


@pytest.mark.parametrize(
    ("make", "compute"), [*zip([QPSBGD, BinaryConnect, ProxQuant], COMPUTED.values(), strict=True)], ids=COMPUTED
)
def test_a_weight_that_is_computed_from_others_is_refused_with_the_reason(make, compute):
    model = nn.Sequential(BinaryLinear(4, 4), BinaryLinear(4, 2))
    compute(model[0])
    with pytest.raises(TypeError, match=r"computed from others(?s:.*)remove_parametrizations"):
        make(model)


def test_the_default_rate_is_relative_and_nothing_else():
    with pytest.raises(ValueError, match="the default learning rate is relative"):
        QPSBGD(BinaryLinear(3, 2), relative=False)


@pytest.mark.parametrize("make", [QPSBGD, BinaryConnect])
def test_a_run_resumed_with_more_steps_goes_on(make):
    saved = make(BinaryLinear(4, 4), steps=8, real=True)
    for group in saved.param_groups:
        group["step"] = 8
    longer = make(BinaryLinear(4, 4), steps=24, real=True)
    longer.load_state_dict(saved.state_dict())
    assert longer.param_groups[0]["steps"] == 24 and longer.param_groups[0]["lr"] == saved.param_groups[0]["lr"]
    same = make(BinaryLinear(4, 4), real=True)
    same.load_state_dict(saved.state_dict())
    assert same.param_groups[0]["steps"] == 8


def test_moments_in_single_precision_may_be_larger_than_half_precision_holds():
    model = nn.Sequential(BinaryLinear(8, 6), nn.Hardtanh(), BinaryLinear(6, 4)).half()
    before = model[0].weight.detach().clone()
    optimizer = QPSBGD(model, projection="ridge")
    (model(64 * torch.randn(64, 8).half()).float() - 1).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)
