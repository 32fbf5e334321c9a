import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import symbolic_trace

from qpsbgd import QPSBGD, BinaryConnect
from qpsbgd.nn import BinaryConv2d, BinaryLinear, convert
from qpsbgd.optim import chains
from qpsbgd.optim.rates import default_rate, schedule


def residual(blocks, *, norm=True, scale=None):
    parts = [nn.Linear(8, 8)]
    for _ in range(blocks):
        parts += [nn.Linear(8, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
    return convert(nn.Sequential(*parts, nn.Linear(8, 2)), first=False, last=False, scale=scale)


def rate(optimizer):
    return optimizer.param_groups[0]["lr"]


def test_with_norms_the_rate_does_not_depend_on_depth():
    found = [rate(QPSBGD(residual(blocks), steps=10_000, real=True)) for blocks in (2, 18, 54)]
    assert found == pytest.approx([0.25 / 10] * 3)


def test_without_norms_more_than_two_layers_lower_it():
    assert rate(QPSBGD(residual(2, norm=False), steps=10_000, real=True)) == pytest.approx(0.025)
    assert rate(QPSBGD(residual(8, norm=False), steps=10_000, real=True)) == pytest.approx(0.025 / 4**1.5)


def test_scales_by_magnitude_want_no_smaller_rate():
    assert rate(QPSBGD(residual(8, norm=False, scale="magnitude"), steps=10_000, real=True)) == pytest.approx(0.025)


@pytest.mark.parametrize("blocks", [4, 18])
def test_parameters_one_by_one_get_the_rate_of_the_model(blocks):
    model = residual(blocks)
    assert rate(QPSBGD(model.parameters(), steps=100)) == rate(QPSBGD(model, steps=100, real=True))


def stacked(norm, count=8, block=lambda *parts: nn.Sequential(*parts)):
    return nn.Sequential(*(block(BinaryLinear(4, 4), norm(4), nn.ReLU()) for _ in range(count)))


class Residual(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return x + self.parts(x)


class Listed(nn.Module):
    """A chain in a loop of its own, with an optional input, another module's weight and sizes read from its input."""

    def __init__(self, layers=8):
        super().__init__()
        self.layers = nn.ModuleList(BinaryLinear(4, 4) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(layers))
        self.positions, self.seen = nn.Embedding(3, 4), []

    def forward(self, x, mask=None):
        rows = x.shape[0]
        x = x.flatten(1) + self.positions.weight[0]
        if mask is not None:
            x = x * mask
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x)))
        self.seen.append(x)
        return x.view(rows, -1)


class Branching(nn.Module):
    """Cannot be traced."""

    def __init__(self):
        super().__init__()
        self.net = stacked(nn.LayerNorm)

    def forward(self, x):
        return self.net(x) if x.sum() > 0 else self.net(-x)


