import copy

import pytest
import torch
from torch import nn

from qpsbgd import binarize
from qpsbgd.binarization.branches import Branch, Sums
from qpsbgd.binarization.passes import LayerCall, Passes


class Block(nn.Module):
    """A residual block, its sum made in one of the usual ways."""

    def __init__(self, width, way):
        super().__init__()
        self.first, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.second, self.last_norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.dropout, self.way = nn.Dropout(), way

    def forward(self, x):
        y = self.dropout(self.last_norm(self.second(torch.relu(self.norm(self.first(x))))))
        if self.way == "+":
            y = y + x
        elif self.way == "+=":
            y += x
        else:
            y = torch.add(x, y)
        return torch.relu(y)


def network(ways):
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    model = nn.Sequential(
        *stem, *(Block(8, way) for way in ways), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    for _ in range(20):
        model(torch.randn(50, 3, 6, 6))  # for the norms
    return model.eval()


@pytest.mark.slow
def test_errors_do_not_add_up_along_a_deep_network():
    model, inputs, others = network(["+", "+=", "add"] * 2), torch.randn(100, 3, 6, 6), torch.randn(100, 3, 6, 6)
    wanted, lost = model(others), {}
    for targets in ("own", "float"):
        made = binarize(model, list(inputs.split(50)), rounds=2, targets=targets).model
        lost[targets] = ((made(others) - wanted).square().mean() / wanted.var(0).mean()).item()
    assert lost["float"] < 0.8 * lost["own"]


def test_groups_and_masked_tokens_count_in_the_targets_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Conv1d(4, 6, 3, groups=2), nn.ReLU(), nn.Conv1d(6, 2, 1))
    x = torch.randn(100, 4, 9)
    made = binarize(model, [x], bits=4, targets="float", first=True).model
    assert (made(x) - model(x)).square().mean() < 0.1 * model(x).var()
    tokens = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    x, mask = torch.randn(20, 7, 5), torch.zeros(20, 7, dtype=torch.bool)
    mask[:, :3] = True
    spoilt = torch.where(mask[..., None], x, 1e4)
    one, other = (
        binarize(tokens, [each], targets="float", first=True, rows=lambda _: mask).model for each in (x, spoilt)
    )
    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize("way", ["+", "+=", "add"])
def test_a_branch_ends_in_its_sum_and_its_norm_can_be_undone(way):
    model, x = network([way]), torch.randn(10, 3, 6, 6)
    before, block = copy.deepcopy(model.state_dict()), model[3]
    passes = Passes(model, [x])
    passes.calls()
    with passes.watching():
        assert passes.layer_call(block.first, 0, sums=True).branch is None
        seen = passes.layer_call(block.second, 0, sums=True)
    skip = model[:3](x)
    torch.testing.assert_close(seen.other, skip)
    error = torch.randn_like(skip)
    outputs = block.second(seen.x)
    changed = block.last_norm(outputs + seen.branch.before_norms(error))
    torch.testing.assert_close(changed, block.last_norm(outputs) + error, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_branch_is_made_up_for_only_where_both_networks_have_it():
    model, x = network(["+"]), torch.randn(10, 3, 6, 6)
    passes = Passes(model, [x])
    passes.calls()
    with passes.watching():
        here = passes.layer_call(model[3].second, 0, sums=True)
        plain = type(model[3].second).forward(model[3].second, here.x)
        torch.testing.assert_close(passes.targets("3.second", 0, here), plain)
        torch.testing.assert_close(passes.targets("3.second", 0, LayerCall(here.x, None, None)), plain)
        torch.testing.assert_close(passes.targets("3.first", 0, here), model[3].first(model[:3](x)))
        error = torch.randn_like(here.other)
        found = passes.targets("3.second", 0, here._replace(other=here.other - error))
        torch.testing.assert_close(found, plain + here.branch.before_norms(error), rtol=1e-4, atol=1e-4)


def test_real_layers_behind_binary_ones_make_up_for_their_errors():
    torch.manual_seed(0)
    parts = nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)
    model, x = nn.Sequential(*parts), torch.randn(400, 12)
    before = copy.deepcopy(model.state_dict())
    made = binarize(model, [x], targets="float").model
    hidden = torch.cat([made[:4](x), torch.ones(400, 1)], 1)
    best = hidden @ torch.linalg.lstsq(hidden, model(x)).solution
    lost, old, least = ((y - model(x)).square().mean() for y in (made(x), model[4](made[:4](x)), best))
    assert lost < 1.05 * least < 0.95 * old
    assert torch.equal(made[0].weight, model[0].weight)  # in front of all binary layers

    def fail_at_the_last(line):
        assert line.name != "4"

    with pytest.raises(AssertionError):
        binarize(model, [x], layers=["0", "4"], targets="float", copy=False, progress=fail_at_the_last)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dimensions", [0, 2])
def test_the_scales_of_all_norms_are_undone_but_in_channels_that_hardly_count(dimensions):
    first, second = nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([2.0, -1.0, 1e-4]))
        first.running_var.copy_(torch.tensor([4.0, 1.0, 1.0]) - first.eps)
        second.running_var.copy_(torch.tensor([1.0, 0.25, 1.0]) - second.eps)
    output = torch.zeros(5, 3, *(1,) * dimensions)
    plain = Branch(first, output, 0)
    branch = plain.through(first, output).through(nn.Identity(), output).through(second, output)
    assert branch.norms == (first, second)
    error = torch.randn(5, 3, *(4,) * dimensions)
    assert plain.before_norms(error) is error
    factors = torch.tensor([1.0, -0.5, 0.0]).reshape(-1, *(1,) * dimensions)
    torch.testing.assert_close(branch.before_norms(error), error * factors)


def added(function):
    """The layers whose output a function adds to another tensor of its shape."""
    layer, norm, found = nn.Linear(3, 3), nn.BatchNorm1d(3).eval(), []
    with torch.no_grad(), Sums(lambda branch, other: found.append((branch.layer, len(branch.norms)))) as sums:
        x = torch.randn(4, 3)
        y = layer(x)
        sums.begin(layer, y)

        def through(module, value):
            result = module(value)
            sums.follow(module, (value,), result)
            return result

        function(x, y, lambda value: through(norm, value), lambda value, module: through(module, value))
        assert not sums.follow(norm, (), y)
    return [norms for one, norms in found if one is layer]


@pytest.mark.parametrize(
    ("function", "norms"),
    [
        (lambda x, y, norm, _: x + y, [0]),
        (lambda x, y, norm, _: y.add(x), [0]),
        (lambda x, y, norm, _: torch.add(norm(norm(y)), x), [2]),
        (lambda x, y, norm, through: through(norm(y), nn.Dropout1d().eval()) + x, [1]),
        (lambda x, y, norm, through: through(y, nn.Identity()).add_(x), [0]),
        (lambda x, y, norm, through: through(y, nn.BatchNorm1d(3)) + x, []),
        (lambda x, y, norm, through: through(y, nn.BatchNorm1d(3, track_running_stats=False).eval()) + x, []),
        (lambda x, y, norm, through: through(y, nn.ReLU()) + x, []),
        (lambda x, y, norm, _: y + 1, []),
        (lambda x, y, norm, _: y + x[:1], []),
        (lambda x, y, norm, _: torch.add(y, x, alpha=2), []),
        (lambda x, y, norm, _: y.mul_(2) + x, []),
        (lambda x, y, norm, _: x - y, []),
    ],
)
def test_a_branch_goes_through_norms_and_what_changes_nothing_to_a_sum(function, norms):
    assert added(function) == norms
