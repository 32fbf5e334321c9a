"""All groups of a layer fitted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qpsbgd.binarization.planes import Effort, Fit

RIDGE = 0.01
"""Added to the diagonal of Q, as a share of its mean: keeps Q definite, and weights of silent inputs near.

Half of it loses 0.9 % more on inputs that did not calibrate, twice as much 1.7 % less, at 512 images of MNIST
(`benchmarks/training/binarize_search.py constants`).
"""


@dataclass(frozen=True)
class LayerFit:
    """The planes and scales of all groups of a layer.

    Attributes:
        planes: ±1, (bits, n, groups · m).
        scales: (bits, groups · m).
        margins: What a flip costs, (bits, n, groups · m).
        errors: w − ŵ by group, (groups, n, m).
        lost: Share of the outputs' energy that was lost after each stage that was made.
    """

    planes: Tensor
    scales: Tensor
    margins: Tensor
    errors: Tensor
    lost: dict[str, float]


def target_weights(metrics: Tensor, cross: Tensor, weights: Tensor) -> Tensor:
    """The real weights (groups, n, m) that come nearest to the targets, with a pull towards the weights as they are.

    `metrics` are Q̂ of the inputs in the binary network, (groups, n, n); `cross` is the mean of x̂ tᵀ, (groups, n, m).
    """
    unit = metrics.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    pull = torch.where(unit > 0, RIDGE * unit, 1.0)
    system = metrics + pull * torch.eye(metrics.shape[1], dtype=metrics.dtype, device=metrics.device)
    found: Tensor = torch.linalg.solve(system, cross + pull * weights)
    return found


def fitted(moments: Tensor, weights: Tensor, *, bits: int, effort: Effort) -> LayerFit:
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
            lost[stage] = lost.get(stage, 0.0) + float(fit.lost().sum() - ridge * rest.square().sum())
        whole += float((group * fit.image).sum() - ridge * group.square().sum())
        fits.append(fit)
    return LayerFit(
        torch.cat([fit.planes for fit in fits], 2),
        size * torch.cat([fit.scales for fit in fits], 1),
        size * torch.cat([fit.margins() for fit in fits], 2),
        size * torch.stack([group - fit.approximation() for group, fit in zip(weights, fits, strict=True)]),
        {stage: loss / whole if whole > 0 else 0.0 for stage, loss in lost.items()},
    )
