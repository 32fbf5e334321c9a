"""ProxQuant: train real weights that a growing regulariser pulls towards ±1."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from qpsbgd.nn import BinaryLayer, sign
from qpsbgd.optim.binaryconnect import DescentOptimizer, Update
from qpsbgd.optim.parameters import Layers
from qpsbgd.optim.real_part import Real
from qpsbgd_qubo.solvers.options import AT_LEAST_ONE_OR_NONE, NOT_NEGATIVE


class ProxQuant(DescentOptimizer):
    """ProxQuant (Bai, Wang and Liberty, 2019): a gradient step at the real weights, then a proximal step to ±1.

        θ ← θ − lr · u,   θ ← prox(θ, λ_t),   λ_t = `rate` · t

    The layers compute with the real weights θ in training (`latent_forward`) and with sign(θ) in evaluation. Over T
    steps the proximal steps move a weight by up to rate · T²/2, so `rate` should be near 2/T²: give `steps` = T.
    After T steps the weights are at ±1 and barely change. `params` and `real` are those of `QPSBGD`; the rate of the
    real parameters falls to zero over `real["steps"]` alone.

    Args:
        lr: Step size of the weights.
        rate: Growth of the regulariser per step; None takes 2/T², with T = 1000 where `steps` is not given.
        steps: T, the steps of the whole training. The learning rate stays: with a cosine ProxQuant trains worse.
        update: The gradient step: "sgd", "sign" or "adam".
        momentum: Momentum of "sgd" and "sign".
        betas: Decay rates of Adam's two means; `eps` is added to its denominator.
        clip: Bound of the weights; None leaves them free.
    """

    kept = frozenset({"proximal_step", "descent"})

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
        super().__init__(params, {**options, "clip": clip, "steps": None, "warmup": 0.0, "relative": False}, real)

    def _moved(self, weights: list[Tensor], states: list[dict[str, Any]], group: dict[str, Any]) -> list[Tensor]:
        for state in states:
            state["proximal_step"] = state.get("proximal_step", 0) + 1
        stepped = super()._moved(weights, [state.setdefault("descent", {}) for state in states], group)
        pairs = zip(stepped, states, strict=True)
        return [proximal_step(weight, group["rate"] * state["proximal_step"]) for weight, state in pairs]

    def _check_options(self, options: dict[str, Any]) -> None:
        NOT_NEGATIVE.checked("rate", options["rate"])
        super()._check_options(options)

    def _rate_factor(self, options: dict[str, Any]) -> float:
        raise ValueError("ProxQuant needs a learning rate: lr=0.1 suits sign steps")

    def _adopt(self, layer: BinaryLayer) -> None:
        super()._adopt(layer)
        layer.latent_forward = True


def proximal_step(weights: Tensor, strength: float) -> Tensor:
    """The proximal map of strength · ‖θ − sign θ‖₁: each weight moves to its nearest ±1 by at most `strength`."""
    nearest = sign(weights)
    distance = weights - nearest
    return nearest + distance.sign() * (distance.abs() - strength).clamp(min=0)
