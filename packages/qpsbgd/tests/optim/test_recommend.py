import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, recommend
from qpsbgd.nn import BinaryConv2d, BinaryLinear, convert
from qpsbgd.optim.functional import schedule
from qpsbgd.optim.recommend import DEEP


def residual(blocks, *, norm=True, scale=None):
    parts = [nn.Linear(8, 8)]
    for _ in range(blocks):
        parts += [nn.Linear(8, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
    return convert(nn.Sequential(*parts, nn.Linear(8, 2)), first=False, last=False, scale=scale)


def rate(optimizer):
    return optimizer.param_groups[0]["lr"]


def dense(depth, norm=lambda: nn.LayerNorm(6), *, without=0):
    """With norms behind all layers but the last ones."""
    parts = [(BinaryLinear(6, 6), norm() if layer < depth - without else nn.Identity()) for layer in range(depth)]
    return nn.Sequential(*(part for pair in parts for part in pair))


def convolutional(depth, norm=lambda: nn.BatchNorm2d(2)):
    return nn.Sequential(*(part for _ in range(depth) for part in (BinaryConv2d(2, 2, 3, padding=1), norm())))


def transformer(blocks):
    """Two layer norms for four dense layers, an embedding, and a head."""
    halves = [(nn.LayerNorm(6), BinaryLinear(6, 6), BinaryLinear(6, 6)) for _ in range(2 * blocks)]
    layers = [layer for half in halves for layer in half]
    return nn.Sequential(nn.Embedding(5, 6), *layers, nn.LayerNorm(6), nn.Linear(6, 5))


@pytest.mark.parametrize(
    ("model", "projection"),
    [
        (convolutional(DEEP), "polar"),
        (convolutional(DEEP - 1), "ridge"),
        (convolutional(DEEP, nn.Identity), "ridge"),
        (transformer(3), "polar"),
        (dense(DEEP), "ridge"),
        (dense(DEEP, lambda: nn.BatchNorm1d(6)), "ridge"),
        (dense(DEEP, without=1), "ridge"),
        (dense(DEEP, without=2), "polar"),
    ],
)
def test_deep_networks_with_norms_get_the_polar_factor_unless_every_dense_layer_has_a_norm(model, projection):
    assert recommend(model).projection.name == projection


@pytest.mark.parametrize(
    "build", [lambda: residual(4), lambda: residual(18, norm=False), lambda: dense(8), lambda: transformer(3)]
)
def test_a_model_its_parameters_and_its_parts_get_the_same(build):
    model = build()
    whole = recommend(model, 100)
    assert recommend(model.parameters(), 100) == recommend(model.named_parameters(), 100) == whole
    assert recommend([{"params": part} for part in model if list(part.parameters())], 100) == whole
    assert rate(QPSBGD(model.parameters(), steps=100)) == rate(QPSBGD(model, steps=100, real=True)) == whole.lr


def mostly_frozen(model):
    for layer in list(model)[1:13]:
        layer.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("build", "factor"),
    [
        (lambda: residual(2), 1),
        (lambda: convolutional(54), 1),
        (lambda: transformer(18), 0.4),
        (lambda: residual(2, norm=False), 1),
        (lambda: residual(8, norm=False), 4**-1.5),
        (lambda: mostly_frozen(residual(8, norm=False)), 1),
        (lambda: dense(8), 4**-1.5),  # a norm for every dense layer lowers the rate as none does
        (lambda: residual(8), 4**-1.5),
        (lambda: nn.Sequential(nn.BatchNorm1d(6), *dense(12, nn.Identity)), 2**-1.5),  # one norm is not enough
    ],
)
def test_depth_lowers_the_rate_where_norms_do_not_take_it_out(build, factor):
    assert recommend(build(), 10_000).lr == pytest.approx(0.025 * factor)


def test_the_reason_of_a_transformers_rate_is_given():
    assert "few norms" in recommend(transformer(18)).reasons["lr"]


def test_layers_that_shrink_their_inputs_lower_the_rate_of_weights_but_not_of_scales():
    shrinking = convert(nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(6, 6), nn.ReLU()))))
    keeping = residual(8, norm=False)
    rates = [(found.lr, found.scale_lr) for found in (recommend(shrinking, 10_000), recommend(keeping, 10_000))]
    assert rates == [pytest.approx((0.025 / 4**1.5, 0.01)), pytest.approx((0.025 / 4**1.5, 0.01 / 4**1.5))]


def test_biases_are_no_norms():
    parts = [part for _ in range(8) for part in (BinaryLinear(4, 4, bias=True), nn.PReLU())]
    model = nn.Sequential(nn.Linear(4, 4), *parts, nn.Linear(4, 4))
    assert recommend(model, 10_000).lr == pytest.approx(0.025 / 4**1.5)
    assert recommend(model).warmup == 0