class ResidualSequential(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class BatchNormLayer(nn.BatchNorm1d):
    pass


def flat(norm, count=8):
    return nn.Sequential(*(part for block in stacked(norm, count) for part in block))


@pytest.mark.parametrize(
    "build",
    [
        lambda: stacked(nn.LayerNorm),
        lambda: flat(nn.RMSNorm),
        lambda: flat(lambda width: nn.GroupNorm(2, width)),
        lambda: nn.Sequential(nn.Flatten(), stacked(nn.LayerNorm), nn.Linear(4, 2)),
        lambda: Listed(),
        lambda: Branching(),
        lambda: nn.DataParallel(Listed()),
        lambda: torch.compile(stacked(nn.LayerNorm)),
        lambda: nn.Sequential(*map(torch.compile, stacked(nn.LayerNorm))),
        lambda: symbolic_trace(stacked(nn.LayerNorm)),
    ],
)
def test_norms_of_single_rows_without_shortcuts_lower_the_rate_as_no_norms_do(build):
    model, calls = build(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert rate(QPSBGD(model, steps=10_000, real=True)) == pytest.approx(0.025 / 4**1.5)
    assert not calls
    assert not any(getattr(part, "seen", None) for part in model.modules())  # symbols leave no trace


def counting(model, x):
    model.steps += 1


def averaging(model, x):
    model.average.mul_(0.9)


def clamping(model, x):
    model.scale.data.clamp_(0, 1)


def collecting(model, x):
    model.kept["seen"].append(x)


def drawing(model, x):
    return torch.rand(1), random.random()


def switching(model, x):
    torch.set_grad_enabled(False)
    assert x.sum() > 0


def unending(model, x):
    while not isinstance(x, torch.Tensor):
        x = x[0]


@pytest.mark.parametrize(
    "acts", [counting, averaging, clamping, collecting, drawing, switching, unending], ids=lambda acts: acts.__name__
)
def test_making_an_optimiser_changes_neither_the_model_nor_torch(acts, monkeypatch):
    class Acting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.kept = stacked(nn.LayerNorm), {"seen": []}
            self.register_buffer("steps", torch.zeros(1))
            self.register_buffer("average", torch.ones(1))
            self.scale = nn.Parameter(torch.full((1,), 3.0))

        def forward(self, x):
            acts(self, x)
            return self.net(x)

    monkeypatch.setattr(chains, "MOST_NODES", 200)
    model = Acting()
    before, drawn = copy.deepcopy(model.state_dict()), (torch.get_rng_state(), random.getstate())
    assert rate(QPSBGD(model, steps=10_000, real=True)) == pytest.approx(0.025 / 4**1.5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn[0]) and random.getstate() == drawn[1]
    assert torch.is_grad_enabled() and model.kept == {"seen": []}


def test_the_forward_pass_is_not_run_where_the_rate_is_given():
    class Shouting(Listed):
        def forward(self, x):
            raise SystemExit

    QPSBGD(Shouting(), lr=0.1, real=True)


@pytest.mark.parametrize(
    "build",
    [
        lambda: stacked(nn.LayerNorm, block=Residual),
        lambda: stacked(nn.LayerNorm, block=ResidualSequential),
        lambda: nn.Sequential(*(Residual(flat(nn.LayerNorm, 3)) for _ in range(4))),
        lambda: stacked(nn.BatchNorm1d),
        lambda: stacked(BatchNormLayer),
        lambda: nn.Sequential(*stacked(nn.LayerNorm, 2), nn.BatchNorm1d(4), *stacked(nn.LayerNorm, 2)),
        lambda: nn.Sequential(*(part for _ in range(8) for part in (BinaryConv2d(4, 4, 3), nn.GroupNorm(1, 4)))),
        lambda: nn.Sequential(
            *(layer.requires_grad_(number > 5) for number, layer in enumerate(stacked(nn.LayerNorm)))
        ),
    ],
)
def test_shortcuts_batch_norms_convolutions_and_frozen_layers_keep_the_rate(build):
    assert rate(QPSBGD(build(), steps=10_000, real=True)) == pytest.approx(0.025)


@pytest.mark.parametrize("slopes", [1, 4])
def test_a_bias_and_the_slope_of_an_activation_are_no_norm(slopes):
    parts = [part for _ in range(8) for part in (BinaryLinear(4, 4, bias=True), nn.PReLU(slopes))]
    model = nn.Sequential(*parts)
    for given in (model, model.parameters()):
        assert rate(QPSBGD(given, steps=10_000, real=True)) == pytest.approx(0.025 / 4**1.5)


def test_frozen_layers_do_not_count_and_other_peoples_norms_do():
    class GhostBatchNorm(nn.Module):
        def forward(self, x):
            return x

    model = residual(8, norm=False)
    for layer in list(model)[1:13]:
        layer.requires_grad_(False)
    assert rate(QPSBGD(model, steps=10_000, real=True)) == pytest.approx(0.025)
    model = nn.Sequential(*(part for _ in range(8) for part in (BinaryLinear(4, 4), GhostBatchNorm())))
    assert rate(QPSBGD(model, steps=10_000)) == pytest.approx(0.025)


@pytest.mark.parametrize("kind", [QPSBGD, BinaryConnect])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
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
    assert default_rate(1.0, layers=1, norms=0, steps=None) == default_rate(1.0, layers=1, norms=0, steps=4000)


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


def test_a_loaded_state_keeps_its_momentum():
    model = residual(2)
    state = QPSBGD(model, steps=10_000, real=True).state_dict()
    short = QPSBGD(model, steps=100, real=True)
    with pytest.warns(UserWarning, match="steps=10000"):
        short.load_state_dict(state)
    assert short.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize("steps", [0, -3, 2.5, "many"])
def test_a_length_that_is_none_is_refused_before_anything_depends_on_it(steps):
    model = residual(2)
    with pytest.raises((TypeError, ValueError), match="steps"):
        QPSBGD(model, lr=0.1, steps=steps)
    with pytest.raises((TypeError, ValueError), match="steps"):
        QPSBGD([{"params": model, "projection": "spins", "steps": steps}], lr=0.1)
