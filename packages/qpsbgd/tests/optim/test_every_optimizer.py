"""What holds for every optimiser of binary weights: states, copies, closures, groups, bad options, bad gradients."""

import copy
import io
import math
import pickle

import pytest
import torch
from small_networks import Counting, assert_equal, backward, latent, small_model, train
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, Bop, ProxQuant, QuboDescent, StraightThrough
from qpsbgd.nn import BinaryLinear
from qpsbgd.projections import Polar, Printed, Ridge, Spins


def by(kind, *settings, **options):
    """A function that makes an optimiser with these options, unless others are given."""
    return lambda params, **others: kind(params, *settings, **{**options, **others})


def projected(projection, **options):
    """The same for QP-SBGD; the projection is made anew for each."""
    return lambda params, **others: QPSBGD(params, projection=projection(), **{**options, **others})


OPTIMIZERS = {
    **{name: by(QPSBGD, projection=name) for name in ("ridge", "spins", "polar", "printed")},
    "BinaryConnect": BinaryConnect,
    "ProxQuant": ProxQuant,
    "StraightThrough": StraightThrough,
    "Bop": Bop,
    "QuboDescent": QuboDescent,
}
CONFIGURED = {
    **OPTIMIZERS,
    "ridge, no momentum": by(QPSBGD, projection="ridge", momentum=0.0),
    "ridge, schedule": by(QPSBGD, projection="ridge", steps=9),
    "ridge, blocks": projected(lambda: Ridge(block=2, refresh=3)),
    "polar, no momentum": by(QPSBGD, projection="polar", momentum=0.0),
    "polar, blocks": projected(lambda: Polar(block=2)),
    "spins, no momentum": by(QPSBGD, projection="spins", momentum=0.0),
    "spins, annealing": projected(lambda: Spins(solver="annealing")),
    "spins, a solver with state": projected(lambda: Spins(solver=Counting())),
    "printed, momentum": projected(Printed, momentum=0.9),
    "QuboDescent, windows": by(QuboDescent, window=2),
    "QuboDescent, annealing": by(QuboDescent, solver="annealing", turnover=2.0),
    "QuboDescent, a solver with state": by(QuboDescent, solver=Counting(), window=3),
    "QuboDescent, schedule": by(QuboDescent, steps=9),
    "printed, literal": projected(lambda: Printed(scale="literal"), clip=None),
    "printed, annealing": projected(lambda: Printed(solver="annealing")),
    "printed, a solver with state": projected(lambda: Printed(solver=Counting())),
    **{
        f"BinaryConnect, {update}": by(BinaryConnect, update=update, momentum=0.9)
        for update in ("sgd", "sign", "normalized", "muon")
    },
    **{f"ProxQuant, {update}": by(ProxQuant, rate=0.002, update=update) for update in ("sgd", "sign", "adam")},
    **{f"StraightThrough, {update}": by(StraightThrough, update=update) for update in ("sgd", "muon")},
}
every = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in CONFIGURED), *((name, torch.bfloat16) for name in OPTIMIZERS)],
)
def test_a_run_resumed_from_state_dicts_equals_an_uninterrupted_one_bit_for_bit(name, dtype):
    make = CONFIGURED[name]
    model = small_model(dtype)
    optimizer = make(model, lr=0.05)
    train(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    fresh = small_model(dtype, seed=99)
    resumed = make(fresh)
    fresh.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    assert resumed.param_groups[0]["lr"] == 0.05
    assert_equal(train(model, optimizer, range(4, 9)), train(fresh, resumed, range(4, 9)))


def unpickled(pair):
    return pickle.loads(pickle.dumps(pair))


@pytest.mark.parametrize(
    ("name", "copied"),
    [*((name, copy.deepcopy) for name in CONFIGURED), *((name, unpickled) for name in OPTIMIZERS)],
)
def test_a_copied_pair_of_model_and_optimiser_goes_on_bit_for_bit(name, copied):
    make = CONFIGURED[name]
    model = small_model()
    optimizer = make(model, lr=0.05)
    train(model, optimizer, range(4))
    twin_model, twin = copied((model, optimizer))
    ended = train(model, optimizer, range(4, 9))
    assert any(not torch.equal(a, b) for a, b in zip(ended, latent(twin_model), strict=True))
    assert_equal(ended, train(twin_model, twin, range(4, 9)))
    assert twin_model[0].latent_forward == isinstance(optimizer, ProxQuant)


@every
def test_a_state_without_steps_is_loaded(make):
    model = small_model()
    optimizer = make(model)
    assert optimizer.state[model[0].weight] == {}
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, range(2))


