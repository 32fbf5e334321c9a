"""Small networks in which a wrong number shows: two units, values that are used twice, rounding at a boundary."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from qpsbgd.deploy import pack, to_c
from qpsbgd.nn import BinaryLinear, QuantActivation, SignActivation
from qpsbgd_runtime.unit_operations import Requantize


def rows(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("activation", "included"), [(nn.ReLU(), False), (nn.Sigmoid(), True)])
def test_c_includes_mathematics_only_where_it_needs_it(activation, included, tmp_path):
    source = to_c(nn.Sequential(nn.Linear(3, 4), activation, BinaryLinear(4, 2)).eval(), tmp_path)
    text = "".join(file.read_text() for file in source.files)
    assert ("#include <math.h>" in text) == (" -lm" in text) == included


def test_ties_that_torch_rounds_to_even_numbers_are_torchs_in_rising_and_in_falling_units():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, eps=0.0)
    norm.weight.data.copy_(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    behind = (norm, QuantActivation(signed=True, scale=2.0))
    model = nn.Sequential(QuantActivation(scale=1.0), BinaryLinear(9, 4, gain=1.0), *behind).eval()
    packed = pack(model)
    line = next(one for one in packed.operations if isinstance(one, Requantize))
    assert {int(np.sign(line.factors[unit])) for unit, _, _ in line.exceptions} == {-1, 1}
    inputs = torch.randint(0, 20, (500, 9), generator=torch.Generator().manual_seed(0)).float()
    np.testing.assert_array_equal(packed(inputs.numpy()), model(inputs).detach().numpy())


def test_a_tie_at_the_largest_sum_is_torchs():
    torch.manual_seed(0)
    norm, end = nn.BatchNorm1d(8, eps=0.0), QuantActivation(signed=True, scale=2.0)
    norm.weight.data[::2] *= -1
    model = nn.Sequential(QuantActivation(2, scale=1.0), BinaryLinear(1, 8, gain=1.0), norm, end).eval()
    every = torch.arange(4.0)[:, None]
    np.testing.assert_array_equal(pack(model)(every.numpy()), model(every).detach().numpy())


@pytest.mark.parametrize("begin", [SignActivation, lambda: QuantActivation(2, signed=True, scale=1.0)])
def test_all_inputs_of_tiny_layers_give_torchs_numbers(begin):
    torch.manual_seed(0)
    ends = (
        SignActivation(),
        *(QuantActivation(bits, signed=s, scale=2.0**-bits) for bits in (2, 4) for s in (False, True)),
    )
    for inputs, end in itertools.product((1, 2, 5), ends):
        norm = nn.BatchNorm1d(12)
        with torch.no_grad():
            norm.weight.copy_(torch.randn(12) * torch.tensor([0.01, 1, 30]).repeat(4))
            norm.running_mean.copy_(torch.randint(-2, 3, (12,)) / 2)
        model = nn.Sequential(begin(), BinaryLinear(inputs, 12, gain=0.5), norm, end).eval()
        every = torch.tensor(list(itertools.product((-2.0, -1.0, 0.0, 1.0), repeat=inputs)))
        np.testing.assert_array_equal(pack(model)(every.numpy()), model(every).detach().numpy())


@pytest.mark.parametrize("end", [SignActivation, lambda: QuantActivation(signed=True)])
def test_learned_scales_round_as_in_torch_where_a_bias_makes_a_tie(end):
    torch.manual_seed(0)
    layer, x = BinaryLinear(15, 400, bias=True, scale="learned"), torch.randn(300, 15)
    model = nn.Sequential(SignActivation(), layer, end())
    with torch.no_grad():
        layer.scale.uniform_(0.2, 1.5)
        layer.bias.copy_(-layer(SignActivation()(x[0])))
        np.testing.assert_array_equal(pack(model)(x.numpy()), model.eval()(x).numpy())
