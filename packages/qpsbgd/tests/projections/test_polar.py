import copy

import pytest
import torch
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv2d, BinaryLinear


def test_the_direction_is_the_orthogonal_factor_of_the_mean_gradient():
    torch.manual_seed(0)
    layer = BinaryLinear(5, 9)
    optimizer = QPSBGD(layer, 0.01, "polar", momentum=0.5)
    mean = torch.zeros(9, 5)
    for beta in (0.0, 0.5):  # the first gradient is not damped
        before = layer.weight.detach().clone()
        layer.weight.grad = torch.randn(9, 5)
        mean = torch.lerp(layer.weight.grad, mean, beta)
        optimizer.step()
        u, _, v = torch.linalg.svd(mean, full_matrices=False)
        moved = (before - layer.weight.detach()).flatten()
        assert moved.square().mean().sqrt().item() == pytest.approx(0.01, rel=1e-4)
        assert torch.cosine_similarity(moved, (u @ v).flatten(), dim=0) > 0.95


def test_every_group_of_a_convolution_has_a_factor_of_its_own():
    torch.manual_seed(0)
    layer = BinaryConv2d(4, 6, 3, groups=2)
    optimizer = QPSBGD(layer, 0.01, "polar")
    layer.weight.grad = torch.randn_like(layer.weight)
    layer.weight.grad[:3] *= 1000
    before = layer.weight.detach().clone()
    optimizer.step()
    sizes = (before - layer.weight.detach()).reshape(2, -1).square().mean(1).sqrt()
    assert sizes[0] / sizes[1] == pytest.approx(1, rel=0.2), "the size of the gradient does not matter"


def test_layers_of_one_shape_get_the_factors_that_they_get_alone(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(4, 6), BinaryConv2d(4, 8, 1, groups=2), BinaryLinear(4, 6), BinaryLinear(6, 4))
    gradients = [torch.randn_like(layer.weight) for layer in model]

    def moved(limit):
        monkeypatch.setattr("qpsbgd.projections.polar.SMALL", limit)
        other = copy.deepcopy(model)
        optimizer = QPSBGD(other, 0.01, "polar", real=False)
        for layer, gradient in zip(other, gradients, strict=True):
            layer.weight.grad = gradient.clone()
        optimizer.step()
        return [layer.weight.detach() for layer in other]

    torch.testing.assert_close(moved(100), moved(0))
