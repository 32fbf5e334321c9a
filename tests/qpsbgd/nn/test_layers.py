import copy
import math
import pickle
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd.nn import BinaryConv2d, BinaryLinear, sign
from qpsbgd.nn.tape import Tape

CONVOLUTIONS = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2},
    {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
]


def linear():
    return with_random_bias(BinaryLinear(5, 3, bias=True))


def convolution():
    return with_random_bias(BinaryConv2d(2, 3, (2, 3), padding=1, bias=True))


def with_random_bias(layer):
    torch.nn.init.normal_(layer.bias)
    return layer


def inputs():
    return torch.randn(2, 2, 4, 5)


either_layer = pytest.mark.parametrize("make", [linear, convolution])


def test_sign_is_plus_one_at_zero():
    assert sign(torch.tensor([-2.0, -0.0, 0.0, 0.5])).tolist() == [-1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sign_keeps_the_type(dtype):
    assert sign(torch.tensor([-2.0, 3.0], dtype=dtype)).dtype == dtype


def test_the_gradient_passes_straight_through_the_sign():
    latent = torch.tensor([-3.0, -0.1, 0.0, 7.0], requires_grad=True)
    weights = torch.tensor([1.0, -2.0, 3.0, -4.0])
    (sign(latent) * weights).sum().backward()
    assert torch.equal(latent.grad, weights)


def test_the_gradient_of_a_layer_is_the_one_at_the_binary_weights():
    layer, x = BinaryLinear(4, 3), torch.randn(6, 4)
    layer(x).square().sum().backward()
    binary = layer.binary_weight.requires_grad_()
    (layer.gain * x @ binary.T).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, binary.grad)


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda: BinaryLinear(200, 100), math.sqrt(1.5 / 300)),
        (lambda: BinaryConv2d(8, 50, 5), math.sqrt(1.5 / 250)),
    ],
)
def test_latent_weights_start_uniformly_within_the_bound(make, bound):
    layer = make()
    assert layer.weight.abs().max() <= bound
    assert layer.weight.abs().max() > 0.99 * bound
    assert layer.weight.mean().abs() < 0.05 * bound


def test_a_reset_zeroes_the_bias():
    layer = linear()
    layer.reset_parameters()
    assert torch.equal(layer.bias, torch.zeros(3))


def test_there_is_no_bias_unless_asked_for():
    assert [name for name, _ in BinaryLinear(3, 4).named_parameters()] == ["weight"]
    assert BinaryLinear(3, 4, bias=True).bias.shape == (4,)


@pytest.mark.parametrize(("gain", "value"), [("fan_in", 1 / math.sqrt(12)), (1.0, 1.0), (3, 3.0)])
def test_the_gain_is_a_number_or_one_over_the_root_of_the_fan_in(gain, value):
    assert BinaryLinear(12, 7, gain=gain).gain == pytest.approx(value)
    assert BinaryConv2d(3, 7, 2, gain=gain).gain == pytest.approx(value)


@pytest.mark.parametrize("gain", ["fan_in", 1.0, 0.3])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)])
def test_a_linear_layer_computes_with_binary_weights_gain_and_bias(gain, shape):
    layer = with_random_bias(BinaryLinear(5, 3, gain=gain, bias=True))
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), layer.gain * x @ layer.binary_weight.T + layer.bias)
    assert torch.equal(layer.binary_weight.abs(), torch.ones(3, 5))


@pytest.mark.parametrize("options", CONVOLUTIONS)
def test_a_convolution_is_torchs_own_with_binary_weights(options):
    layer = with_random_bias(BinaryConv2d(2, 3, (2, 3), gain=0.5, bias=True, **options))
    x = torch.randn(4, 2, 8, 9)
    expected = F.conv2d(x, 0.5 * layer.binary_weight, layer.bias, **options)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x[0]), expected[0])


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("options", CONVOLUTIONS)
def test_input_rows_times_weight_rows_are_the_outputs_of_a_convolution(options, batched):
    layer = BinaryConv2d(2, 3, (2, 3), gain=1.0, **options)
    x = torch.randn(4, 2, 8, 9) if batched else torch.randn(2, 8, 9)
    torch.testing.assert_close(
        layer.input_rows(x) @ layer.binary_weight.flatten(1).T,
        layer.grad_rows(layer(x)),
    )