def test_norms_want_a_warm_up_and_a_rate_of_their_own():
    plain, normalized = recommend(residual(3, norm=False), 100), recommend(residual(3), 100)
    assert (plain.warmup, plain.vector_lr, plain.scale) == (0, plain.real_lr, "learned")
    assert (normalized.warmup, normalized.vector_lr, normalized.scale) == (0.1, 0.03, "magnitude")
    assert recommend(residual(3), 10_000).vector_lr == 0.01
    assert plain.real_lr == normalized.real_lr < normalized.vector_lr
    assert plain.reasons["vector_lr"].endswith("as matrices")
    assert not normalized.reasons["vector_lr"].endswith("as matrices")


def test_what_is_recommended_is_what_an_optimiser_uses():
    for model in (residual(3), residual(8, norm=False, scale="learned"), convolutional(DEEP)):
        advice, optimizer = recommend(model, 300), QPSBGD(model, steps=300, real=True)
        group, real = optimizer.param_groups
        used = {name: group[name] for name in ("projection", "lr", "momentum", "warmup")}
        assert used == {name: getattr(advice, name) for name in used}
        assert real["lr"] == advice.real_lr
        assert real["lr"] * real["vector_factor"] == pytest.approx(advice.vector_lr)
        if real["scale_factor"] is not None:
            assert real["lr"] * real["scale_factor"] == pytest.approx(advice.scale_lr)


def test_an_optimiser_says_why_for_everything_that_was_not_given():
    text = repr(QPSBGD(residual(3), lr=0.1, steps=300, real=True)).split("recommended")[1]
    names = [line.split()[0] for line in text.splitlines()[1:]]
    assert names == ["projection", "momentum", "warmup", "real_lr", "vector_lr", "scale_lr"]
    assert "the network has norms" in text
    alone = repr(QPSBGD(residual(3), lr=0.1, projection="spins", momentum=0.5, warmup=0.1, real=False))
    assert alone.endswith("network:")
    assert QPSBGD(residual(3), steps=300, warmup=0.25, real=False).param_groups[0]["warmup"] == 0.25


@pytest.mark.parametrize(
    ("kind", "steps"), [(QPSBGD, 1), (BinaryConnect, 1), (QPSBGD, 2), (QPSBGD, 7), (BinaryConnect, 100)]
)
def test_the_rate_rises_to_its_full_size_and_ends_at_zero(kind, steps):
    shares = [schedule(step, steps, 0.1) for step in range(steps + 2)]
    assert max(shares) == 1
    assert all(0 < share <= 1 for share in shares[:steps])
    assert shares[steps:] == [0, 0]
    peak = shares.index(1)
    assert shares[: peak + 1] == sorted(shares[: peak + 1])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)
    layer = BinaryLinear(4, 2)
    optimizer = kind(layer, steps=steps)
    layer(torch.randn(8, 4)).square().sum().backward()
    before = layer.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(layer.weight, before)


def test_a_run_of_unknown_length_has_a_constant_rate():
    assert {schedule(step, None, 0.1) for step in (0, 5, 10**6)} == {1.0}
    assert recommend(BinaryLinear(4, 2)).lr == recommend(BinaryLinear(4, 2), 4000).lr


@pytest.mark.parametrize(
    ("steps", "beta"), [(None, 0.9), (1, 0.8), (750, 0.8), (1000, 0.85), (1500, 0.9), (10_000, 0.9)]
)
def test_short_runs_have_less_momentum(steps, beta):
    found = QPSBGD(residual(2), steps=steps, real=True)
    assert found.param_groups[0]["momentum"] == pytest.approx(beta)


def test_a_group_has_the_momentum_of_its_own_projection_and_length():
    model = residual(3)
    groups = [{"params": model[1]}, {"params": model[4], "projection": "spins", "steps": 10_000}]
    groups.append({"params": model[7], "projection": "printed"})
    optimizer = QPSBGD(groups, steps=100)
    optimizer.add_param_group({"params": BinaryLinear(3, 2), "steps": 1000})
    assert [group["momentum"] for group in optimizer.binary_groups] == pytest.approx([0.8, 0.9, 0.0, 0.85])
    given = QPSBGD(model, steps=100, momentum=0.5, real=True)
    assert given.param_groups[0]["momentum"] == 0.5


@pytest.mark.parametrize("steps", [0, -3, 2.5, "many"])
def test_a_length_that_is_none_is_refused_before_anything_depends_on_it(steps):
    model = residual(2)
    with pytest.raises((TypeError, ValueError), match="steps"):
        QPSBGD([{"params": model, "projection": "spins", "steps": steps}], lr=0.1)


@pytest.mark.parametrize("model", [nn.Linear(3, 3), [], [nn.Parameter(torch.ones(2))]])
def test_nothing_is_recommended_for_networks_without_binary_layers(model):
    with pytest.raises(ValueError, match=r"no binary layer here.*convert\(model\)"):
        recommend(model)
