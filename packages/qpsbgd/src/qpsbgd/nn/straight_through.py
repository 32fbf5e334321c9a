"""Signs and scaled signs whose gradient passes straight through to the latent weights."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def sign(latent: Tensor) -> Tensor:
    """The signs ±1, with +1 for zero and NaN for NaN; the gradient passes straight through."""
    # ⌊x⌋ within −1 and 0, times 2, plus 1. `torch.where(x >= 0, 1, -1)` takes twice as long on a CPU, and −1 for NaN.
    return straight_through(latent.detach().floor().clamp(-1, 0).mul_(2).add_(1), latent)


def is_transformed() -> bool:
    """Whether torch compiles or traces the layer, differentiates it forward, or maps it over inputs."""
    return torch.compiler.is_compiling() or (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def straight_through(values: Tensor, latent: Tensor, unit: Tensor | None = None) -> Tensor:
    """`values`, with the gradient of `latent`, or of unit · latent."""
    # A tracer runs with gradients and without, and must see the same; in forward mode, tangents come without
    # `requires_grad`. Compiled code may ask for it.
    by_operations = is_transformed()
    if not (latent.requires_grad or (by_operations and not torch.compiler.is_compiling())):
        return values
    if by_operations:
        # Exactly values + 0. Plain operations, unlike an autograd function, can be traced, saved and vectorised.
        through = latent if unit is None else unit * latent
        return values + (through - through.detach())
    return _StraightThrough.apply(values, latent, unit)  # type: ignore[no-untyped-call]


class _StraightThrough(torch.autograd.Function):
    """No work forward and one product at most backward, where plain operations launch five kernels per layer.

    In the old style, with the context in `forward`: torch reads the signature of the new style in every call.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, latent: Tensor, unit: Tensor | None) -> Tensor:
        ctx.unit = unit
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        return None, grad if ctx.unit is None else grad * ctx.unit, None