ADAM = {"Adam": lambda model: torch.optim.Adam(model.parameters())}


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("loaded", OPTIMIZERS)
def test_the_state_of_another_kind_of_optimiser_is_refused(loaded, steps):
    for saved in ("ridge", "BinaryConnect", "ProxQuant", "StraightThrough", "Bop", "Adam"):
        first, model = small_model(), small_model(seed=1)
        optimizer, other = (OPTIMIZERS | ADAM)[saved](first), OPTIMIZERS[loaded](model)
        if type(optimizer) is type(other):
            continue  # projections are told apart in test_saved_options.py
        train(first, optimizer, range(steps))
        with pytest.raises(ValueError, match=f"not a state of {type(other).__name__}"):
            other.load_state_dict(optimizer.state_dict())


@every
def test_the_state_of_another_model_is_named(make):
    first = nn.Sequential(BinaryLinear(4, 9), nn.Hardtanh(), BinaryLinear(9, 3))
    saved = make(first)
    train(first, saved, [0])
    model = small_model()
    optimizer = make(model)
    optimizer.load_state_dict(saved.state_dict())
    if not any(isinstance(value, torch.Tensor) for value in kept_of(optimizer)):
        return  # such as ProxQuant's by sign, without momentum
    backward(model)
    with pytest.raises(RuntimeError, match="a state of the same model"):
        optimizer.step()


def kept_of(optimizer):
    """Tensors and numbers that an optimiser keeps of its weights."""
    parts = list(optimizer.state.values())
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts += part.values()
        else:
            yield part


@every
def test_a_model_converted_after_a_step_raises_and_says_what_to_do(make):
    model = small_model()
    optimizer = make(model)
    train(model, optimizer, [0])
    if not any(isinstance(value, torch.Tensor) for value in kept_of(optimizer)):
        return
    model.double()
    optimizer.zero_grad()
    backward(model)
    with pytest.raises(RuntimeError, match=r"momentum of .*BinaryLinear.*float(32|16).*float64"):
        optimizer.step()


@every
def test_a_replaced_parameter_is_noticed(make):
    layer = BinaryLinear(4, 2)
    optimizer = make(layer)
    layer.weight = nn.Parameter(torch.randn(2, 4))
    layer(torch.randn(8, 4)).sum().backward()
    with pytest.raises(RuntimeError, match="replaced by a new parameter"):
        optimizer.step()


@every
@pytest.mark.parametrize("real", [False, True])
def test_a_step_without_values_says_what_to_do(make, real):
    model = nn.Sequential(BinaryLinear(4, 3, device="meta"), nn.Linear(3, 2, device="meta"))
    optimizer = make(model, real=real)
    model(torch.empty(5, 4, device="meta")).sum().backward()
    with pytest.raises(RuntimeError, match=r"on the meta device: call model.to_empty\(device=…\)"):
        optimizer.step()


@every
def test_step_returns_the_loss_of_its_closure(make):
    model, plain = small_model(), small_model()
    optimizer, other = make(model), make(plain)

    def closure():
        optimizer.zero_grad()
        return backward(model)

    expected = backward(plain)
    assert other.step() is None
    assert optimizer.step(closure) == expected
    assert_equal(latent(model), latent(plain))


@every
def test_a_model_layers_parameters_or_a_group_give_the_same_optimiser(make):
    model = small_model()
    layers, named = [model[0], model[2]], model.named_parameters()
    for given in (model, list(model), iter(layers), {"params": model}, [model, model[0]], model.parameters(), named):
        optimizer = make(given)
        assert [p for group in optimizer.param_groups for p in group["params"]] == [model[0].weight, model[2].weight]


