import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear, QuantActivation, SignActivation


def test_it_is_plus_one_at_zero():
    x = torch.tensor([-3.0, -0.0, 0.0, 1e-9, math.inf, -math.inf])
    for module in (SignActivation(), SignActivation(2).eval()):
        assert module(x).tolist() == [-1, 1, 1, 1, 1, -1]
        assert module(x.clone().requires_grad_()).tolist() == [-1, 1, 1, 1, 1, -1]


@pytest.mark.parametrize(
    ("width", "passed"), [(1.0, [0, 1, 1, 1, 1, 0]), (0.5, [0, 0, 1, 1, 0, 0]), (math.inf, [1] * 6)]
)
def test_gradients_pass_within_the_width(width, passed):
    x = torch.tensor([-1.1, -1.0, -0.5, 0.0, 1.0, 1.1], requires_grad=True)
    grads = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    SignActivation(width)(x).backward(grads)
    assert x.grad.tolist() == (grads * torch.tensor(passed)).tolist()


@pytest.mark.parametrize("module", [SignActivation(), QuantActivation(signed=True)])
def test_they_keep_the_type(module):
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert module(torch.randn(4, dtype=dtype)).dtype == dtype


def test_other_widths_are_refused():
    for width in (0, -1.0, math.nan, "1", True, None):
        with pytest.raises((TypeError, ValueError), match="width must be a positive finite number"):
            SignActivation(width)


def test_whole_numbers_of_a_power_of_two_by_hand():
    x = torch.tensor([-3.0, -2.0, -0.3, 0.25, 0.26, 0.75, 1.5, 9.0, -math.inf])
    signed, unsigned = QuantActivation(3, signed=True, scale=0.5), QuantActivation(2, scale=0.5)
    assert signed(x).tolist() == [-2, -2, -0.5, 0, 0.5, 1, 1.5, 1.5, -2]
    assert unsigned(x).tolist() == [0, 0, 0, 0, 0.5, 1, 1.5, 1.5, 0]


@pytest.mark.parametrize(("bits", "signed"), [(2, False), (3, True), (5, False), (8, True), (8, False)])
def test_the_range_has_so_many_bits_and_evaluation_equals_training(bits, signed):
    module = QuantActivation(bits, signed=signed, scale=1)
    x = torch.linspace(-300, 300, 6001)
    found = module(x)
    assert found.unique().tolist() == list(range(module.low, module.high + 1))
    assert module.high - module.low == 2**bits - 1
    assert torch.equal(found, module.eval()(x)) and torch.equal(module(found), found)


def test_gradients_pass_within_the_range_and_the_scale_has_that_of_lsq():
    module = QuantActivation(3, signed=True, scale=0.5)
    x = torch.tensor([-3.0, -0.3, 0.4, 9.0], requires_grad=True)
    grads = torch.tensor([1.0, 2.0, 3.0, 4.0])
    module(x).backward(grads)
    assert x.grad.tolist() == [0, 2, 3, 0]
    by_scale = torch.tensor([-4.0, -1 + 0.6, 1 - 0.8, 3.0])
    expected = (grads * by_scale).sum() * 0.5 * math.log(2) / math.sqrt(4 * 3)
    torch.testing.assert_close(module.log2_scale.grad, expected)


@pytest.mark.parametrize("learned", [True, False])
def test_the_scale_is_trained_as_a_real_parameter_and_saved(learned):
    torch.manual_seed(0)
    x, target = torch.randn(64, 16), torch.randint(3, (64,))

    def build():
        layers = [BinaryLinear(16, 32), nn.BatchNorm1d(32), QuantActivation(4, learned=learned), BinaryLinear(32, 3)]
        return nn.Sequential(*layers)

    model = build()
    optimizer = QPSBGD(model, lr=0.01, real=True)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert (model[2].log2_scale.item() != -2) == learned
    other = build()
    other.load_state_dict(model.state_dict())
    assert "2.log2_scale" in model.state_dict()
    assert torch.equal(other.eval()(x), model.eval()(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 1}, "bits must be an integer of at least 2 and at most 8, got 1"),
        ({"bits": 9}, "bits must be an integer of at least 2"),
        ({"bits": 4.0}, "bits must be an integer of at least 2"),
        ({"scale": 0}, "scale must be a finite number"),
        ({"scale": math.nan}, "scale must be a finite number"),
        ({"scale": "1"}, "scale must be a finite number"),
        ({"signed": 1}, "signed and learned must be True or False"),
    ],
)
def test_other_options_of_whole_numbers_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        QuantActivation(**options)


def test_options_may_be_numbers_of_numpy():
    assert repr(QuantActivation(np.int64(4), scale=np.float32(0.25))) == repr(QuantActivation(4, scale=0.25))
    assert SignActivation(np.float32(2)).width == 2


def test_repr_shows_an_unusual_width():
    assert repr(SignActivation()) == "SignActivation()"
    assert repr(copy.deepcopy(SignActivation(0.5))) == "SignActivation(width=0.5)"
