"""The updates of the baselines as functions of gradients: SGD, signSGD, Adam, Muon, and ProxQuant's proximal step."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from qpsbgd.nn import sign
from qpsbgd.projections.polar import orthogonal_factors
from qpsbgd.projections.system import normalized

Update = Literal["sgd", "sign", "adam", "normalized", "muon"]
State = dict[str, Any]


def directions(grads: list[Tensor], states: list[State], options: dict[str, Any]) -> list[Tensor]:
    """The steps of gradients, lr left out: SGD's or signSGD's with momentum, or Adam's; `states` are brought forward.

    sgd: b ← β b + ∇, u = b;   sign: b ← β b + (1−β) ∇, u = sign(b);   adam: u = m̂ / (√v̂ + ε);
    normalized: as sign, u = b / rms(b);   muon: as sign, u = √max(1, m/n) · polar(β b + (1−β) ∇)
    """
    update, momentum = options["update"], options["momentum"]
    if update == "adam":
        return _adam(grads, states, options)
    if momentum:
        buffers = [state.setdefault("buffer", torch.zeros_like(g)) for state, g in zip(states, grads, strict=True)]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, grads, alpha=1 if update == "sgd" else 1 - momentum)
        grads = list(torch._foreach_lerp(grads, buffers, momentum)) if update == "muon" else buffers
    if update == "muon":
        factors = orthogonal_factors([grad.flatten(1)[None] for grad in grads])
        sizes = [math.sqrt(max(1.0, factor.shape[1] / factor.shape[2])) for factor in factors]
        return [(size * one).reshape(grad.shape) for size, one, grad in zip(sizes, factors, grads, strict=True)]
    if update == "normalized":
        return [normalized(grad) for grad in grads]
    return list(torch._foreach_sign(grads)) if update == "sign" else grads


def _adam(grads: list[Tensor], states: list[State], options: dict[str, Any]) -> list[Tensor]:
    beta1, beta2 = options["betas"]
    means, squares, counts = adam_state(grads, states)
    torch._foreach_lerp_(means, grads, 1 - beta1)
    products = torch._foreach_mul(grads, grads)
    # Infinity would make NaN of the means.
    torch._foreach_clamp_max_(products, min(torch.finfo(product.dtype).max for product in products))
    torch._foreach_lerp_(squares, products, 1 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, [math.sqrt(1 - beta2**count) for count in counts])
    torch._foreach_add_(roots, options["eps"])
    steps = list(torch._foreach_div(means, [1 - beta1**count for count in counts]))
    torch._foreach_div_(steps, roots)
    return steps


def adam_state(grads: list[Tensor], states: list[State]) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Adam's two means and the number of the step, per gradient."""
    for state, grad in zip(states, grads, strict=True):
        if not state:
            state.update(step=0, mean=torch.zeros_like(grad), square=torch.zeros_like(grad))
        state["step"] += 1
    return [s["mean"] for s in states], [s["square"] for s in states], [s["step"] for s in states]


def kept_dtype(weight: Tensor) -> torch.dtype:
    """The type of what is kept of a weight, at least single precision: in half, squares overflow or vanish."""
    return torch.promote_types(weight.dtype, torch.float32)


def proximal_step(weights: Tensor, strength: float) -> Tensor:
    """The proximal map of strength · ‖θ − sign θ‖₁: each weight moves to its nearest ±1 by at most `strength`."""
    nearest = sign(weights)
    distance = weights - nearest
    return nearest + distance.sign() * (distance.abs() - strength).clamp(min=0)
