import pytest
import torch
import torch.nn.utils.prune
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant, check_claimed, real_optimizer
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


def test_parameters_with_exactly_one_optimiser_pass():
    model = model_with_bias()
    real = [p for name, p in model.named_parameters() if name not in ("0.weight", "2.weight")]
    check_claimed(model, QPSBGD(model[0]), BinaryConnect(model[2]), torch.optim.SGD(real))


@pytest.mark.parametrize(
    ("optimizers", "message"),
    [
        (
            lambda model: [QPSBGD(model), torch.optim.SGD([*model[1].parameters()])],
            r"one optimiser; claimed by none: 0\.bias$",
        ),
        (
            lambda model: [torch.optim.SGD([model[0].bias, *model[1].parameters()])],
            r"claimed by none: 0\.weight, 2\.weight$",
        ),
        (
            lambda model: [
                QPSBGD(model),
                torch.optim.SGD([model[0].bias, *model[1].parameters()]),
                torch.optim.Adam([model[1].weight]),
            ],
            r"claimed by more than one optimiser: 1\.weight$",
        ),
        (
            lambda model: [
                QPSBGD(model[0]),
                torch.optim.Adam(p for p in model.parameters() if p is not model[0].weight),
            ],
            r"binary weights in an ordinary optimiser: 2\.weight$",
        ),
        (
            lambda model: [QPSBGD(model), torch.optim.Adam(model.parameters())],
            r"more than one optimiser: 0\.weight, 2\.weight; binary weights in an ordinary optimiser",
        ),
        (
            lambda model: [
                QPSBGD(model),
                torch.optim.SGD([model[0].bias, *model[1].parameters(), nn.Parameter(torch.zeros(6, 1))]),
            ],
            r"claimed but not of this model: shape \(6, 1\)$",
        ),
    ],
    ids=["never", "binary never", "twice", "wrong kind", "twice and wrong kind", "foreign"],
)
def test_a_parameter_claimed_wrongly_raises_and_is_named(optimizers, message):
    model = model_with_bias()
    with pytest.raises(ValueError, match=message):
        check_claimed(model, *optimizers(model))


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


@pytest.mark.parametrize("kind", [QPSBGD, BinaryConnect])
def test_a_loaded_state_drops_what_the_step_before_it_has_asked(kind):
    model = model_with_bias()
    optimizer = kind(model)
    optimizer._finite_check.ask({model[0].weight: torch.tensor([torch.nan])})  # as a step on a GPU does
    optimizer.load_state_dict(optimizer.state_dict())
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


def test_moments_in_single_precision_may_be_larger_than_half_precision_holds():
    model = nn.Sequential(BinaryLinear(8, 6), nn.Hardtanh(), BinaryLinear(6, 4)).half()
    before = model[0].weight.detach().clone()
    optimizer = QPSBGD(model, projection="ridge")
    (model(64 * torch.randn(64, 8).half()).float() - 1).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)
