import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from compiled_c import built, check_in_c, needs_compiler, ran
from targets import TARGETS, outputs_on
from torch import nn

from qpsbgd.deploy import PackedModel, pack, to_c
from qpsbgd.nn import BinaryLinear, QuantActivation, SignActivation
from qpsbgd_runtime.image_operations import Convolution, Window
from qpsbgd_runtime.operations import Dense, Value, Weights
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Scale, Steps


@needs_compiler
def test_c_takes_bytes_where_the_network_begins_with_them(tmp_path):
    model = nn.Sequential(QuantActivation(scale=1 / 256), BinaryLinear(6, 3))
    source = to_c(model, tmp_path)
    header = source.files[0].read_text()
    assert "const uint8_t input[NETWORK_INPUTS]" in header
    assert float(re.search(r"NETWORK_INPUT_STEP (\S+)", header)[1]) == 1 / 256
    pixels = np.array([[0, 1, 2, 100, 254, 255]])
    ties = (pixels + np.array([[0.5, 0.5, -0.5, 0, 0, 9]])) / 256  # two even numbers, and one above all
    for rows in (pixels / 256, ties):
        check_in_c(source, model, torch.from_numpy(rows).float(), rtol=1e-6)


@needs_compiler
def test_c_takes_the_integers_of_an_activation_behind_several_reshapes(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), QuantActivation(scale=0.25), BinaryLinear(6, 2))
    source, inputs = to_c(model, tmp_path), torch.randint(256, (20, 6)) / 4
    assert "const uint8_t input[NETWORK_INPUTS]" in source.files[0].read_text()
    check_in_c(source, model, inputs, rtol=1e-6)
    assert ran(built(source), "", "--self-test").stdout == "self-test passed\n"


def with_exceptions(model, inputs, *, behind=1):
    """A packed model in which some sums that occur have other results, and these results times the step."""
    packed = pack(model)
    place = next(k for k, one in enumerate(packed.operations) if isinstance(one, Requantize))
    line = packed.operations[place]
    sums = PackedModel(packed.operations[:place])(inputs)
    other = {(unit, int(sums[row, unit])): (7 * row + unit) % 256 for row in range(3) for unit in (0, 2, 5)}
    exceptions = tuple(sorted((unit, at, result) for (unit, at), result in other.items()))
    results = PackedModel(packed.operations[: place + 1])(inputs).astype(np.float32)
    for unit, at, result in exceptions:
        results[sums[:, unit] == at, unit] = result
    operations = list(packed.operations)
    operations[place] = replace(line, exceptions=exceptions)
    return PackedModel(operations), results * line.steps.scale