@every
def test_groups_have_rates_of_their_own(make):
    model, first, second = small_model(), small_model(), small_model()
    ended = train(model, make([{"params": model[0], "lr": 0.3}, {"params": [model[2]]}], lr=0.1), [0])
    alike = [train(other, make(other, lr=lr), [0]) for other, lr in ((first, 0.3), (second, 0.1))]
    assert_equal(ended, [alike[0][0], alike[1][1]])
    assert isinstance(make(model), Bop | QuboDescent) or not any(map(torch.equal, *alike))  # they flip or do not


@every
def test_a_layer_that_took_no_part_is_not_updated(make):
    used, unused = BinaryLinear(4, 3), BinaryLinear(4, 3)
    before = unused.weight.detach().clone()
    optimizer = make([used, unused])
    used(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    assert torch.equal(unused.weight, before)


@every
def test_layers_in_two_groups_or_with_a_shared_weight_are_refused(make):
    model, shared = small_model(), nn.Sequential(BinaryLinear(3, 3), BinaryLinear(3, 3))
    shared[1].weight = shared[0].weight
    with pytest.raises(ValueError, match="more than one parameter group"):
        make([{"params": model}, {"params": model[0]}])
    with pytest.raises(ValueError, match="more than one layer"):
        make(shared)


@every
def test_a_model_without_binary_layers_is_sent_to_convert(make):
    with pytest.raises(ValueError, match=r"no binary layer here.*BinaryLinear.*qpsbgd\.nn\.convert\(model\)"):
        make(nn.Linear(2, 2))


BAD_GROUPS = [
    ({"lr": 0.1}, ValueError, 'needs the key "params"'),
    ({"params": BinaryLinear(2, 2), "beta": 0.1}, TypeError, "has no option beta; it has lr, "),
    ({"params": BinaryLinear(2, 2), "lr": -1}, ValueError, "lr must be a finite number of at least 0"),
    ({"params": BinaryLinear(2, 2), "solver": "exact"}, TypeError, "no option solver"),
]
BAD_OPTIONS = [
    ({"learning_rate": 0.1}, TypeError, "learning_rate"),
    *(({"lr": lr}, ValueError, f"lr must be a finite number of at least 0, got {lr}") for lr in (-0.1, math.nan)),
    ({"lr": "fast"}, TypeError, "lr must be a finite number"),
    ({"steps": 0}, ValueError, "steps must be None or an integer of at least 1"),
    ({"real": {"warmup": 1.0}}, ValueError, "warmup must be"),
]
WARMUP = [({"steps": 10, "warmup": value}, ValueError, "warmup must be") for value in (-0.1, 1.0, math.nan)]
CLIP = [({"clip": clip}, ValueError, "clip must be None or a positive finite number") for clip in (0.0, -1.0, math.inf)]
MOMENTUM = [({"momentum": value}, (TypeError, ValueError), "momentum must be a") for value in (1.0, -0.1, "some")]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bad_groups_and_options_raise(name):
    for group, error, message in BAD_GROUPS:
        with pytest.raises(error, match=message):
            OPTIMIZERS[name](small_model()).add_param_group(group)
    given = BAD_OPTIONS + (WARMUP if name != "ProxQuant" else []) + (CLIP if name in [*OPTIMIZERS][:6] else [])
    if name in ("ridge", "spins", "polar", "printed", "ProxQuant", "StraightThrough"):
        more = {"update": "sgd"} if name == "ProxQuant" else {}
        given = given + [(options | more, error, message) for options, error, message in MOMENTUM]
    for options, error, message in given:
        with pytest.raises(error, match=message):
            OPTIMIZERS[name](nn.Sequential(BinaryLinear(4, 2, bias=True)), **options)


@every
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused_and_changes_nothing(make, value):
    model = small_model()
    optimizer = make(model, lr=0.05)
    train(model, optimizer, range(2))
    untouched = copy.deepcopy((model, optimizer))
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    model[2].weight.grad[0, 0] = value
    with pytest.raises(ValueError, match=r"2 \(BinaryLinear\).*NaN or infinite"):
        optimizer.step()
    assert_equal(latent(model), latent(untouched[0]))
    assert_equal(train(model, optimizer, range(2, 6)), train(*untouched, range(2, 6)))
