import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from qpsbgd.nn import BinaryConv1d, BinaryConv2d

LAYERS = {1: (BinaryConv1d, nn.Conv1d), 2: (BinaryConv2d, nn.Conv2d)}
PADDING_MODES = ["zeros", "reflect", "replicate", "circular"]

# torch makes a padded copy too, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")


@st.composite
def convolutions(draw):
    """A convolution with a bias in double precision, its torch twin with the same weights, and an input."""
    dims = draw(st.sampled_from([1, 2]))

    def sizes(least, most):
        return draw(st.one_of(st.integers(least, most), st.tuples(*[st.integers(least, most)] * dims)))

    padding = draw(st.sampled_from(["same", "valid", "numbers"]))
    groups = draw(st.integers(1, 3))
    options = {
        "kernel_size": sizes(1, 3),
        "stride": 1 if padding == "same" else sizes(1, 3),
        "padding": sizes(0, 2) if padding == "numbers" else padding,
        "dilation": sizes(1, 2),
        "groups": groups,
        "padding_mode": draw(st.sampled_from(PADDING_MODES)),
        "bias": draw(st.booleans()),
        "dtype": torch.float64,
    }
    channels = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    ours, theirs = LAYERS[dims]
    layer, twin = ours(*channels, **options, bits=draw(st.integers(1, 3))), theirs(*channels, **options)
    with torch.no_grad():
        twin.weight.copy_(layer.gain * layer.quantized_weight)
        if layer.bias is not None:
            layer.bias.copy_(nn.init.normal_(twin.bias))
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    x = torch.randn(*batch, channels[0], *(6, 8)[:dims], dtype=torch.float64)
    return layer, twin, x


@given(convolutions())
def test_a_convolution_is_torchs_own_with_quantised_weights(case):
    layer, twin, x = case
    torch.testing.assert_close(layer(x), twin(x))
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"):
        assert getattr(layer, name) == getattr(twin, name)
    assert layer.padding_mode == twin.padding_mode


def by_group(layer, columns):
    """(B, groups · k) → (groups, B, k)."""
    return columns.reshape(len(columns), layer.groups, -1).transpose(0, 1)


def weights_by_group(layer, weights):
    """(m, …) → (groups, m / groups, n)."""
    return weights.flatten(1).reshape(layer.groups, -1, weights[0].numel())


@given(convolutions())
def test_rows_explain_the_outputs_and_the_gradient_of_the_weights_group_by_group(case):
    layer, _, x = case
    bias, layer.bias = layer.bias, None
    output = layer(x)
    rows = by_group(layer, layer.input_rows(x))
    signs = weights_by_group(layer, layer.binary_weight)
    torch.testing.assert_close(layer.gain * rows @ signs.mT, by_group(layer, layer.grad_rows(output.detach())))
    assert layer.num_rows(output.shape) == rows.shape[1]

    layer.bias = bias
    grad = torch.randn_like(output)
    layer(x).backward(grad)
    grads = by_group(layer, layer.grad_rows(grad))
    torch.testing.assert_close(layer.gain * grads.mT @ rows, weights_by_group(layer, layer.weight.grad))


@given(convolutions(), st.data())
def test_some_rows_are_the_same_as_among_all_rows(case, data):
    layer, _, x = case
    output = layer(x).detach()
    count = layer.num_rows(output.shape)
    at = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), max_size=8)), dtype=torch.long)
    assert torch.equal(layer.input_rows(x, at), layer.input_rows(x)[at])
    assert torch.equal(layer.grad_rows(output, at=at), layer.grad_rows(output)[at])


def test_every_group_counts_as_a_layer_of_its_own():
    layer = BinaryConv2d(8, 400, 3, groups=4)
    assert layer.gain == pytest.approx(1 / math.sqrt(2 * 9))
    assert layer.initial_bound == pytest.approx(math.sqrt(1.5 / (18 + 100)))
    assert 0.99 * layer.initial_bound < layer.weight.abs().max() <= layer.initial_bound


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((1, 1, 0), {}, "kernel_size must be an integer of at least 1.*got 0"),
        ((1, 1, (1, 2, 3)), {}, r"kernel_size must be .* a tuple of 2, got \(1, 2, 3\)"),
        ((1, 1, 3), {"stride": 0}, "stride must be an integer of at least 1.*got 0"),
        ((1, 1, 3), {"padding": -1}, "padding must be an integer of at least 0.*got -1"),
        ((1, 1, 3), {"padding": "full"}, "padding must be numbers, 'same' or 'valid', got 'full'"),
        ((1, 1, 3), {"padding": "same", "stride": 2}, "padding='same' is not supported for strided convolutions"),
        ((1, 1, 3), {"dilation": 1.5}, "dilation must be an integer .*got 1.5"),
        ((1, 1, 3), {"padding_mode": "mirror"}, "padding_mode must be one of zeros, .*got 'mirror'"),
        ((3, 4, 3), {"groups": 2}, "in_channels must be divisible by groups, got 3 channels and 2 groups"),
        ((4, 3, 3), {"groups": 2}, "out_channels must be divisible by groups"),
        ((4, 4, 3), {"groups": 0}, "groups must be an integer of at least 1, got 0"),
        ((0, 1, 3), {}, "at least 1"),
    ],
)
def test_bad_arguments_raise_and_say_what_must_hold(arguments, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        BinaryConv2d(*arguments, **options)


def test_sizes_may_be_whole_numbers_of_numpy():
    one, two, three = np.arange(1, 4)
    layer = BinaryConv2d(two, two, three, stride=two, padding=one, dilation=(two, one), groups=two, bits=two)
    assert repr(layer) == repr(BinaryConv2d(2, 2, 3, stride=2, padding=1, dilation=(2, 1), groups=2, bits=2))
    assert layer(torch.zeros(1, 2, 9, 9)).shape == (1, 2, 4, 5)


def grouped():
    return BinaryConv2d(4, 6, 3, padding="same", groups=2, bias=True, padding_mode="reflect", bits=2)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_traced_or_exported_convolution_computes_the_same():
    layer, x = grouped(), torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(torch.jit.trace(layer, x)(x), layer(x))
    torch.testing.assert_close(torch.export.export(layer.eval(), (x,)).module()(x), layer(x))


@pytest.mark.parametrize("bits", [1, 2])
def test_a_memory_format_leaves_outputs_and_gradients_as_they_are(bits):
    torch.manual_seed(0)
    layer, x = BinaryConv2d(3, 8, 3, bits=bits), torch.randn(2, 3, 6, 6)
    expected = layer(x)
    expected.square().sum().backward()
    gradient, layer.weight.grad = layer.weight.grad.clone(), None
    layer.to(memory_format=torch.channels_last)
    outputs = layer(x.to(memory_format=torch.channels_last))
    outputs.square().sum().backward()
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(layer.weight.grad, gradient)
    assert layer.weight.reshape(-1, 3, 3, 3).is_contiguous(memory_format=torch.channels_last)
