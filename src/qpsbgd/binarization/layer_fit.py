"""All groups of a layer fitted, with or without a factor per input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qpsbgd.binarization.planes import Effort, Fit

RIDGE = 0.01
"""What is added to the diagonal of Q, as a share of its mean: keeps Q definite, and weights of silent inputs near.

Half of it loses 0.9 % more on inputs that did not calibrate, twice as much 1.7 % less, at 512 images of MNIST
(`benchmarks/training/binarize_search.py constants`).
"""
FACTOR_BOUND = 8.0
"""Factors of inputs are kept within this ratio around one."""
FACTOR_ROUNDS = 2
"""Times that factors and planes take turns before the search; varied by the same study, as is the bound."""


@dataclass(frozen=True)
class LayerFit:
    """What was found for the groups of a layer.

    Attributes:
        planes: ±1, (bits, n, groups · m).
        scales: (bits, groups · m).
        margins: What a flip costs, (bits, n, groups · m).
        errors: w − ŵ by group, (groups, n, m).
        factors: Per input or input channel, (groups · channels,); None without.
        lost: Share of the outputs' energy that was lost after each stage that was made.
    """

    planes: Tensor
    scales: Tensor
    margins: Tensor
    errors: Tensor
    factors: Tensor | None
    lost: dict[str, float]


def fitted(
    moments: Tensor, weights: Tensor, *, bits: int, tied: bool, effort: Effort, kernel: int | None = None
) -> LayerFit:
    """Planes and scales for every group.

    Args:
        moments: Second moments or covariances of the inputs, (groups, n, n).
        weights: (groups, n, m).
        bits: Planes.
        tied: Whether the planes of a column share their scale.
        effort: How to search.
        kernel: Weights of an output per input channel, for factors per channel; None for no factors.
    """
    lost: dict[str, float] = {}
    fits, factors = [], []
    # In units in which the search, in single precision, can neither overflow nor lose what is small.
    size = weights.abs().amax()
    size = torch.where(size > 0, size, 1.0)
    weights, moments = weights / size, _normalized(moments)
    for moment, group in zip(moments, weights, strict=True):
        metric, unit = moment.clone(), moment.diagonal().mean()
        metric.diagonal().add_(torch.where(unit > 0, RIDGE * unit, 1.0))
        factor = torch.ones(len(group), dtype=group.dtype, device=group.device)
        if kernel is not None:
            factor = _factors(metric, group, bits=bits, tied=tied, effort=effort, kernel=kernel)
        inner = factor[:, None] * metric * factor
        fit = Fit.rounded(inner, group / factor[:, None], bits=bits, tied=tied)
        for stage in fit.improve(effort):
            rest = group - factor[:, None] * fit.approximation()
            lost[stage] = lost.get(stage, 0.0) + float((rest * (moment @ rest)).sum())
        fits.append(fit)
        factors.append(factor)
    whole = float((weights * (moments @ weights)).sum())
    return LayerFit(
        torch.cat([fit.planes for fit in fits], 2),
        size * torch.cat([fit.scales for fit in fits], 1),
        size * torch.cat([fit.margins() for fit in fits], 2),
        size
        * torch.stack([w - f[:, None] * fit.approximation() for w, f, fit in zip(weights, factors, fits, strict=True)]),
        None if kernel is None else torch.cat([factor[::kernel] for factor in factors]),
        {stage: loss / whole if whole > 0 else 0.0 for stage, loss in lost.items()},
    )


def _normalized(moments: Tensor) -> Tensor:
    """With a mean diagonal of one over all groups; zeros stay zeros."""
    unit = moments.diagonal(dim1=1, dim2=2).mean()
    return moments / torch.where(unit > 0, unit, 1.0)


def _factors(metric: Tensor, weights: Tensor, *, bits: int, tied: bool, effort: Effort, kernel: int) -> Tensor:
    """Factors β (n,), equal within a channel, for which w ≈ β ∘ Σ_b α_b s_b comes nearest.

    With U = Σ_b α_b s_b fixed they solve (Q ∘ UUᵀ) β = diag(Q W Uᵀ). The family of the planes then has the quadratic
    part DQD with D = diag β, still the same for all columns. Planes come from feedback here; the search follows.
    """
    n = len(weights)
    factor = torch.ones(n, dtype=weights.dtype, device=weights.device)
    quick = replace(effort, solver="rounding" if effort.solver == "rounding" else "feedback")
    sides = metric @ weights
    for _ in range(FACTOR_ROUNDS):
        fit = Fit.rounded(factor[:, None] * metric * factor, weights / factor[:, None], bits=bits, tied=tied)
        for _stage in fit.improve(quick):
            pass
        inner = fit.approximation()
        system = (metric * (inner @ inner.T)).reshape(n // kernel, kernel, n // kernel, kernel).sum((1, 3))
        side = (sides * inner).sum(1).reshape(-1, kernel).sum(1)
        system.diagonal().mul_(1 + RIDGE).add_(1e-300)
        channel = torch.linalg.solve(system, side + RIDGE * system.diagonal() / (1 + RIDGE))
        channel = channel.clamp(1 / FACTOR_BOUND, FACTOR_BOUND)
        factor = channel.repeat_interleave(kernel)
    return factor
