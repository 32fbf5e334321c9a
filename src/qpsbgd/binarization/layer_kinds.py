"""The layers that can be binarised: their weights as a matrix, and the binary layer that stands for them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from qpsbgd.binarization.layer_fit import LayerFit
from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLayer, BinaryLinear
from qpsbgd.nn.conversion import binary_like, is_transposed

LEAST_MARGIN = 0.01
"""Size of a latent weight whose flip would cost nothing, in units of the root mean square."""


def empty_like(layer: Any, *, bits: int, bias: bool) -> BinaryLinear | BinaryConv1d | BinaryConv2d:
    """A binary layer of the same shape with learned scales, still to be filled; torch's random state stays."""
    with torch.random.fork_rng([layer.weight.device] if layer.weight.is_cuda else []):
        return binary_like(layer, bias=bias, bits=bits, scale="learned", gain=1.0)


def matrices(layer: Any) -> Tensor:
    """The weights by group as columns, (groups, n, m), in double precision."""
    weight: Tensor = layer.weight.detach().double()
    if is_transposed(layer):
        return weight[None]
    groups = int(getattr(layer, "groups", 1))
    return weight.reshape(groups, len(weight) // groups, -1).transpose(1, 2)


def weight_like(layer: Any, matrices: Tensor) -> Tensor:
    """Weights by group (groups, n, m) in the shape of a layer's weight."""
    return matrices[0] if is_transposed(layer) else matrices.transpose(1, 2).reshape(layer.weight.shape)


def fill(binary: BinaryLayer, layer: Any, found: LayerFit, bias: Tensor | None) -> None:
    """Give a binary layer what was found for a real one, and a bias (groups, m); None leaves the bias as it is.

    The latent weights have the planes' signs, and sizes that say what a flip would cost.
    """
    size = found.margins.square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    latent = found.planes * (found.margins / size).clamp(min=LEAST_MARGIN) * (binary.initial_bound / math.sqrt(3))
    weight, old = layer.weight, getattr(layer, "bias", None)
    with torch.no_grad():
        binary.weight.copy_(latent.clamp(-1, 1).permute(2, 0, 1).reshape(binary.weight.shape))
        assert binary.scale is not None
        binary.scale.copy_(found.scales.T)
        if binary.bias is not None:
            kept = torch.zeros_like(binary.bias) if old is None else old
            binary.bias.copy_(kept if bias is None else bias.flatten())
    binary.weight.requires_grad_(weight.requires_grad)
    binary.scale.requires_grad_(weight.requires_grad)
    if binary.bias is not None:
        binary.bias.requires_grad_(weight.requires_grad if old is None else old.requires_grad)
    binary.train(layer.training)
