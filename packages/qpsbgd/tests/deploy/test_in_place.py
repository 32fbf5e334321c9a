"""Changes in place, as torch makes them: seen under all names of a tensor, and through views refused where used."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryLinear, SignActivation


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.layer, self.sign = function, BinaryLinear(6, 6), SignActivation()
        self.relu, self.same = nn.ReLU(inplace=True), nn.Identity()
        self.register_buffer("pos", torch.ones(4, 6))

    def forward(self, x):
        return self.function(self, self.layer(x))


def preactivated(m, x):
    shortcut = x.clone()
    return m.layer(m.relu(x)) + shortcut


def same_names(m, x):
    y = m.same(F.dropout(x.detach(), 0.5, False))
    y += 1
    return x * y


def signs_of_signs(m, x):
    first = m.sign(x)
    second = m.sign(first)
    second += 1
    return first * 3 + second


def single_cat(m, x):
    y = torch.cat([x], 1)
    y.add_(1)
    return x + 2 * y


def power(m, x):
    y = x
    y **= 2
    return x


def by_position(m, x):
    F.relu(x, True)
    F.hardtanh(x, -0.5, 0.5, True)
    return x


def halves(m, x):
    first, second = x.chunk(2, 1)
    first = F.relu_(first)
    return first * second


def changed_view(m, x):
    flat = x.flatten(1)
    flat += 1
    return flat * 2


FOLLOWED = (preactivated, same_names, signs_of_signs, single_cat, power, by_position, changed_view)


@pytest.mark.parametrize("function", FOLLOWED, ids=lambda one: one.__name__)
def test_a_change_reaches_what_it_reaches_in_torch(function):
    torch.manual_seed(0)
    model, inputs = Calls(function).eval(), torch.randn(5, 4, 6)
    found = pack(model, input_shape=(4, 6))(inputs.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(found, model(inputs).numpy(), rtol=1e-4, atol=1e-5)


def part_of_a_tensor(m, x):
    x[:, :2].mul_(10)
    return x


def all_of_a_tensor(m, x):
    flat = x.flatten(1)
    flat += 1
    return x * 2


def what_was_seen_before(m, x):
    turned = x.transpose(1, 2)
    m.relu(x)
    return turned


def parts_that_overlap(m, x):
    first, second = x[:, :3], x[:, 2:]
    first += 1
    return second * 2


def a_copy_or_not(m, x):
    y = x.contiguous()
    y += 1
    return x * 2


VIEWS = (part_of_a_tensor, all_of_a_tensor, what_was_seen_before, parts_that_overlap, a_copy_or_not, halves)


@pytest.mark.parametrize("function", VIEWS, ids=lambda one: one.__name__)
def test_what_a_view_may_have_changed_is_refused_where_it_is_used(function):
    with pytest.raises(ValueError, match=r"may share memory with what .* changes in place.*write .* x\.clone\(\)"):
        pack(Calls(function), input_shape=(4, 6))


@pytest.mark.parametrize("function", [lambda m, x: x + m.pos.mul_(2), lambda m, x: torch.ones(4, 6).add_(x)])
def test_constants_are_not_changed(function):
    model = Calls(function)
    with pytest.raises(ValueError, match="changes a constant in place"):
        pack(model, input_shape=(4, 6))
    assert torch.equal(model.pos, torch.ones(4, 6))


class Doubled(nn.Module):
    def forward(self, x):
        return x + x


@pytest.mark.parametrize("model", [Doubled(), nn.Sequential(nn.Softmax(-1), Doubled(), BinaryLinear(6, 2))])
def test_a_value_may_be_added_to_itself(model):
    inputs = np.random.default_rng(0).standard_normal((5, 4, 6), np.float32)
    expected = model(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(pack(model, input_shape=(4, 6))(inputs), expected, atol=1e-6)
