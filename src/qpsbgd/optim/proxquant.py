"""ProxQuant: train real weights that a growing regulariser pulls towards ±1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer, sign
from qpsbgd.optim.binaryconnect import Update, check_descent_options, direction
from qpsbgd.optim.layerwise import LayerwiseOptimizer, clipped, release
from qpsbgd.optim.members import Layers
from qpsbgd.optim.real_part import Real
from qpsbgd.solvers.options import AT_LEAST_ONE_OR_NONE, NOT_NEGATIVE


class ProxQuant(LayerwiseOptimizer):
    """ProxQuant (Bai, Wang and Liberty, 2019): a gradient step at the real weights, then a proximal step to ±1.

        θ ← θ − lr · u,   θ ← prox(θ, λ_t),   λ_t = `rate` · t

    The layers compute with the real weights θ in training (`latent_forward`) and with sign(θ) in evaluation. Over T
    steps the proximal steps move a weight by up to rate · T²/2, so `rate` should be near 2/T²: give `steps` = T.
    After T steps the weights are at ±1 and barely change.

    Args:
        params: A model, binary layers, parameters, or parameter groups `{"params": layers, "lr": …}`.
        lr: Step size of the weights.
        rate: Growth of the regulariser per step; None takes 2/T², with T = 1000 where `steps` is not given.
        steps: T, the steps of the whole training. The learning rate stays: with a cosine ProxQuant trains worse, see
            `benchmarks/default_rates.py`.
        update: Of the gradient step: "sgd", "sign" or "adam".
        momentum: Of "sgd" and "sign".
        betas: Of "adam".
        eps: Of "adam".
        clip: Bound of the weights; None leaves them free.
        real: Also train everything else in the model: True, or options of a torch optimiser, `dict(lr=1e-2)`, its
            class as `kind` (AdamW by default, at a rate of 0.01), `max_norm` to clip the gradient of these parameters,
            and `steps` for a cosine to zero over them. None leaves them to another optimiser, and warns if there is
            none; False does not warn. Parameters that are given one by one, as `model.parameters()`, are always
            trained.
    """

    def __init__(
        self,
        params: Layers,
        lr: float = 0.1,
        *,
        rate: float | None = None,
        steps: int | None = None,
        update: Update = "sign",
        momentum: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip: float | None = 1.0,
        real: Real = None,
    ) -> None:
        AT_LEAST_ONE_OR_NONE.checked("steps", steps)
        if rate is None:
            rate = 2 / (steps or 1000) ** 2
        options = {"lr": lr, "rate": rate, "update": update, "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__(params, {**options, "clip": clip, "steps": None, "relative": False}, real)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """A gradient and a proximal step for every layer that has a gradient; returns the closure's loss."""
        loss = self._run(closure)
        self._check_gradients(self._layers.values())
        for group in self.binary_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                self._check_kept(weight, state)
                count = state["proximal_step"] = state.get("proximal_step", 0) + 1
                descent = state.setdefault("descent", {})
                stepped = weight - self._rate(group, self._layers[weight]) * direction(weight.grad, descent, group)
                weight.copy_(clipped(proximal_step(stepped, group["rate"] * count), group["clip"]))
        self._step_real()
        self._count_step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state; training continues as if it had never stopped."""
        self._check_state(state_dict, {"proximal_step", "descent"})
        super().load_state_dict(state_dict)

    def _check_options(self, options: dict[str, Any]) -> None:
        check_descent_options(options)
        NOT_NEGATIVE.checked("rate", options["rate"])
        super()._check_options(options)

    def _rate_factor(self, options: dict[str, Any]) -> float:
        raise ValueError("ProxQuant needs a learning rate: lr=0.1 suits sign steps")

    def _adopt(self, layer: BinaryLayer) -> None:
        release(layer)
        layer.latent_forward = True


def proximal_step(weights: Tensor, strength: float) -> Tensor:
    """The proximal map of strength · ‖θ − sign θ‖₁: each weight moves to its nearest ±1 by at most `strength`."""
    nearest = sign(weights)
    distance = weights - nearest
    return nearest + distance.sign() * (distance.abs() - strength).clamp(min=0)
