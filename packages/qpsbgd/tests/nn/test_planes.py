"""Planes that layers compute together: the same as alone, and never those of earlier weights."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from qpsbgd.nn import BinaryConv2d, BinaryLinear, planes
from qpsbgd.nn.layers import label_layers


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
)
def device(request, monkeypatch):
    """A device on which layers share kernels: a GPU, or the processor for once."""
    monkeypatch.setattr(planes, "DEVICES", {"cpu", "cuda"})
    return request.param


def network(**options):
    torch.manual_seed(0)
    model = nn.Sequential(
        BinaryConv2d(3, 8, 3, **options),
        nn.ReLU(),
        BinaryConv2d(8, 8, 3, bits=2, **options),
        nn.ReLU(),
        nn.Flatten(),
        BinaryLinear(128, 16, **options),
        BinaryLinear(16, 4, gain=1.0),
    )
    label_layers(model)
    return model


def gradients(model, x):
    model.zero_grad()
    model(x).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("options", [{}, {"scale": "magnitude"}, {"scale": "learned"}, {"gain": 1.0}], ids=str)
@pytest.mark.parametrize("change", ["step", "data", "in place", "replaced", "loaded"])
def test_planes_computed_together_are_those_of_the_weights_of_now(device, options, change):
    model, x = network(**options).to(device), torch.randn(5, 3, 8, 8, device=device)
    other = network(**options).to(device)
    for _ in range(3):
        alone = copy.deepcopy(model)
        with torch.no_grad():
            expected = alone(x)  # without gradients every layer computes its own
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(gradients(model, x), gradients(alone, x))
        for layer in (layer for layer in model if hasattr(layer, "weight")):
            new = torch.randn_like(layer.weight)
            if change == "step":
                layer.weight = nn.Parameter(layer.weight.detach() - layer.weight.grad)
            elif change == "data":
                layer.weight.data.copy_(new)
            elif change == "in place":
                with torch.no_grad():
                    layer.weight.mul_(-1)
            elif change == "replaced":
                layer.weight = nn.Parameter(new)
        if change == "loaded":
            model.load_state_dict(other.state_dict())


def test_the_first_call_computes_the_planes_of_all_layers_that_gradients_have_reached(device):
    model, x = network(scale="magnitude").to(device), torch.randn(5, 3, 8, 8, device=device)
    gradients(model, x)
    layers = [layer for layer in model if hasattr(layer, "weight")]
    values = [planes.planes_of(layer) for layer in layers]
    assert len({value.grad_fn for value in values}) == 1
    assert all(planes.planes_of(layer) is value for layer, value in zip(layers, values, strict=True))
    gradients(model, x)
    assert not any(planes.planes_of(layer) is value for layer, value in zip(layers, values, strict=True))


def test_planes_are_in_the_type_of_autocast(device):
    model, x = network(scale="magnitude").to(device), torch.randn(5, 3, 8, 8, device=device)
    with torch.autocast(device, torch.bfloat16):
        model(x).float().square().mean().backward()
        model(x)
        assert planes.planes_of(model[0]).dtype == torch.bfloat16
    assert model[0].weight.grad.dtype == torch.float32
    assert planes.planes_of(model[0]).dtype == torch.float32


def test_copies_share_nothing_with_the_model_and_models_are_freed(device):
    model, x = network().to(device), torch.randn(5, 3, 8, 8, device=device)
    gradients(model, x)
    model(x)
    layers = [layer for layer in copy.deepcopy(model) if hasattr(layer, "weight")]
    assert all(layer.shared is layers[0].shared for layer in layers) and layers[0].shared is not model[0].shared
    weight = weakref.ref(model[0].weight)
    gc.disable()
    del model
    gc.enable()
    assert weight() is None


def test_frozen_and_unused_layers_get_no_gradients(device):
    model, x = network(scale="magnitude").to(device), torch.randn(5, 3, 8, 8, device=device)
    gradients(model, x)
    model[0].weight.requires_grad_(False)
    model.zero_grad()
    model[2](model[0](x)).sum().backward()
    assert model[0].weight.grad is None and model[2].weight.grad is not None and model[5].weight.grad is None


def test_compiled_models_trace_the_plain_operations(device):
    model, x = network(scale="magnitude").to(device), torch.randn(5, 3, 8, 8, device=device)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(gradients(compiled, x), gradients(model, x))
