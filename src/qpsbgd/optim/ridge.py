"""The ridge projection: a layer's least squares over the reals, solved with one factorisation for all columns.

    G = (Q̄ + ρ · tr(Q̄) · I)⁻¹ S̄,   divided by its root mean square

Q̄ is the mean of j jᵀ over rows j = gain · x of the layer's inputs, S̄ the mean of the weight's gradient Σ v j. It is the
least-squares problem of the paper's map over ℝⁿ instead of {−1, +1}ⁿ, with a ridge: many bits per entry of G instead
of one. Over the reals the size of S̄ does not matter, so nothing has to be scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qpsbgd.optim.blocks import Blocks

STATE = ("gradient", "gram", "step", "refreshes")
"""What is kept of a layer: S̄, Q̄, the steps made, and how many of them renewed Q̄."""


def due(step: int, refresh: int) -> bool:
    """Whether Q̄ takes in new rows at a step, counted from 0: every `refresh` steps, and more often at the start."""
    return step % refresh == 0 or (step < refresh and step & (step + 1) == 0)


@dataclass(frozen=True, eq=False)
class Advance:
    """A layer's state after one more step, its factorised system, and the direction against which its weights move."""

    state: dict[str, Any]
    inverses: Tensor
    direction: Tensor


def advance(
    state: Mapping[str, Any],
    grad: Tensor,
    rows: Tensor | None,
    *,
    inverses: Tensor | None,
    blocks: Blocks,
    options: Any,
) -> Advance:
    """One step of a layer; nothing that was passed is changed.

    Args:
        state: The layer's `STATE`, empty before the first step.
        grad: The weight's gradient.
        rows: Input rows (B, groups · n) to renew Q̄ with, if there are any.
        inverses: The factorised system of the last step, if it is known.
        blocks: Of the layer.
        options: The parameter group: momentum, ridge, memory.
    """
    grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
    new: dict[str, Any] = dict(state) if state else {"step": 0, "refreshes": 0}
    momentum = options["momentum"]
    new["gradient"] = grad if not momentum or "gradient" not in new else torch.lerp(grad, new["gradient"], momentum)
    new["step"] += 1
    if rows is not None:
        new["refreshes"] += 1
        memory = options["memory"]
        # The weight of new rows is (1 − β)/(1 − βᵏ), so that the first ones are not damped.
        rate = (1 - memory) / (1 - memory ** new["refreshes"])
        fresh = gram(rows.to(grad), blocks)
        new["gram"] = fresh if "gram" not in new else torch.lerp(new["gram"], fresh, rate)
        inverses = None
    if inverses is None:
        inverses = inverse(new["gram"], options["ridge"], blocks)
    return Advance(new, inverses, projected(new["gradient"], inverses, blocks))


def gram(rows: Tensor, blocks: Blocks) -> Tensor:
    """The mean of x xᵀ over input rows (B, groups · n), per block: (count, width, width)."""
    cut = blocks.rows(rows)
    return cut.transpose(1, 2) @ cut / len(rows)


def inverse(mean: Tensor, ridge: float, blocks: Blocks) -> Tensor:
    """(Q̄ + ρ · tr(Q̄) · I)⁻¹ for Q̄ (count, width, width), up to a factor; where all inputs are zero, the identity.

    All blocks share one ridge, by the mean trace of the groups: a group with weak inputs then takes small steps, and a
    layer cut into blocks takes nearly those of the whole. It bounds the condition number by 1 + 1/ρ, so single
    precision is enough unless ρ is tiny; then Cholesky's method may fail, and double precision is tried.

    Raises:
        ValueError: The matrix is not positive definite in double precision either, or not finite.
    """
    for precise in (mean, mean.double()):
        trace = precise.diagonal(dim1=-2, dim2=-1).sum() / blocks.groups
        system = precise / torch.where(trace > 0, trace, 1)
        system.diagonal(dim1=-2, dim2=-1).add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(system)
        if not bool(failed.any()):
            return torch.cholesky_inverse(factor).to(mean.dtype)
    if not bool(mean.isfinite().all()):
        raise ValueError("the inputs hold NaN or infinite values; the forward pass has diverged")
    raise ValueError(f"the inputs are too alike for a ridge of {ridge:g}; take a larger one")


def projected(mean: Tensor, inverses: Tensor, blocks: Blocks) -> Tensor:
    """The solution for the mean gradient S̄, in its shape; not yet normalised."""
    return blocks.joined(blocks.weights(mean) @ inverses, mean)
