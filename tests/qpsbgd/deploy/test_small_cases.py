"""Small networks in which a wrong number shows: two units, values that are used twice, rounding at a boundary."""

import numpy as np
import pytest
import torch
from compiled_c import built, needs_compiler, output_step, results
from torch import nn

from qpsbgd.deploy import pack, to_c
from qpsbgd.nn import BinaryLinear, QuantActivation, SignActivation
from qpsbgd_runtime.unit_operations import Requantize


def rows(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@needs_compiler
def test_two_outputs_of_whole_numbers_have_offsets_of_their_own_in_c(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(SignActivation(), BinaryLinear(9, 2, bias=True)).eval()
    with torch.no_grad():
        model[1].bias.copy_(torch.tensor([3.0, -2.0]))
    source = to_c(model, tmp_path)
    _, found = results(built(source), rows((6, 9)).numpy())
    np.testing.assert_allclose(found * output_step(source), model(rows((6, 9))).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("activation", "included"), [(nn.ReLU(), False), (nn.Sigmoid(), True)])
def test_c_includes_mathematics_only_where_it_needs_it(activation, included, tmp_path):
    source = to_c(nn.Sequential(nn.Linear(3, 4), activation, BinaryLinear(4, 2)).eval(), tmp_path)
    text = "".join(file.read_text() for file in source.files)
    assert ("#include <math.h>" in text) == (" -lm" in text) == included


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.relu = nn.Linear(5, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        hidden = self.layer(x)
        positive = self.relu(hidden)
        return positive + 2 * hidden  # torch has changed `hidden`, too


class SumsUsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.signs, self.first, self.second = SignActivation(), BinaryLinear(7, 5), BinaryLinear(5, 5)

    def forward(self, x):
        sums = self.first(self.signs(x))
        return self.second(self.signs(sums)) + sums


@pytest.mark.parametrize(("kind", "width"), [(InPlace, 5), (SumsUsedTwice, 7)])
def test_a_packed_network_gives_what_torch_gives(kind, width):
    torch.manual_seed(0)
    model = kind().eval()
    found = pack(model, input_shape=(width,))(rows((6, width)).numpy())
    np.testing.assert_allclose(found, model(rows((6, width))).detach().numpy(), rtol=1e-5, atol=1e-6)


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
