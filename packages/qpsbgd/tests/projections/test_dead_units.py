"""No gradient, no step: units and layers without a gradient, and gradients of any size."""

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, Bop, ProxQuant, StraightThrough
from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLinear
from qpsbgd.projections import Printed, Ridge, Spins

PROJECTIONS = {
    "ridge": Ridge(),
    "blocks": Ridge(block=3),
    "spins": Spins(),
    "two-bits": Spins(bits=2),
    "cold": Spins(solver="descent"),
    "spins-polar": Spins(target="polar"),
    "polar": "polar",
    "printed": Printed(scale=1.0),
}
UNITWISE = ("spins", "two-bits", "cold", "spins-polar", "polar", "printed")
SCALE_FREE = {
    **{name: lambda p, own=own: QPSBGD(p, 0.01, own, momentum=0.9, clip=None) for name, own in PROJECTIONS.items()},
    **{
        name: lambda p, name=name: BinaryConnect(p, 0.01, name, momentum=0.9, clip=None)
        for name in ("sign", "normalized", "muon")
    },
    "straight-through muon": lambda p: StraightThrough(p, 0.01, "muon"),
    "proxquant": lambda p: ProxQuant(p, 0.01, rate=0.0, momentum=0.9),
}
ALL = SCALE_FREE | {
    "adam": lambda p: BinaryConnect(p, 0.01, "adam"),
    "straight-through adam": lambda p: StraightThrough(p, 0.01, "adam", weight_decay=0.0),
    "straight-through sgd": lambda p: StraightThrough(p, 0.01, "sgd", weight_decay=0.0),
    "sgd": lambda p: BinaryConnect(p, 0.01, "sgd"),
    "proxquant adam": lambda p: ProxQuant(p, 0.01, rate=0.0, update="adam"),
    "bop": lambda p: Bop(p, 0.01),
}
FIXED = {name: make for name, make in ALL.items() if "proxquant" not in name}
"""Without the optimiser that moves weights without a gradient, too."""
LAYERS = {
    "dense": (lambda **own: BinaryLinear(6, 4, **own), (6,)),
    "bits": (lambda **own: BinaryLinear(6, 4, bits=2, **own), (6,)),
    "convolution": (lambda **own: BinaryConv2d(2, 4, 3, **own), (2, 4, 4)),
    "depthwise": (lambda **own: BinaryConv2d(4, 4, 3, groups=4, **own), (4, 4, 4)),
    "grouped": (lambda **own: BinaryConv1d(4, 4, 2, groups=2, **own), (4, 5)),
}


def layer_of(kind, seed=0, **options):
    torch.manual_seed(seed)
    make, shape = LAYERS[kind]
    return make(**options), torch.randn(12, *shape)


def pass_through(layer, x, seed, factor=1.0, dead=()):
    """A forward and a backward pass whose gradient is random, `factor` times as large, and zero for some units."""
    torch.manual_seed(seed)
    output = layer(x)
    grads = factor * torch.randn_like(output)
    grads[:, list(dead)] = 0
    output.backward(grads)


def walk(make, kind, factors, **options):
    """The directions of steps whose gradients are the same but for these factors."""
    layer, x = layer_of(kind, **options)
    optimizer, moves = make([layer.weight]), []
    for seed, factor in enumerate(factors):
        optimizer.zero_grad()
        pass_through(layer, x.to(layer.weight.dtype), seed, factor)
        before = layer.weight.detach().double()
        optimizer.step()
        moves.append(before - layer.weight.detach().double())
    return moves


