import copy
import math

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear, SignActivation


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_it_keeps_the_type(dtype):
    assert SignActivation()(torch.randn(4, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("width", [0, -1.0, math.nan, "1", True, None])
def test_other_widths_are_refused(width):
    with pytest.raises(ValueError, match="width must be a positive number"):
        SignActivation(width)


def test_repr_shows_an_unusual_width():
    assert repr(SignActivation()) == "SignActivation()"
    assert repr(copy.deepcopy(SignActivation(0.5))) == "SignActivation(width=0.5)"


def test_a_network_of_signs_alone_is_trained():
    x = torch.randn(256, 16).sign()
    target = (x[:, :8].sum(1) > x[:, 8:].sum(1)).long()
    model = nn.Sequential(BinaryLinear(16, 32), SignActivation(), BinaryLinear(32, 2))
    optimizer = QPSBGD(model, lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
    assert set(model[:2](x).flatten().tolist()) == {-1.0, 1.0}
    assert (model(x).argmax(1) == target).float().mean() > 0.85
