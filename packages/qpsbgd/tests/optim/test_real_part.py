import copy
import pickle

import pytest
import torch
from small_networks import OPTIMIZERS
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear
from qpsbgd.optim.functional import schedule

every = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
both = pytest.mark.parametrize(
    "make", [OPTIMIZERS["ridge"], OPTIMIZERS["BinaryConnect"]], ids=["ridge", "BinaryConnect"]
)
SGD = {"kind": torch.optim.SGD, "lr": 0.1, "momentum": 0.9}


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 8), BinaryLinear(8, 16, bias=True), nn.BatchNorm1d(16), nn.Hardtanh(), BinaryLinear(16, 3)
    )


def real(model):
    binary = {m.weight for m in model.modules() if isinstance(m, BinaryLinear)}
    return [p for p in model.parameters() if p not in binary]


def loss(model, number=0):
    rows = torch.Generator().manual_seed(number)
    inputs = torch.randn(32, 6, generator=rows)
    return nn.functional.cross_entropy(model(inputs), torch.randint(0, 3, (32,), generator=rows))


def train(model, *optimizers, steps=range(4), before_step=lambda: None):
    for number in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(model, number).backward()
        before_step()
        for optimizer in optimizers:
            optimizer.step()


def assert_equal(one, other):
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


@every
@pytest.mark.parametrize("options", [{"lr": 0.01, "weight_decay": 0.1}, SGD], ids=str)
def test_it_trains_as_two_optimisers_do(make, options):
    together, apart = network(), network()
    train(together, make(together, real=options))
    kind, rest = options.get("kind", torch.optim.AdamW), {k: v for k, v in options.items() if k != "kind"}
    rest |= {"fused": True} if kind is torch.optim.AdamW and "foreach" not in rest else {}
    train(apart, make(apart), kind(real(apart), **rest))
    assert_equal(together, apart)


