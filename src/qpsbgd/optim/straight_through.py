"""How one-bit networks are trained today, as baselines: straight-through latent weights, and Bop."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from qpsbgd.optim.binaryconnect import DescentOptimizer, directions
from qpsbgd.optim.parameters import Layers
from qpsbgd.optim.rates import WARMUP
from qpsbgd.optim.real_part import Real
from qpsbgd_qubo.solvers.options import NOT_NEGATIVE, POSITIVE

RECIPES: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {"adam": (3e-3, 0.0, 0.05), "sgd": (0.1, 0.9, 5e-4), "muon": (0.02, 0.95, 0.0)}
)
"""Rate, momentum and weight decay per update, where none are given."""


class StraightThrough(DescentOptimizer):
    """Straight-through training of free latent weights: AdamW, SGD or Muon, with weight decay and warm-up.

        Ω ← Ω − lr · (u + weight_decay · Ω),   u from the gradient at the binary weights

    Meant for layers with `scale="magnitude"`, which is what `convert` makes: XNOR-Net, DoReFa and BitNet train so.
    `params`, `steps`, `warmup` and `real` are those of `QPSBGD`.

    Args:
        lr: Step size of the latent weights; None takes that of `RECIPES`.
        update: "adam" (AdamW), "sgd" (Nesterov's momentum is not used), or "muon": the orthogonal factor of the
            Nesterov momentum, times √max(1, m/n).
        momentum: Momentum of "sgd" and "muon"; None takes that of `RECIPES`.
        weight_decay: Decay of the latent weights; None takes that of `RECIPES`.
        betas: Decay rates of Adam's two means.
        eps: Added to Adam's denominator.
    """

    fusable = True

    def __init__(
        self,
        params: Layers,
        lr: float | None = None,
        update: Literal["adam", "sgd", "muon"] = "adam",
        *,
        momentum: float | None = None,
        weight_decay: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        steps: int | None = None,
        warmup: float = WARMUP,
        real: Real = None,
    ) -> None:
        if update not in RECIPES:
            raise ValueError(f"update must be one of {', '.join(RECIPES)}, got {update!r}")
        rate, beta, decay = RECIPES[update]
        options = {"lr": rate if lr is None else lr, "update": update, "betas": betas, "eps": eps, "clip": None}
        options |= {"momentum": beta if momentum is None else momentum, "steps": steps, "warmup": warmup}
        options |= {"weight_decay": decay if weight_decay is None else weight_decay, "relative": False}
        super().__init__(params, options, real)

    def _check_options(self, options: dict[str, Any]) -> None:
        NOT_NEGATIVE.checked("weight_decay", options["weight_decay"])
        super()._check_options(options)

    def _moved(self, weights: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]) -> list[Tensor]:
        grads, decay = [weight.grad for weight in weights if weight.grad is not None], group["weight_decay"]
        if group["update"] == "sgd":  # as torch's SGD has it, the decay goes through the momentum
            steps = directions(list(torch._foreach_add(grads, weights, alpha=decay)), states, group)
        else:
            steps = list(torch._foreach_add(directions(grads, states, group), weights, alpha=decay))
        return self._against(weights, steps, group)


class Bop(DescentOptimizer):
    """Bop (Helwegen et al., 2019): a weight flips when the mean gradient has pushed against it for long enough.

        m ← (1 − lr) m + lr · ∂E/∂W,   Ω ← −Ω where |m| > threshold and m has the sign of Ω

    There are no latent weights to speak of: Ω keeps its size, and only its sign means anything. `params`, `warmup` and
    `real` are those of `QPSBGD`.

    Args:
        lr: The adaptivity rate γ.
        threshold: τ.
        steps: Steps of the whole training; γ follows the same schedule as other rates.
    """

    kept = frozenset({"mean"})

    def __init__(
        self,
        params: Layers,
        lr: float = 1e-3,
        *,
        threshold: float = 1e-6,
        steps: int | None = None,
        warmup: float = 0.0,
        real: Real = None,
    ) -> None:
        options = {"lr": lr, "threshold": threshold, "steps": steps, "warmup": warmup, "clip": None, "relative": False}
        unused = {"update": "sgd", "momentum": 0.0, "betas": (0.9, 0.999), "eps": 1e-8}
        super().__init__(params, {**options, **unused}, real)

    def _check_options(self, options: dict[str, Any]) -> None:
        POSITIVE.checked("threshold", options["threshold"])
        super()._check_options(options)

    def _moved(self, weights: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]) -> list[Tensor]:
        moved = []
        for weight, state in zip(weights, states, strict=True):
            mean = state.setdefault("mean", torch.zeros_like(weight))
            mean.lerp_(weight.grad, min(1.0, self._rate(group, self._layers[weight])))
            against = (mean.abs() > group["threshold"]) & ((mean > 0) == (weight >= 0))
            moved.append(torch.where(against, -weight, weight))
        return moved
