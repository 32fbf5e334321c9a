"""The base optimisers of the baselines, torch's own but for three, and ProxQuant's proximal map."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from qpsbgd.nn import sign
from qpsbgd.projections.polar import orthogonal_factors
from qpsbgd.projections.system import unit_rms

Update = Literal["sgd", "sign", "adam", "normalized", "muon"]


def base_optimizer(parts: Sequence[dict[str, Any]], options: Mapping[str, Any], *, fused: bool) -> Optimizer:
    """The optimiser of an `update`, for parameter groups that each have a rate; `fused` only where torch makes it.

    sgd: b ← β b + ∇, u = b, with the decay in ∇;   adam: u = m̂ / (√v̂ + ε);   others: see `MeanGradient`
    """
    update, decay = options["update"], options.get("weight_decay", 0.0)
    if update == "adam":
        more: dict[str, Any] = {"betas": options["betas"], "eps": options["eps"], "fused": fused or None}
        return torch.optim.AdamW(parts, lr=0.0, weight_decay=decay, **more)
    if update == "sgd":
        momentum = options["momentum"]
        return torch.optim.SGD(parts, lr=0.0, momentum=momentum, weight_decay=decay, fused=fused or None)
    return MeanGradient(parts, {"lr": 0.0, "update": update, "momentum": options["momentum"], "weight_decay": decay})


class MeanGradient(Optimizer):
    """Steps along the running mean of gradients, or what is made of it.

        b ← β b + (1−β) ∇,   p ← p − lr · (u + weight_decay · p)

    sign: u = sign(b);   normalized: u = b / rms(b);   muon: u = √max(1, m/n) · polar(β b + (1−β) ∇)

    torch has no signSGD, and its Muon, from 2.9 on, takes matrices only and computes in bfloat16 on CPUs, too.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move all parameters, which have a gradient."""
        for group in self.param_groups:
            params, momentum = group["params"], group["momentum"]
            means = grads = [p.grad for p in params]
            if momentum:
                means = [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in params]
                torch._foreach_mul_(means, momentum)
                torch._foreach_add_(means, grads, alpha=1 - momentum)
                if group["update"] == "muon":
                    means = list(torch._foreach_lerp(grads, means, momentum))
            steps = list(_DIRECTIONS[group["update"]](means))
            if group["weight_decay"]:
                torch._foreach_add_(steps, params, alpha=group["weight_decay"])
            torch._foreach_sub_(params, torch._foreach_mul(steps, group["lr"]))


def _muon(means: list[Tensor]) -> list[Tensor]:
    factors = orthogonal_factors([mean.flatten(1)[None] for mean in means])
    sizes = [math.sqrt(max(1.0, factor.shape[1] / factor.shape[2])) for factor in factors]
    return [(size * factor).reshape(mean.shape) for size, factor, mean in zip(sizes, factors, means, strict=True)]


_DIRECTIONS: Mapping[str, Callable[[list[Tensor]], Sequence[Tensor]]] = MappingProxyType(
    {"sign": torch._foreach_sign, "normalized": lambda means: [unit_rms(mean) for mean in means], "muon": _muon}
)


def kept_dtype(weight: Tensor) -> torch.dtype:
    """The type of what is kept of a weight, at least single precision: in half, squares overflow or vanish."""
    return torch.promote_types(weight.dtype, torch.float32)


def proximal_step(weights: Tensor, strength: float) -> Tensor:
    """The proximal map of strength · ‖θ − sign θ‖₁: each weight moves to its nearest ±1 by at most `strength`."""
    nearest = sign(weights)
    distance = weights - nearest
    return nearest + distance.sign() * (distance.abs() - strength).clamp(min=0)
