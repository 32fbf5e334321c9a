import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, sign
from qpsbgd.nn.tape import Tape


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sign_is_plus_one_at_zero_and_exact_for_the_smallest_and_largest_numbers(dtype):
    limits = torch.finfo(dtype)
    sizes = torch.tensor(
        [0.0, limits.smallest_normal * limits.eps, limits.tiny, 0.5, 1.0, limits.max, math.inf], dtype=dtype
    )
    assert sign(sizes).tolist() == [1] * 7 and sign(sizes).dtype == dtype
    assert sign(-sizes).tolist() == [1] + [-1] * 6


@pytest.mark.parametrize(
    ("bits", "scale", "train"), [(1, None, True), (2, None, False), (1, "learned", False), (2, "magnitude", True)]
)
def test_a_latent_weight_of_nan_makes_its_unit_nan_as_in_torchs_own_layer(bits, scale, train):
    layer = BinaryLinear(4, 3, bits=bits, scale=scale, bias=True).train(train)
    with torch.no_grad():
        layer.weight[1].reshape(-1)[2] = math.nan
    assert layer(torch.randn(2, 4)).isnan().tolist() == [[False, True, False]] * 2


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


@pytest.mark.parametrize(
    ("gain", "value"), [("fan_in", 1 / math.sqrt(12)), (1.0, 1.0), (3, 3.0), (np.float32(0.5), 0.5)]
)
def test_the_gain_is_a_number_or_one_over_the_root_of_the_fan_in(gain, value):
    assert BinaryLinear(12, 7, gain=gain).gain == pytest.approx(value)
    assert BinaryConv2d(3, 7, 2, gain=gain).gain == pytest.approx(value)


@pytest.mark.parametrize(("gain", "shape"), [("fan_in", (5,)), (1.0, (4, 5)), (0.3, (2, 3, 5))])
def test_a_linear_layer_computes_with_binary_weights_gain_and_bias(gain, shape):
    layer = with_random_bias(BinaryLinear(5, 3, gain=gain, bias=True))
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), layer.gain * x @ layer.binary_weight.T + layer.bias)
    assert torch.equal(layer.binary_weight.abs(), torch.ones(3, 5))


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
        (lambda: BinaryLinear(3, 3, gain=0), "positive finite number, got 0"),
        (lambda: BinaryLinear(3, 3, gain=-1.0), "positive finite number, got -1.0"),
        (lambda: BinaryLinear(3, 3, gain=math.nan), "positive finite number, got nan"),
        (lambda: BinaryLinear(3, 3, gain=math.inf), "positive finite number, got inf"),
        (lambda: BinaryLinear(3, 3, bits=0), "bits must be an integer of at least 1 and at most 8, got 0"),
        (lambda: BinaryLinear(3, 3, bits=9), "at most 8, got 9"),
        (lambda: BinaryLinear(3, 3, bits=1.5), "at most 8, got 1.5"),
        (lambda: BinaryLinear(3, 3, bits=True), "at most 8, got True"),
    ],
)
def test_bad_arguments_raise_and_say_what_must_hold(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
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


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (BinaryLinear(4, 3), "BinaryLinear(4, 3, gain=0.5, bias=False)"),
        (BinaryLinear(4, 3, True, bits=2), "BinaryLinear(4, 3, gain=0.5, bias=True, bits=2)"),
    ],
)
def test_repr_shows_how_the_layer_was_made(layer, text):
    assert repr(layer) == text