def test_sums_that_float32_rounds_to_something_else_are_looked_up(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(QuantActivation(), BinaryLinear(9, 6), nn.BatchNorm1d(6), QuantActivation()).eval()
    inputs = 4 * torch.rand(20, 9).numpy()
    packed, expected = with_exceptions(model, inputs)
    assert (expected != model(torch.from_numpy(inputs)).detach().numpy()).any()
    for target in TARGETS:
        np.testing.assert_array_equal(outputs_on(target, packed, inputs, tmp_path), expected)


class Shared(nn.Module):
    """Sums that become integers, and are needed as they are, too."""

    def __init__(self):
        super().__init__()
        self.first, self.layer, self.second = QuantActivation(), BinaryLinear(9, 6), QuantActivation(signed=True)

    def forward(self, x):
        sums = self.layer(self.first(x))
        return self.second(sums) + sums


def test_sums_that_are_needed_elsewhere_are_quantised_as_well(tmp_path):
    torch.manual_seed(1)
    model, inputs = Shared(), 4 * torch.rand(20, 9)
    expected = model(inputs).detach().numpy()
    for target in TARGETS:
        exact = {"rtol": 1e-6, "atol": 1e-6} if target == "C" else {"rtol": 0}
        np.testing.assert_allclose(outputs_on(target, model, inputs.numpy(), tmp_path), expected, **exact)


def far_off(layer, norm):
    nn.init.constant_(layer.bias, 1e8)
    nn.init.constant_(norm.running_mean, 1e8)
    nn.init.constant_(norm.weight, 0.3)


@pytest.mark.parametrize(
    ("gain", "scale", "norm", "dtype", "reason"),
    [
        (1 / 24, 1.0, nn.Identity(), torch.float32, r"gain 0\.04167 many sums lie halfway .*put a batch norm between"),
        (1 / 30, 16.0, nn.BatchNorm1d(64), torch.float32, "far larger than what it is added to; train the model again"),
        (1 / 24, 1 / 16, nn.BatchNorm1d(64), torch.bfloat16, r"too few digits in bfloat16; .*model\.float\(\)"),
    ],
)
def test_lines_with_too_many_exceptions_are_refused_with_the_reason(gain, scale, norm, dtype, reason):
    layer = BinaryLinear(576, 64, gain=gain, bias=True)
    if scale > 1:
        far_off(layer, norm)
    model = nn.Sequential(QuantActivation(scale=1.0), layer, norm, QuantActivation(scale=scale), BinaryLinear(64, 3))
    with pytest.raises(ValueError, match=f"^1: .*at most 4096 exceptions.*{reason}"):
        pack(model.to(dtype).eval())


def test_a_scale_that_is_not_finite_is_refused():
    model = nn.Sequential(QuantActivation(), BinaryLinear(4, 2))
    nn.init.constant_(model[0].log2_scale, torch.nan)
    with pytest.raises(ValueError, match=r"0 \(QuantActivation\) holds NaN"):
        pack(model)


def test_millions_of_inputs_give_torchs_sign():
    inputs = 4_300_000  # twice the sum has 32 bits
    layer = BinaryLinear(inputs, 2, gain=1.0)
    with torch.no_grad():
        layer.weight[0], layer.weight[1] = 1.0, -1.0
    model = nn.Sequential(QuantActivation(scale=1.0), layer, nn.BatchNorm1d(2), SignActivation()).eval()
    rows = torch.full((1, inputs), 255.0)
    assert model(rows).tolist() == [[1, -1]]
    assert pack(model)(rows.numpy()).tolist() == [[1, -1]]


@pytest.mark.parametrize(("kind", "most"), [("bits", 2**31 - 1), ("int8", (2**31 - 1) // 128), ("uint8", 8421504)])
@pytest.mark.parametrize("convolution", [False, True])
def test_sums_that_may_need_more_than_32_bits_are_refused(kind, most, convolution):
    window = Window((1,), (1,), ((0, 0),), (1,))

    def layer(inputs):
        signs = Weights(np.broadcast_to(np.bool_(True), (1, 3, inputs, 1)[: 4 if convolution else 3]))
        return Convolution("net.3", signs, window, integer=True) if convolution else Dense("net.3", signs, integer=True)

    shape = (5,) if convolution else ()
    assert layer(most).result(Value(kind, (most, *shape))).kind == "ints"
    with pytest.raises(ValueError, match=r"net\.3 .*sums of at most 2147483647"):
        layer(most + 1).result(Value(kind, (most + 1, *shape)))


def test_groups_of_so_many_numbers_of_8_bits_that_float32_rounds_their_sums_are_refused():
    window = Window((1,), (1,), ((0, 0),), (1,))

    def packed(channels):
        signs = Weights(np.ones((1, 2, channels, 1), bool))
        steps = Steps(0, 255, 0)
        return PackedModel((Quantize("first", steps), Convolution("net.3", signs, window, 2, True), SUMS_AS_THEY_ARE))

    most = 2**24 // 255
    rows = np.full((1, 2 * most, 1), 255, np.float32)
    assert packed(most)(rows).ravel().tolist() == [255 * most] * 2
    with pytest.raises(ValueError, match=r"net\.3 .*sums of at most 16777216"):
        packed(most + 1)(np.full((1, 2 * most + 2, 1), 255, np.float32))


SUMS_AS_THEY_ARE = Scale("last", np.ones(1, np.float32), np.zeros(1, np.float32))