@pytest.mark.parametrize(
    ("name", "kind", "factor"),
    [
        *((name, "dense", factor) for name in SCALE_FREE for factor in (1e-30, 1e30, 1e-40)),
        *((name, kind, 1e-30) for name in ("ridge", "spins", "polar", "printed") for kind in LAYERS if kind != "dense"),
    ],
)
def test_the_direction_does_not_depend_on_the_size_of_the_gradient(name, kind, factor):
    make = SCALE_FREE[name]
    for move, other in zip(walk(make, kind, [1.0] * 3), walk(make, kind, [factor] * 3), strict=True):
        assert move.any()
        # A sign may differ where a decision is close, and 1e-40 has fewer digits.
        assert torch.cosine_similarity(move.flatten(), other.flatten(), dim=0) > 0.97
        torch.testing.assert_close(other.norm(), move.norm(), rtol=1e-2 if factor == 1e-40 else 1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_gradients_of_any_size_one_after_the_other_leave_finite_weights(make, dtype):
    largest = torch.finfo(dtype).max / 100
    factors = [1.0, largest, 1e-30, 0.0, 1e-4, largest, largest, 0.0, 0.0, 1e-40]
    for move in walk(make, "dense", factors, dtype=dtype):
        assert move.isfinite().all()


@pytest.mark.parametrize("make", SCALE_FREE.values(), ids=SCALE_FREE)
def test_a_gradient_of_rank_one_has_a_finite_direction_that_descends(make):
    layer = BinaryLinear(6, 4)
    optimizer = make([layer.weight])
    before = layer.weight.detach().clone()
    output = layer(torch.ones(3, 6))
    output.backward(torch.tensor([1.0, -2.0, 3.0, -4.0]).expand(3, -1))
    optimizer.step()
    moved = before - layer.weight.detach()
    assert moved.isfinite().all() and (moved * layer.weight.grad).sum() > 0


@pytest.mark.parametrize(
    ("name", "kind", "factor"),
    [
        *((name, "dense", factor) for name in PROJECTIONS for factor in (1.0, 1e-25)),
        *((name, kind, 1.0) for name in ("ridge", "spins", "polar", "printed") for kind in LAYERS if kind != "dense"),
    ],
)
def test_a_layer_without_a_gradient_stays_while_its_memory_fades(name, kind, factor):
    projection = PROJECTIONS[name]
    layer, x = layer_of(kind)
    optimizer = QPSBGD([layer.weight], 0.01, projection, momentum=0.9, clip=None)
    for seed in range(3):
        optimizer.zero_grad()
        pass_through(layer, x, seed, factor)
        optimizer.step()
    before, kept = layer.weight.detach().clone(), optimizer.state[layer.weight].get("gradient")
    for seed in range(2):
        optimizer.zero_grad()
        pass_through(layer, x, seed, 0.0)
        optimizer.step()
    assert torch.equal(layer.weight, before)
    if kept is not None:
        torch.testing.assert_close(optimizer.state[layer.weight]["gradient"], 0.81 * kept, rtol=1e-5, atol=0)
    optimizer.zero_grad()
    pass_through(layer, x, 5)
    optimizer.step()
    assert not torch.equal(layer.weight, before), "it goes on once there is a gradient"


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "dense") for name in UNITWISE), *zip(UNITWISE, [*[*LAYERS][1:], "depthwise", "bits"], strict=True)],
)
def test_a_unit_without_a_gradient_stays_and_changes_nothing_for_the_others(name, kind):
    projection = PROJECTIONS[name]

    def after(first):
        layer, x = layer_of(kind)
        optimizer = QPSBGD([layer.weight], 0.01, projection, momentum=0.9, clip=None)
        for seed in range(4):
            optimizer.zero_grad()
            dead = [1] if seed >= first else []
            pass_through(layer, x, seed, dead=dead)
            before = layer.weight.detach().clone()
            optimizer.step()
        return (before - layer.weight.detach())[[0, 2, 3]], (before - layer.weight.detach())[1]

    (always, _), (lately, own) = after(0), after(2)
    assert not own.any()
    assert always.any()
    # Sizes are those of whole layers, and of the moments that a dead unit has left there.
    assert torch.cosine_similarity(always.flatten(), lately.flatten(), dim=0) > 0.999