def test_the_third_argument_is_the_bias_as_in_torch():
    assert BinaryLinear(8, 8, True).bias is not None
    with pytest.raises(TypeError, match=r"bias must be True or False, got 0.5; .*gain=0.5"):
        BinaryLinear(8, 8, 0.5)
    with pytest.raises(TypeError, match="gain"):
        BinaryLinear(8, 8, gain=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_signs_are_exactly_one_and_pass_gradients_straight_through(dtype):
    latent = (3 * torch.randn(1000)).to(dtype).requires_grad_()
    signs = sign(latent)
    assert set(signs.tolist()) == {-1.0, 1.0}
    grads = torch.randn(1000).to(dtype)
    assert torch.equal(torch.autograd.grad(signs, latent, grads)[0], grads)


def test_attention_that_would_read_latent_weights_is_refused():
    attention = nn.MultiheadAttention(8, 2)
    attention.out_proj = BinaryLinear(8, 8)
    with pytest.raises(TypeError, match=r"reads out_proj\.weight directly"):
        QPSBGD(attention)


def test_nested_tensors_are_refused():
    with pytest.warns(UserWarning, match="nested"):
        nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    with pytest.raises(TypeError, match="enable_nested_tensor=False"):
        BinaryLinear(4, 3)(nested)


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_coefficients_are_halved_from_plane_to_plane_and_have_norm_one(bits):
    coefficients = torch.tensor(BinaryLinear(4, 3, bits=bits).coefficients, dtype=torch.float64)
    torch.testing.assert_close(coefficients.norm(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(coefficients[:-1], 2 * coefficients[1:])


@pytest.mark.parametrize("bits", [2, 3])
def test_weights_of_several_bits_are_sums_of_planes(bits):
    layer = BinaryLinear(200, 100, bits=bits)
    assert layer.weight.shape == layer.binary_weight.shape == (100, bits, 200)
    assert layer.quantized_weight.shape == (100, 200)
    expected = sum(c * layer.weight[:, b].sign() for b, c in enumerate(layer.coefficients))
    torch.testing.assert_close(layer.quantized_weight, expected.detach())
    assert len(layer.quantized_weight.unique()) == 2**bits
    assert layer.quantized_weight.var() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("bits", "shape"), [(1, (5,)), (1, (2, 3, 5)), (3, (4, 5))])
def test_rows_of_a_linear_layer_explain_outputs_and_gradients(bits, shape):
    layer, x = BinaryLinear(5, 3, bits=bits).double(), torch.randn(shape, dtype=torch.float64)
    output = layer(x)
    rows, weights = layer.input_rows(x), layer.binary_weight.flatten(1)
    torch.testing.assert_close(layer.gain * rows @ weights.T, layer.grad_rows(output))
    assert layer.num_rows(output.shape) == len(rows)
    grad = torch.randn_like(output)
    output.backward(grad)
    torch.testing.assert_close(layer.gain * layer.grad_rows(grad).T @ rows, layer.weight.grad.flatten(1))
    at = torch.randint(0, len(rows), (4,))
    assert torch.equal(layer.input_rows(x, at), rows[at])
    assert torch.equal(layer.grad_rows(grad, at=at), layer.grad_rows(grad)[at])


def fitted(make, bits, steps=200):
    """A layer fitted to real weights, and its relative error before and after."""
    layer, teacher = BinaryLinear(12, 4, bits=bits), torch.randn(4, 12) / math.sqrt(12)

    def error():
        return ((layer.gain * layer.quantized_weight - teacher).norm() / teacher.norm()).item()

    before = error()
    optimizer = make(layer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x = torch.randn(64, 12)
        optimizer.zero_grad()
        (layer(x) - x @ teacher.T).square().mean().backward()
        optimizer.step()
        schedule.step()
    return layer, before, error()


@pytest.mark.parametrize(
    "make",
    [
        partial(QPSBGD),
        partial(BinaryConnect, lr=0.01),
        partial(ProxQuant, lr=0.1, steps=200),
    ],
)
def test_every_optimiser_trains_all_planes_of_a_layer(make):
    torch.manual_seed(0)
    layer, before, after = fitted(make, bits=2)
    assert after < before / 1.5
    torch.manual_seed(0)
    start = BinaryLinear(12, 4, bits=2)
    assert (layer.binary_weight != start.binary_weight).any(2).any(0).all()


def test_torch_fx_traces_a_model_with_the_layer_as_one_node_that_is_trained():
    model = nn.Sequential(BinaryLinear(4, 8, bias=True), QuantActivation(), nn.Sequential(BinaryLinear(8, 3)))
    traced, x = torch.fx.symbolic_trace(model), torch.randn(5, 4)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1", "2.0"]
    assert torch.equal(traced(x), model(x))
    optimizer, before = QPSBGD(traced, real=True), copy.deepcopy(traced.state_dict())
    traced(x).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(value, before[name]) for name, value in traced.named_parameters())


@pytest.mark.parametrize("bits", [1, 3])
def test_learned_scales_begin_as_the_coefficients_and_multiply_the_planes(bits):
    torch.manual_seed(0)
    layer = BinaryLinear(6, 4, bits=bits, scale="learned")
    plain = BinaryLinear(6, 4, bits=bits)
    with torch.no_grad():
        plain.weight.copy_(layer.weight)
    x = torch.randn(30, 6)
    torch.testing.assert_close(layer(x), plain(x))
    with torch.no_grad():
        layer.scale.mul_(torch.rand(4, bits) + 0.5)
    planes = layer.binary_weight.reshape(4, bits, 6)
    torch.testing.assert_close(layer(x), layer.gain * x @ (layer.scale[:, :, None] * planes).sum(1).T)
    with pytest.raises(ValueError, match='"learned" or "magnitude"'):
        BinaryLinear(6, 4, scale=1.0)


@pytest.mark.parametrize("bits", [1, 2])
def test_scales_by_magnitude_follow_the_latent_weights_straight_through(bits):
    layer = BinaryLinear(6, 4, bias=True, bits=bits, gain=1.0, scale="magnitude")
    x = torch.randn(5, 6)
    latent = layer.weight.detach().reshape(4, bits, 6)
    factors = latent.abs().mean(-1, keepdim=True) * torch.tensor(layer.coefficients)[:, None]
    weight = (factors * torch.where(latent >= 0, 1.0, -1.0)).sum(1)
    torch.testing.assert_close(layer(x), x @ weight.T + layer.bias)
    grads = torch.randn(5, 4)
    layer(x).backward(grads)
    straight = (grads.T @ x)[:, None].expand(4, bits, 6)
    torch.testing.assert_close(layer.weight.grad.reshape(4, bits, 6), straight)