@both
@pytest.mark.parametrize(
    ("norm", "options", "rates"),
    [
        (nn.BatchNorm1d(16), {}, (0.003, 0.01)),
        (nn.BatchNorm1d(16), {"steps": 1250, "warmup": 0.0}, (0.003, 0.02)),
        (nn.BatchNorm1d(16), {"steps": 10, "warmup": 0.0}, (0.003, 0.03)),
        (nn.BatchNorm1d(16), {"steps": 10**6, "warmup": 0.0}, (0.003, 0.01)),
        (nn.Identity(), {}, (0.003, 0.003)),
        (nn.BatchNorm1d(16), {"lr": 0.02}, (0.02, 0.02)),
        (nn.Identity(), {"lr": 0.02, "vector_factor": 0.5}, (0.02, 0.01)),
    ],
    ids=["norms", "norms, few steps", "norms, very few", "norms, many", "no norms", "a rate", "a rate and a factor"],
)
def test_vectors_have_a_higher_rate_in_networks_with_norms(make, norm, options, rates):
    together, apart = network(), network()
    together[2], apart[2] = copy.deepcopy(norm), copy.deepcopy(norm)
    train(together, make(together, real=options))
    groups = [
        {"params": [p for p in real(apart) if (p.ndim < 2) == vectors], "lr": rate}
        for vectors, rate in zip((False, True), rates, strict=True)
    ]
    binary, beside = make(apart), torch.optim.AdamW(groups, fused=True)
    for number in range(4):
        for group, rate in zip(beside.param_groups, rates, strict=True):
            group["lr"] = rate * schedule(number, options.get("steps"), 0.0)
        train(apart, binary, beside, steps=[number])
    for (name, a), b in zip(together.named_parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


@both
@pytest.mark.parametrize(
    ("depth", "options", "rates"),
    [
        (2, {}, (0.003, 0.01, 0.02)),
        (2, {"steps": 1250}, (0.003, 0.02, 0.04)),
        (8, {}, (0.003, 0.01 / 8, 0.02 / 8)),
        (2, {"lr": 0.02}, (0.02, 0.02, 0.02)),
        (2, {"scale_factor": 0.5}, (0.003, 0.0015, 0.003)),
        (2, {"lr": 0.02, "scale_factor": 0.5}, (0.02, 0.01, 0.02)),
    ],
    ids=["by default", "few steps", "deep", "a rate", "a factor", "a rate and a factor"],
)
def test_learned_scales_have_the_rate_of_norms_by_depth_in_units_that_keep_the_size(make, depth, options, rates):
    # In a layer of 4 inputs and gain 1/4 outputs have the size of inputs at a scale of 2; by default at one of 1.
    layers = [BinaryLinear(4, 4, scale="learned", bias=True) for _ in range(depth - 1)]
    model = nn.Sequential(*layers, BinaryLinear(4, 4, scale="learned", gain=0.25))
    nn.init.constant_(model[-1].scale, 2.0)
    before = [p.detach().clone() for p in (model[0].bias, model[0].scale, model[-1].scale)]
    optimizer = make(model, real={"weight_decay": 0.0, **options})
    (1e9 * model(torch.randn(8, 4)).square().sum()).backward()
    optimizer.step()
    after = (model[0].bias, model[0].scale, model[-1].scale)
    for old, new, rate in zip(before, after, rates, strict=True):
        torch.testing.assert_close((new - old).abs(), torch.full_like(old, rate), rtol=1e-3, atol=0)  # as Adam begins


def stepped_scale(model, optimizer):
    """How far the first scale goes in a step."""
    before = model[0].scale.detach().clone()
    (1e9 * model(torch.randn(8, 4)).square().sum()).backward()
    optimizer.step()
    return (model[0].scale - before).abs().mean().item()


@pytest.mark.parametrize(("real", "rate"), [(True, 0.01), ({"lr": 0.02}, 0.02)], ids=["default", "a rate"])
def test_the_rate_of_scales_is_that_of_the_loaded_state(real, rate):
    layer = BinaryLinear(4, 8, scale="learned")
    saved = QPSBGD(nn.Sequential(layer), real=real).state_dict()
    model = nn.Sequential(layer)
    optimizer = QPSBGD(model, real={"lr": 0.5} if real is True else True)
    optimizer.load_state_dict(saved)
    assert stepped_scale(model, optimizer) == pytest.approx(rate, rel=0.05)


@every
def test_parameters_given_one_by_one_are_all_trained(make):
    models = [network() for _ in range(4)]
    whole = make(models[0], real={})
    one_by_one = make(models[1].parameters())
    named = make(models[2].named_parameters())
    groups = make([{"params": models[3].parameters()}])
    for model, optimizer in zip(models, (whole, one_by_one, named, groups), strict=True):
        train(model, optimizer)
        assert_equal(models[0], model)
    assert [len(group["params"]) for group in whole.param_groups] == [2, 5]
    assert named.param_groups[1]["param_names"] == ["0.weight", "0.bias", "1.bias", "2.weight", "2.bias"]


@every
def test_without_real_only_binary_weights_are_trained(make):
    model, before = network(), network()
    train(model, make(model, real=False))
    for old, new in zip(real(before), real(model), strict=True):
        assert torch.equal(old, new)
    train(model, make([m.weight for m in model if isinstance(m, BinaryLinear)]))
    for old, new in zip(real(before), real(model), strict=True):
        assert torch.equal(old, new)


@every
@pytest.mark.parametrize("options", [{}, SGD], ids=str)
def test_a_run_goes_on_from_its_state_bit_for_bit(make, options):
    whole, half = network(), network()
    train(whole, make(whole, real=options, steps=20), steps=range(8))
    optimizer = make(half, real=options, steps=20)
    train(half, optimizer)
    saved = copy.deepcopy((half.state_dict(), optimizer.state_dict()))
    resumed = network(1)
    resumed.load_state_dict(saved[0])
    again = make(resumed, real=options, steps=20)
    again.load_state_dict(saved[1])
    copied, copied_optimizer = copy.deepcopy((half, optimizer))
    pickled, pickled_optimizer = pickle.loads(pickle.dumps((half, optimizer)))
    for model, each in ((resumed, again), (copied, copied_optimizer), (pickled, pickled_optimizer)):
        train(model, each, steps=range(4, 8))
        assert_equal(whole, model)


def test_steps_lower_the_rate_of_the_real_part_too():
    together, apart = network(), network()
    train(together, QPSBGD(together, steps=4, warmup=0.0, real=SGD))
    binary, sgd = QPSBGD(apart, steps=4, warmup=0.0), torch.optim.SGD(real(apart), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 4)
    for step in range(4):
        train(apart, binary, sgd, steps=[step])
        schedule.step()
    for one, other in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    constant, plain = network(), network()
    train(constant, QPSBGD(constant, steps=4, real={**SGD, "steps": None}), steps=range(1, 4))
    train(plain, QPSBGD(plain, steps=4), torch.optim.SGD(real(plain), lr=0.1, momentum=0.9), steps=range(1, 4))
    assert_equal(constant, plain)


@every
def test_max_norm_clips_the_gradient_of_the_real_part_alone(make):
    together, apart = network(), network()
    train(together, make(together, real={**SGD, "max_norm": 0.01}))
    sgd = torch.optim.SGD(real(apart), lr=0.1, momentum=0.9)
    train(apart, make(apart), sgd, before_step=lambda: nn.utils.clip_grad_norm_(real(apart), 0.01))
    assert_equal(together, apart)


@both
@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_leaves_the_training_as_it_is(make, unscale):
    scaled, plain = network(), network()
    options = {**SGD, "max_norm": 0.5}
    train(plain, make(plain, real=options))
    optimizer = make(scaled, real=options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for number in range(4):
        optimizer.zero_grad()
        scaler.scale(loss(scaled, number)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    for one, other in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@both
def test_a_frozen_parameter_stays_and_trains_once_it_is_free(make):
    model = network()
    optimizer = make(model, real=SGD)
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    train(model, optimizer)
    assert torch.equal(model[0].weight, before)
    model[0].requires_grad_(True)
    train(model, optimizer)
    assert not torch.equal(model[0].weight, before)


def test_groups_have_options_of_their_own():
    model = network()
    optimizer = QPSBGD(
        [
            {"params": model[0].parameters(), "lr": 1e-4, "weight_decay": 0.5},
            {"params": model[1].parameters(), "lr": 0.2, "weight_decay": 0.25},
            {"params": model[2:], "real": {"lr": 0.03, "max_norm": 1.0}},
        ],
        lr=0.1,
        real={"lr": 0.02},
    )
    seen = [(len(group["params"]), group["lr"], group.get("weight_decay")) for group in optimizer.param_groups]
    assert seen == [(2, 1e-4, 0.5), (1, 0.2, None), (1, 0.02, 0.25), (1, 0.1, None), (2, 0.03, 0.01)]
    assert optimizer.param_groups[-1]["max_norm"] == 1.0
    train(model, optimizer)


def test_groups_as_frameworks_make_them_may_have_no_weight_decay():
    model = network()
    binary, rest = [model[1].weight, model[4].weight], real(model)
    groups = [{"params": binary, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.0}]
    assert [group.get("weight_decay") for group in QPSBGD(groups).param_groups] == [None, 0.0]
    with pytest.raises(TypeError, match="no option weight_decay"):
        QPSBGD([{"params": binary, "weight_decay": 0.1}])


def test_a_group_can_be_added_while_training():
    model = network()
    optimizer = QPSBGD(model[:2], real=SGD)
    train(model, optimizer)
    optimizer.add_param_group({"params": model[2:], "lr": 0.1})
    before = copy.deepcopy(model)
    train(model, optimizer)
    assert not any(torch.equal(old, new) for old, new in zip(before.parameters(), model.parameters(), strict=True))
    for again in ({"params": model[2]}, {"params": [model[0].bias]}):
        with pytest.raises(ValueError, match="more than one parameter group"):
            optimizer.add_param_group(again)


@every
def test_a_real_gradient_of_nan_is_refused_and_changes_nothing(make):
    model, before = network(), network()
    optimizer = make(model, real=SGD)
    loss(model).backward()
    model[2].bias.grad[3] = torch.nan
    with pytest.raises(ValueError, match=r"real parameters of the shapes \(16,\) holds NaN"):
        optimizer.step()
    assert_equal(model, before)


def test_sparse_gradients_are_taken():
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(10, 8, sparse=True), BinaryLinear(8, 3))
    optimizer = QPSBGD(model, real={"kind": torch.optim.SGD, "lr": 0.1})
    before = model[0].weight.clone()
    model(torch.randint(0, 10, (16, 4))).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


def test_layers_are_not_kept_alive():
    import gc
    import weakref

    layer = BinaryLinear(3, 2)
    QPSBGD(layer.parameters())
    seen = weakref.ref(layer)
    del layer
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda m: QPSBGD(m, real=1e-3), TypeError, r"real must be a dict of options such as dict\(lr=1e-2\), True"),
        (lambda m: QPSBGD(m, real={"rate": 3}), TypeError, "unexpected keyword argument 'rate'"),
        (lambda m: QPSBGD(m, real={"kind": "adam"}), TypeError, "kind must be a class of optimisers"),
        (lambda m: QPSBGD(m, real={"kind": torch.optim.LBFGS}), TypeError, "LBFGS evaluates the loss several times"),
        (lambda m: QPSBGD(m, real={"kind": lambda groups: 3}), TypeError, "must make a torch.optim.Optimizer, got int"),
        (lambda m: QPSBGD(m, real={"vector_factor": 0}), ValueError, "vector_factor must be a positive finite number"),
        (lambda m: QPSBGD(m, real={"warmup": 3}), ValueError, "warmup must be a"),
        (lambda m: QPSBGD(m, real={"max_norm": 0}), ValueError, "max_norm must be None or a positive finite number"),
        (lambda m: QPSBGD(m, real={"steps": 0}), ValueError, "steps must be None or an integer of at least 1"),
        (lambda m: QPSBGD(m, real={"lr": -1}), ValueError, "Invalid learning rate"),
        (lambda m: QPSBGD(m[0].parameters()), ValueError, "there is no binary layer here"),
        (lambda m: QPSBGD([{"params": m[0].parameters()}], lr=0.1), ValueError, "there is no binary layer here"),
        (lambda m: QPSBGD(set(m.parameters())), TypeError, "give a list, not a set"),
        (lambda m: QPSBGD(["weight"]), TypeError, "takes a model, layers or parameters, got str"),
        (lambda m: QPSBGD([{"params": m, "colour": 3}]), TypeError, "QPSBGD has no option colour; it has lr"),
        (lambda m: QPSBGD([{"params": m, "colour": 3}], real={}), TypeError, "unexpected keyword argument 'colour'"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make(network())


def test_a_state_with_other_groups_is_refused():
    model = network()
    without, adam, sgd = QPSBGD(model), QPSBGD(model, real={}), QPSBGD(model, real=SGD)
    with pytest.raises(ValueError, match=r"1 parameter groups, .*QPSBGD has 2; .*`real`"):
        adam.load_state_dict(without.state_dict())
    with pytest.raises(ValueError, match=r"its groups have no .*betas"):
        adam.load_state_dict(sgd.state_dict())