@pytest.mark.parametrize(("make", "function"), [(linear, F.linear), (convolution, partial(F.conv2d, padding=1))])
def test_the_real_weights_are_used_in_training_only_and_where_asked_for(make, function):
    layer, x = make(), inputs()
    binary, real = (function(x, layer.gain * weight, layer.bias) for weight in (layer.binary_weight, layer.weight))
    torch.testing.assert_close(layer(x), binary)
    layer.latent_forward = True
    torch.testing.assert_close(layer(x), real)
    torch.testing.assert_close(layer.eval()(x), binary)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BinaryLinear(0, 3), r"at least 1, got weights of shape \(3, 0\)"),
        (lambda: BinaryLinear(3, -1), r"at least 1, got weights of shape \(-1, 3\)"),
        (lambda: BinaryConv2d(0, 1, 3), "at least 1"),
        (lambda: BinaryLinear(3, 3, gain="fan_out"), "fan_in.*'fan_out'"),
        (lambda: BinaryLinear(3, 3, gain=0), "positive number, got 0"),
        (lambda: BinaryLinear(3, 3, gain=-1.0), "positive number, got -1.0"),
        (lambda: BinaryLinear(3, 3, gain=math.nan), "positive number, got nan"),
        (lambda: BinaryLinear(3, 3, gain=math.inf), "positive number, got inf"),
        (lambda: BinaryConv2d(1, 1, 0), "kernel_size must be a whole number of at least 1.*got 0"),
        (lambda: BinaryConv2d(1, 1, (1, 2, 3)), "kernel_size must be .* a pair"),
        (lambda: BinaryConv2d(1, 1, 3, stride=0), "stride must be a whole number of at least 1.*got 0"),
        (lambda: BinaryConv2d(1, 1, 3, padding="same"), "padding must be a whole number .*got 'same'"),
        (lambda: BinaryConv2d(1, 1, 3, padding=-1), "padding must be a whole number of at least 0.*got -1"),
        (lambda: BinaryConv2d(1, 1, 3, dilation=1.5), "dilation must be a whole number .*got 1.5"),
    ],
)
def test_bad_arguments_raise_and_say_what_must_hold(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@either_layer
def test_a_copy_of_a_layer_is_equal_but_not_recorded(make, copied):
    layer, x = make(), inputs()
    tape = layer.tape = Tape()
    twin = copied(layer)
    assert twin.tape is None
    assert layer.tape is tape
    assert torch.equal(twin(x), layer(x))
    twin(x).sum().backward()
    assert tape.read() is None


@either_layer
def test_a_state_dict_carries_the_latent_weights_and_the_bias_over(make):
    layer, other, x = make(), make(), inputs()
    layer.tape = Tape()
    assert set(layer.state_dict()) == {"weight", "bias"}
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (BinaryLinear(4, 3), "BinaryLinear(4, 3, gain=0.5, bias=False)"),
        (
            BinaryConv2d(1, 2, 2, stride=2),
            "BinaryConv2d(1, 2, (2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), gain=0.5, bias=False)",
        ),
    ],
)
def test_repr_shows_how_the_layer_was_made(layer, text):
    assert repr(layer) == text


def test_the_third_argument_is_the_bias_as_in_torch():
    assert BinaryLinear(8, 8, True).bias is not None
    with pytest.raises(TypeError, match=r"bias must be True or False, got 0.5; .*gain=0.5"):
        BinaryLinear(8, 8, 0.5)
    with pytest.raises(ValueError, match="gain"):
        BinaryLinear(8, 8, gain=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_signs_are_exactly_one_and_pass_gradients_straight_through(dtype):
    latent = (3 * torch.randn(1000)).to(dtype).requires_grad_()
    signs = sign(latent)
    assert set(signs.tolist()) == {-1.0, 1.0}
    grads = torch.randn(1000).to(dtype)
    assert torch.equal(torch.autograd.grad(signs, latent, grads)[0], grads)


def test_a_layer_can_be_mapped_over():
    layer, x = BinaryLinear(4, 3), torch.randn(5, 2, 4)
    assert torch.equal(torch.func.vmap(layer)(x), layer(x))
    stacked = torch.randn(6, 3, 4)
    outputs = torch.func.vmap(lambda weight: torch.func.functional_call(layer, {"weight": weight}, x))(stacked)
    assert outputs.shape == (6, 5, 2, 3)
    grads = torch.func.vmap(torch.func.grad(lambda weight, row: (sign(weight) @ row).sum()), in_dims=(None, 0))(
        layer.weight, torch.randn(7, 4)
    )
    assert grads.shape == (7, 3, 4)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_traced_layer_can_be_saved_and_loaded(tmp_path):
    layer, x = BinaryLinear(4, 3, True), torch.randn(5, 4)
    for mode in (True, False):
        traced = torch.jit.trace(layer.train(mode), x)
        torch.jit.save(traced, tmp_path / "layer.pt")
        torch.testing.assert_close(torch.jit.load(tmp_path / "layer.pt")(x), layer(x))


def test_a_transformer_layer_evaluates_with_signs():
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    encoder.linear1, encoder.linear2 = BinaryLinear(8, 16, True), BinaryLinear(16, 8, True)
    x = torch.randn(3, 5, 8)
    trained = encoder(x)
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x), trained)


def test_attention_that_would_read_latent_weights_is_refused():
    attention = nn.MultiheadAttention(8, 2)
    with pytest.raises(TypeError, match=r"reads out_proj\.weight directly"):
        attention.out_proj = BinaryLinear(8, 8)


def test_nested_tensors_are_refused():
    with pytest.warns(UserWarning, match="nested"):
        nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    with pytest.raises(TypeError, match="enable_nested_tensor=False"):
        BinaryLinear(4, 3)(nested)
