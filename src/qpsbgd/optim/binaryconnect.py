"""BinaryConnect: ordinary gradient steps on the latent weights behind the sign."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.layerwise import Layers, LayerwiseOptimizer, check_range, clipped, release

Update = Literal["sgd", "sign", "adam"]

LEARNING_RATES: Mapping[str, float] = MappingProxyType({"sgd": 1.0, "sign": 0.001, "adam": 0.003})
"""The default of each update: latent weights live in [−1, 1], and gradients of a mean loss are small."""


class BinaryConnect(LayerwiseOptimizer):
    """BinaryConnect (Courbariaux et al., 2015): gradients at the binary weights move the latent ones.

        Ω ← clip(Ω − lr · u, ±clip),   with u from the gradient ∂E/∂W by `direction`

    Args:
        model_or_layers: A model, binary layers, or parameter groups `{"params": layers, "lr": …}`.
        lr: Step size of the latent weights; None takes that of `LEARNING_RATES`.
        update: "sgd", "sign" (signSGD) or "adam".
        momentum: Momentum of "sgd" and "sign"; "adam" uses `betas`.
        betas: Decay rates of Adam's two means.
        eps: Added to Adam's denominator.
        clip: Bound of the latent weights; None leaves them free.
    """

    def __init__(
        self,
        model_or_layers: Layers,
        lr: float | None = None,
        update: Update = "adam",
        *,
        momentum: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip: float | None = 1.0,
    ) -> None:
        lr = LEARNING_RATES.get(update) if lr is None else lr
        options = {"lr": lr, "update": update, "momentum": momentum, "betas": betas, "eps": eps, "clip": clip}
        super().__init__(model_or_layers, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move the latent weights of every layer that has a gradient; returns the closure's loss."""
        loss = self._run(closure)
        self._check_gradients()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._check_kept(weight, self.state[weight])
                    step = group["lr"] * direction(weight.grad, self.state[weight], group)
                    weight.copy_(clipped(weight - step, group["clip"]))
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state; training continues as if it had never stopped."""
        self._check_state(state_dict, {"step", "mean", "square", "buffer"})
        super().load_state_dict(state_dict)

    def _check_options(self, options: dict[str, Any]) -> None:
        check_descent_options(options)

    def _adopt(self, layer: BinaryLayer) -> None:
        release(layer)


def check_descent_options(options: dict[str, Any]) -> None:
    """Raise ValueError for options that `direction` cannot take."""
    if options["update"] not in get_args(Update):
        raise ValueError(f"update must be one of {', '.join(get_args(Update))}, got {options['update']!r}")
    check_range(options, "lr", least=0)
    check_range(options, "momentum", least=0, below=1)
    check_range(options, "eps", above=0)
    check_range(options, "clip", above=0, optional=True)
    if options["update"] == "adam" and options["momentum"]:
        raise ValueError('update "adam" takes betas instead of momentum')
    for beta in options["betas"]:
        check_range({"each of betas": beta}, "each of betas", least=0, below=1)


def direction(grad: Tensor, state: dict[str, Any], options: dict[str, Any]) -> Tensor:
    """The step of a gradient, lr left out: SGD's or signSGD's with momentum, or Adam's; `state` is brought forward.

    sgd: b ← β b + ∇, u = b;   sign: b ← β b + (1−β) ∇, u = sign(b);   adam: u = m̂ / (√v̂ + ε)
    """
    if options["update"] == "adam":
        if not state:
            state.update(step=0, mean=torch.zeros_like(grad), square=torch.zeros_like(grad))
        beta1, beta2 = options["betas"]
        state["step"] += 1
        state["mean"].lerp_(grad, 1 - beta1)
        state["square"].lerp_(grad.square(), 1 - beta2)
        mean = state["mean"] / (1 - beta1 ** state["step"])
        root = state["square"].sqrt() / math.sqrt(1 - beta2 ** state["step"])
        step: Tensor = mean / (root + options["eps"])
        return step
    momentum = options["momentum"]
    if momentum:
        buffer = state.setdefault("buffer", torch.zeros_like(grad))
        buffer.mul_(momentum).add_(grad, alpha=1 if options["update"] == "sgd" else 1 - momentum)
        grad = buffer
    return grad.sign() if options["update"] == "sign" else grad
