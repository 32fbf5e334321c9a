"""The baselines: BinaryConnect, ProxQuant, straight-through training and Bop."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from qpsbgd import BinaryConnect, Bop, ProxQuant, StraightThrough
from qpsbgd.nn import BinaryConv2d, BinaryLinear, convert
from qpsbgd.optim.updates import proximal_step


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(BinaryLinear(4, 5), nn.Hardtanh(), BinaryLinear(5, 3))


def train(model, optimizer, seeds):
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        optimizer.zero_grad()
        target = torch.randn(8, 3, generator=generator)
        (model(torch.randn(8, 4, generator=generator)) - target).square().mean().backward()
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


class SignSGD(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad.sign_()
        return super().step()


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"update": "sgd"}, partial(torch.optim.SGD, fused=True)),
        ({"update": "sgd", "momentum": 0.9}, partial(torch.optim.SGD, momentum=0.9, fused=True)),
        ({"update": "sign"}, SignSGD),
        ({"update": "adam"}, partial(torch.optim.AdamW, weight_decay=0.0, fused=True)),
        (
            {"update": "adam", "betas": (0.5, 0.9), "eps": 1e-3},
            partial(torch.optim.AdamW, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.0, fused=True),
        ),
        (
            {"kind": StraightThrough, "update": "adam", "weight_decay": 0.1},
            partial(torch.optim.AdamW, weight_decay=0.1, fused=True),
        ),
        (
            {"kind": StraightThrough, "update": "sgd", "weight_decay": 0.1},
            partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1, fused=True),
        ),
    ],
    ids=["sgd", "sgd with momentum", "sign", "adam", "adam with options", "straight-through", "straight-through sgd"],
)
def test_without_clipping_the_latent_weights_move_as_torch_would_move_them(options, reference):
    model, other = small_model(), small_model()
    kind, options = options.get("kind", BinaryConnect), {k: v for k, v in options.items() if k != "kind"}
    options |= {"clip": None} if kind is BinaryConnect else {}
    moved = train(model, kind(model, lr=0.02, **options), range(6))
    expected = train(other, reference(other.parameters(), lr=0.02), range(6))
    assert not torch.allclose(moved[0], small_model()[0].weight)
    torch.testing.assert_close(moved, expected, rtol=0, atol=0)


def test_sign_with_momentum_follows_the_sign_of_the_mean_gradient():
    layer = BinaryLinear(1, 3)
    start = layer.weight.detach().clone()
    optimizer = BinaryConnect(layer, lr=0.25, update="sign", momentum=0.5)
    layer.weight.grad = torch.tensor([[4.0], [-1.0], [0.0]])
    optimizer.step()
    layer.weight.grad = torch.tensor([[-1.0], [-1.0], [2.0]])
    optimizer.step()
    # The means are 2, −0.5, 0 after one step and 0.5, −0.75, 1 after two.
    torch.testing.assert_close(layer.weight.detach(), start - 0.25 * torch.tensor([[2.0], [-2.0], [1.0]]))


@pytest.mark.parametrize(
    "make",
    [*(partial(BinaryConnect, update=update) for update in ("sgd", "sign", "adam")), partial(ProxQuant, rate=0.0)],
)
def test_latent_weights_stay_within_the_clip(make):
    model = small_model()
    weights = train(model, make(model, lr=50.0, clip=0.5), range(4))
    assert max(weight.abs().max() for weight in weights) == 0.5


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (BinaryConnect, {"update": "rmsprop"}, "update must be one of .*, got 'rmsprop'"),
        (BinaryConnect, {"update": "adam", "momentum": 0.9}, '"adam" takes betas instead of momentum'),
        (
            BinaryConnect,
            {"betas": (0.9, 1.0)},
            "each of betas must be a finite number of at least 0 and below 1, got 1",
        ),
        (BinaryConnect, {"eps": 0.0}, "eps must be a positive finite number"),
        (ProxQuant, {"lr": None}, "ProxQuant needs a learning rate"),
        (ProxQuant, {"rate": -0.1}, "rate must be a finite number of at least 0"),
        (ProxQuant, {"rate": 0.1, "update": "lion"}, "update must be one of"),
        (StraightThrough, {"update": "lion"}, "update must be one of adam, sgd, muon"),
        (StraightThrough, {"weight_decay": -1.0}, "weight_decay must be"),
        (Bop, {"threshold": 0.0}, "threshold must be"),
        (Bop, {"lr": None}, "Bop needs a learning rate: give lr"),
    ],
)
def test_bad_options_raise(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(small_model(), **options)


@pytest.mark.parametrize("make", [BinaryConnect, StraightThrough, partial(ProxQuant, update="adam")])
def test_adam_makes_no_nan_of_finite_gradients_in_half_precision(make):
    dtype = torch.float16
    layer = BinaryLinear(3, 2, dtype=dtype)
    optimizer = make(layer, lr=0.01)
    for size in (60_000.0, 1e-7, 0.0, 6e4):
        layer.weight.grad = torch.full((2, 3), size, dtype=dtype)
        optimizer.step()
        assert layer.weight.isfinite().all()
    assert all(value.isfinite().all() for value in optimizer.state[layer.weight].values() if torch.is_tensor(value))


@pytest.mark.parametrize("strength", [0.03, 0.4, 1.7])
def test_a_proximal_step_minimises_its_definition(strength):
    weights = torch.linspace(-2, 2, 80, dtype=torch.float64)
    grid = torch.linspace(-3, 3, 60_001, dtype=torch.float64)
    nearest = torch.where(grid >= 0, 1.0, -1.0)
    values = 0.5 * (grid - weights[:, None]).square() + strength * (grid - nearest).abs()
    torch.testing.assert_close(proximal_step(weights, strength), grid[values.argmin(1)], rtol=0, atol=1e-4)


def test_a_step_is_a_gradient_step_then_a_proximal_step_that_grows():
    layer = BinaryLinear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5], [-0.2]]))
    optimizer = ProxQuant(layer, lr=0.1, rate=0.05)
    for expected in ([[0.45], [-0.35]], [[0.45], [-0.55]], [[0.5], [-0.8]]):
        layer.weight.grad = torch.ones(2, 1)
        optimizer.step()
        torch.testing.assert_close(layer.weight.detach(), torch.tensor(expected))


@pytest.mark.parametrize("update", ["sgd", "sign", "adam"])
def test_without_a_regulariser_a_step_is_the_gradient_step(update):
    model, other = small_model(), small_model()
    plain = BinaryConnect(other, lr=0.01, update=update)
    other[0].latent_forward = other[2].latent_forward = True
    expected = train(other, plain, range(5))
    torch.testing.assert_close(train(model, ProxQuant(model, lr=0.01, rate=0.0, update=update), range(5)), expected)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_is_torchs_own_up_to_its_half_precision():
    layer = BinaryLinear(12, 30, scale="magnitude")
    other = nn.Parameter(layer.weight.detach().clone())
    ours = StraightThrough(layer, 0.02, "muon", weight_decay=0.1)
    theirs = torch.optim.Muon([other], lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="original")
    torch.manual_seed(3)
    for _ in range(3):
        layer.weight.grad = torch.randn_like(layer.weight)
        other.grad = layer.weight.grad.clone()
        ours.step()
        theirs.step()
    start = (layer.weight - other).abs().max().item()
    assert start < 0.02 * 0.05


def test_a_weight_flips_once_bops_mean_gradient_has_its_sign_and_is_large():
    layer = BinaryLinear(4, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.3, 0.3, -0.3, -0.3]]))
    optimizer = Bop(layer, lr=0.5, threshold=0.9)
    layer.weight.grad = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    optimizer.step()  # the mean is ±1
    assert layer.binary_weight.tolist() == [[-1, 1, -1, 1]]
    layer.weight.grad = torch.tensor([[-1.0, 1.0, 0.0, 0.0]])
    optimizer.step()  # 0, 0, ½, −½
    assert layer.binary_weight.tolist() == [[-1, 1, -1, 1]]


@pytest.mark.parametrize("update", ["adam", "muon", "bop"])
def test_they_train_convolutions_and_the_rest_of_a_model(update):
    torch.manual_seed(0)
    model = convert(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)))
    assert isinstance(model[0], BinaryConv2d)
    x = torch.randn(64, 1, 6, 6)
    y = (x.mean((1, 2, 3)) > 0).long()
    options = {"steps": 60, "real": True}
    optimizer = (
        Bop(model, threshold=3e-4, **options) if update == "bop" else StraightThrough(model, update=update, **options)
    )
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(("update", "lr"), [("sgd", 0.0), ("sign", 0.001), ("adam", 0.1), ("sgd", 3.0)])
def test_proxquant_binarises_by_the_last_of_its_steps_whatever_the_rate(update, lr):
    model = small_model()
    optimizer = ProxQuant(model, lr=lr, steps=20, update=update)
    weights = train(model, optimizer, range(20))
    assert all(torch.equal(weight.abs(), torch.ones_like(weight)) for weight in weights)


def test_bop_flips_a_latent_weight_of_zero_and_back():
    layer = BinaryLinear(1, 1)
    nn.init.zeros_(layer.weight)
    optimizer = Bop(layer, lr=0.5)
    for grad, expected in ((1.0, -1), (-10.0, 1)):
        layer.weight.grad = torch.full((1, 1), grad)
        optimizer.step()
        assert layer.binary_weight.item() == expected


@pytest.mark.parametrize("make", [BinaryConnect, StraightThrough, partial(ProxQuant, update="adam")])
def test_a_run_in_half_precision_is_resumed_bit_for_bit_with_what_was_kept_in_single(make):
    def train_on(layer, optimizer, seeds):
        for seed in seeds:
            torch.manual_seed(seed)
            layer.weight.grad = torch.randn(3, 4).half()
            optimizer.step()
        return layer.weight.detach().clone()

    layer, fresh = (BinaryLinear(4, 3, dtype=torch.float16) for _ in range(2))
    optimizer, resumed = make(layer, lr=0.01), make(fresh, lr=0.01)
    train_on(layer, optimizer, range(3))
    fresh.load_state_dict(layer.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(train_on(layer, optimizer, range(3, 6)), train_on(fresh, resumed, range(3, 6)))