@pytest.mark.parametrize("make", FIXED.values(), ids=FIXED)
def test_a_unit_that_never_has_a_gradient_never_moves(make):
    layer, x = layer_of("dense")
    optimizer = make([layer.weight])
    before = layer.weight.detach().clone()
    for seed in range(5):
        optimizer.zero_grad()
        pass_through(layer, x, seed, dead=[1])
        optimizer.step()
    assert torch.equal(layer.weight[1], before[1])
    assert not torch.equal(layer.weight, before)


@pytest.mark.parametrize("projection", ["ridge", "polar", "spins", "printed"])
def test_a_trained_layer_keeps_what_it_has_learnt_while_another_one_is_trained(projection):
    torch.manual_seed(0)
    x, y = torch.randn(64, 8), torch.randint(0, 2, (64,))
    first, second = BinaryLinear(8, 2), BinaryLinear(8, 2)
    optimizer = QPSBGD([first.weight, second.weight], 0.02, projection, momentum=0.9)

    def steps(weight, count):
        for _ in range(count):
            optimizer.zero_grad()
            loss = weight * nn.functional.cross_entropy(first(x), y)
            (loss + (1 - weight) * nn.functional.cross_entropy(second(x), y)).backward()
            optimizer.step()

    steps(0.5, 30)
    before, other = first.weight.detach().clone(), second.weight.detach().clone()
    steps(0.0, 30)
    assert torch.equal(first.weight, before)
    assert not torch.equal(second.weight, other)


def dying(kind, projection, steps, momentum):
    """A small network, a tenth or so of whose units lose their gradient for ever after twenty steps."""
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer = make()
    x = torch.randn(8, *shape)
    mask = torch.ones_like(layer(x)[:1])
    mask[:, 1] = 0
    model = nn.Sequential(layer, nn.Hardtanh(-30, 30), nn.Flatten(), BinaryLinear(layer(x)[0].numel(), 3))
    optimizer = QPSBGD(list(model.parameters()), 1e-3, projection, momentum=momentum)
    dead = None
    for step in range(steps):
        optimizer.zero_grad()
        output = layer(x + 0.1 * torch.randn_like(x))
        output = output if step < 20 else output * mask
        loss = nn.functional.cross_entropy(model[1:](output), torch.arange(8) % 3)
        loss.backward()
        if step == 20:
            dead = layer.weight.detach()[1].clone()
        optimizer.step()
        assert loss.isfinite() and all(p.isfinite().all() for p in model.parameters()), step
    return layer, dead


@pytest.mark.parametrize(
    ("projection", "kind"), [("polar", "dense"), ("polar", "depthwise"), ("spins", "dense"), ("printed", "depthwise")]
)
def test_steps_with_dead_units_stay_finite_and_leave_these_where_they_are(projection, kind):
    layer, dead = dying(kind, projection, 150, momentum=0.4)  # 1e-52 of their moments is left, less than a float holds
    assert torch.equal(layer.weight[1], dead)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("projection", PROJECTIONS.values(), ids=PROJECTIONS)
def test_three_thousand_steps_with_dead_units_stay_finite(projection, kind):
    dying(kind, projection, 3000, momentum=0.9)


def test_a_dead_channel_of_a_depthwise_layer_does_not_make_the_polar_factor_diverge():
    torch.manual_seed(0)
    model = nn.Sequential(BinaryConv2d(4, 4, 3, padding=1, groups=4), nn.Flatten(), BinaryLinear(144, 3))
    optimizer = QPSBGD(model, 0.01, "polar", momentum=0.4, real=False)
    before = model[0].weight[0].detach().clone()
    for step in range(150):
        x = torch.randn(16, 4, 6, 6)
        if step >= 20:
            x[:, 1] = 0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(16) % 3).backward()
        optimizer.step()
        assert all(p.isfinite().all() for p in model.parameters()), step
    assert not torch.equal(model[0].weight[0], before)
