"""A layer that becomes binary: its weights as matrices, all groups fitted, and the binary layer that stands for it."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qpsbgd.binarization.planes import Effort, Fit
from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLayer, BinaryLinear
from qpsbgd.nn.conversion import binary_like, is_transposed

RIDGE = 0.01
"""Added to the diagonal of Q, as a share of its mean: keeps Q definite, and weights of silent inputs near.

Half of it loses 0.9 % more on inputs that did not calibrate, twice as much 1.7 % less, at 512 images of MNIST.
"""
LEAST_MARGIN = 0.01  # size of a latent weight whose flip would cost nothing, in units of the root mean square


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


@dataclass(frozen=True)
class LayerFit:
    """The planes ±1 (bits, n, groups · m) and scales (bits, groups · m) of all groups of a layer.

    Margins are what flips cost, one per entry of the planes; errors are w − ŵ by group (groups, n, m), and `lost` has
    the squared error of the outputs, as a share of their variance, after each stage that was run.
    """

    planes: Tensor
    scales: Tensor
    margins: Tensor
    errors: Tensor
    lost: dict[str, float]


def target_weights(metrics: Tensor, cross: Tensor, weights: Tensor) -> Tensor:
    """The real weights (groups, n, m) whose outputs are closest to the targets, drawn towards the present weights.

    `metrics` are Q̂ of the inputs in the binary network, (groups, n, n); `cross` is the mean of x̂ tᵀ, (groups, n, m).
    """
    unit = metrics.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    pull = torch.where(unit > 0, RIDGE * unit, 1.0)
    system = metrics + pull * torch.eye(metrics.shape[1], dtype=metrics.dtype, device=metrics.device)
    return torch.linalg.solve(system, cross + pull * weights)


def fit_layer(moments: Tensor, weights: Tensor, *, bits: int, effort: Effort) -> LayerFit:
    """Planes and scales of weights (groups, n, m), for second moments or covariances of their inputs (groups, n, n)."""
    lost: dict[str, float] = {}
    fits: list[Fit] = []
    whole = 0.0
    # In units in which the search, in single precision, can neither overflow nor lose what is small.
    size = weights.abs().amax()
    size = torch.where(size > 0, size, 1.0)
    power = moments.diagonal(dim1=1, dim2=2).mean()
    weights, moments = weights / size, moments / torch.where(power > 0, power, 1.0)
    for moment, group in zip(moments, weights, strict=True):
        unit = moment.diagonal().mean()
        ridge = torch.where(unit > 0, RIDGE * unit, 1.0)
        moment.diagonal().add_(ridge)
        fit = Fit.rounded(moment, group, bits=bits)
        for stage in fit.improve(effort):
            rest = group - fit.approximation()
            lost[stage] = lost.get(stage, 0.0) + float(fit.lost.sum() - ridge * rest.square().sum())
        whole += float((group * fit.image).sum() - ridge * group.square().sum())
        fits.append(fit)
    return LayerFit(
        torch.cat([fit.planes for fit in fits], 2),
        size * torch.cat([fit.scales for fit in fits], 1),
        size * torch.cat([fit.margins() for fit in fits], 2),
        size * torch.stack([group - fit.approximation() for group, fit in zip(weights, fits, strict=True)]),
        {stage: loss / whole if whole > 0 else 0.0 for stage, loss in lost.items()},
    )


def fill(binary: BinaryLayer, layer: Any, fit: LayerFit, bias: Tensor) -> None:
    """Give a binary layer what was found for a real one; latent weights have sizes that say what a flip would cost."""
    size = fit.margins.square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    latent = fit.planes * (fit.margins / size).clamp(min=LEAST_MARGIN) * (binary.initial_bound / math.sqrt(3))
    weight, old = layer.weight, getattr(layer, "bias", None)
    with torch.no_grad():
        latent = latent.clamp(-1, 1).permute(2, 0, 1).reshape(binary.weight.shape)
        binary.weight.copy_(latent).requires_grad_(weight.requires_grad)
        assert binary.scale is not None
        binary.scale.copy_(fit.scales.T).requires_grad_(weight.requires_grad)
        if binary.bias is not None:
            binary.bias.copy_(bias.flatten()).requires_grad_((weight if old is None else old).requires_grad)
    binary.train(layer.training)
