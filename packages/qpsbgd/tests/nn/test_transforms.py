"""Layers on the meta device, under forward-mode derivatives, tracing and compilation."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear, QuantActivation, SignActivation

SCALES = (None, "learned", "magnitude")


@pytest.mark.parametrize("make", [lambda **own: BinaryLinear(6, 3, scale="magnitude", **own), QuantActivation])
def test_what_was_made_on_the_meta_device_is_reset_as_if_made_here(make):
    made, expected = make(device="meta").to_empty(device="cpu"), make()
    for tensor in (*made.parameters(), *made.buffers()):
        if tensor.is_floating_point():
            tensor.detach().fill_(7.0)
    for module in (made, expected):
        torch.manual_seed(0)
        module.reset_parameters()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(made.state_dict()[name], tensor)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch itself calls it
@pytest.mark.parametrize("scale", SCALES)
def test_derivatives_by_latent_weights_are_the_same_forward_and_backward(scale):
    layer, x = BinaryLinear(3, 2, scale=scale), torch.randn(4, 3)
    weight, tangent = layer.weight.detach(), torch.randn(2, 3)

    def outputs(weight):
        return torch.func.functional_call(layer, {"weight": weight}, (x,))

    backward = torch.func.jacrev(outputs)(weight)
    assert backward.any()
    torch.testing.assert_close(torch.func.jacfwd(outputs)(weight), backward)
    product = (backward * tangent).sum((-2, -1))
    torch.testing.assert_close(torch.func.jvp(outputs, (weight,), (tangent,))[1], product)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(outputs(forward_ad.make_dual(weight, tangent)))
        torch.testing.assert_close(dual.tangent, product)


@pytest.mark.parametrize("scale", SCALES)
def test_real_planes_in_training_have_the_coefficients_of_the_binary_ones(scale):
    layer, x = BinaryLinear(5, 3, bits=2, gain=1.0, scale=scale), torch.randn(4, 5)
    with torch.no_grad():
        layer.weight.copy_(layer.binary_weight)  # then signs and real weights are the same
    expected = layer(x)
    layer.latent_forward = True
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and warns of every size
@pytest.mark.parametrize(
    ("optimized", "activation", "training"), [(True, SignActivation, True), (False, QuantActivation, False)]
)
def test_a_traced_model_passes_torchs_check_and_computes_the_same(optimized, activation, training):
    model = nn.Sequential(BinaryLinear(4, 6), nn.LayerNorm(6), activation(), BinaryLinear(6, 3)).train(training)
    if optimized:
        QPSBGD(model, real=True)
    traced = torch.jit.trace(model, torch.randn(5, 4))
    x = torch.randn(5, 4)
    torch.testing.assert_close(traced(x), model(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = BinaryLinear(6, 6)

    def forward(self, x):
        return x + self.layer(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch itself looks at it
def test_equal_blocks_that_are_compiled_one_by_one_share_their_graphs():
    torch._dynamo.reset()
    model = nn.Sequential(*(Block() for _ in range(12)))
    optimizer = QPSBGD(model, 0.01, "ridge")
    for block in model:
        block.compile(backend="aot_eager")
    with torch._dynamo.config.patch(recompile_limit=4, fail_on_recompile_limit_hit=True):
        for _ in range(3):
            before = [block.layer.weight.detach().clone() for block in model]
            optimizer.zero_grad()
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
    assert all(not torch.equal(block.layer.weight, old) for block, old in zip(model, before, strict=True))


@pytest.mark.parametrize("projection", ["ridge", pytest.param("printed", marks=pytest.mark.slow)])
def test_a_layer_that_was_frozen_at_first_is_trained_once_it_is_not_under_compilation_too(projection):
    torch._dynamo.reset()
    model = nn.Sequential(BinaryLinear(3, 4), nn.Tanh(), BinaryLinear(4, 2))
    model[0].weight.requires_grad_(False)
    optimizer = QPSBGD(model, 0.01, projection)
    compiled = torch.compile(model, backend="aot_eager")
    before = model[0].weight.detach().clone()
    for frozen in (True, False, False):
        model[0].weight.requires_grad_(not frozen)
        optimizer.zero_grad()
        compiled(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        assert torch.equal(model[0].weight, before) == frozen
