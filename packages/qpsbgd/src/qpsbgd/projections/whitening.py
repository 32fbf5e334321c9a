"""Gradients whitened across a layer's output units, by a running mean of their second moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qpsbgd.projections.protocol import LayerInputs
from qpsbgd.projections.system import SystemState

NEW_OUTPUTS = 0.02
"""Share of a new gradient in L, whose mean covers 50 steps."""
NEW_SIZE = 0.2
"""Share of a new gradient in the running size that gradients are divided by: it follows within 5 steps, because they
shrink fast at the start of training."""
FIRST_OUTPUTS = 5
"""Steps that the identity counts for in L at the start: the moments of one batch have few directions, and whitened by
them a last phase of few steps loses what training had found."""
OUTPUT_DAMPING = 0.1
"""δ', in mean eigenvalues of L: units without a gradient stay as they are."""
MOST_OUTPUTS = 2048
"""Output units that are whitened together: eigenvectors of more take seconds."""
_LIMITS = torch.finfo(torch.float64)


@dataclass(eq=False)
class WhiteningState(SystemState):
    """With the running mean square of the gradient, and by piece of the units L and (L + δ'I)^(−1/2)."""

    size: Tensor | None = None
    outputs: Tensor | None = None
    root: Tensor | None = None


def whiten(inputs: LayerInputs, state: WhiteningState) -> Tensor:
    """(L + δ'I)^(−1/2) G of a layer's gradient G, with L, the running mean of G Gᵀ, renewed in the state.

    G is divided by its running size first: so nothing overflows, and a gradient that comes back after many steps
    without one is not blown up.
    """
    layer, grad, units = inputs.layer, inputs.grad, slice(None)
    if inputs.shards is not None:
        grad, units = inputs.shards.gather_units(grad, len(layer.weight))
    pieces = layer.groups * _divisor(len(grad) // layer.groups)
    rows = grad.reshape(pieces, len(grad) // pieces, -1)
    squares = torch.linalg.vector_norm(rows, dtype=torch.float64).square() / rows.numel()
    squares = squares.clamp(_LIMITS.tiny, _LIMITS.max)  # gradients in double precision may have squares beyond it
    state.size = squares if state.size is None else torch.lerp(state.size, squares, NEW_SIZE)
    rows = rows / state.size.sqrt().to(rows)
    moments = rows @ rows.mT / rows.shape[-1]
    outputs = torch.eye(rows.shape[-2]).to(moments).expand_as(moments) if state.outputs is None else state.outputs
    state.outputs = lerp(outputs, moments, maximum(NEW_OUTPUTS, 1 / (state.step + FIRST_OUTPUTS)))
    if state.root is None or inputs.record is not None:
        values, vectors = torch.linalg.eigh(state.outputs.double())
        values = values.clamp(min=0)
        values = values + OUTPUT_DAMPING * values.mean(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
        state.root = ((vectors * values.rsqrt()[..., None, :]) @ vectors.mT).to(rows)
    return (state.root @ rows).reshape(grad.shape)[units]


def _divisor(units: int) -> int:
    """The fewest equal pieces of at most `MOST_OUTPUTS` units."""
    fewest = -(-units // MOST_OUTPUTS)
    return next(count for count in range(max(1, fewest), units + 1) if units % count == 0)


def lerp(last: Tensor, new: Tensor, share: Any) -> Tensor:
    """A running mean with this share of the new value; in a CUDA graph the share is a tensor."""
    return torch.lerp(last, new, share.to(new) if isinstance(share, Tensor) else share)


def maximum(one: Any, other: Any) -> Any:
    """The larger of two numbers; in a CUDA graph the second is a tensor, and the first may be one."""
    return other.clamp(min=one) if isinstance(other, Tensor) else max(one, other)
