"""BinaryConnect: ordinary gradient steps on the latent weights behind the sign."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.binary_optimizer import BinaryOptimizer
from qpsbgd.optim.parameters import Layers
from qpsbgd.optim.rates import WARMUP
from qpsbgd.optim.real_part import Real
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections.polar import orthogonalized
from qpsbgd.projections.system import normalized
from qpsbgd_qubo.solvers.options import BELOW_ONE, POSITIVE

Update = Literal["sgd", "sign", "adam", "normalized", "muon"]

RATE_FACTORS: Mapping[str, float] = MappingProxyType({"sign": 0.12, "adam": 0.3, "normalized": 0.12})
"""Of `default_rate`, per update. Steps of "sgd" are as large as the gradient, so no rate fits every loss."""
SGD_RATE = 1.0
"""The default of "sgd", absolute: gradients of a mean loss are small beside latent weights in [−1, 1]."""


class DescentOptimizer(BinaryOptimizer):
    """An optimiser that moves latent weights by steps of `direction`: the baselines."""

    kept: ClassVar[frozenset[str]]
    """The names of what is kept of a weight."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move the latent weights of every layer that has a gradient; returns the closure's loss."""
        loss = self._run(closure)
        self._check_in_place()
        if any(map(is_sharded, self._layers)):  # all ranks must raise, or those that do not would wait for ever
            self._ranks.synchronized(self._check_gradients, list, dict)
        else:
            self._check_gradients()
        for group in self.binary_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._check_kept(weight, self.state[weight])
                    moved, limit = self._moved(weight, self.state[weight], group), group["clip"]
                    weight.copy_(moved if limit is None else moved.clamp(-limit, limit))
        self._step_real()
        self._finish_step()
        return loss

    def _moved(self, weight: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """The weight after a step, not yet clipped; `state` is brought forward."""
        assert weight.grad is not None
        return weight - self._rate(group, self._layers[weight]) * direction(weight.grad, state, group)

    def _check_layer(self, layer: BinaryLayer, options: dict[str, Any]) -> None:
        if options["update"] in ("normalized", "muon") and is_sharded(layer.weight):
            raise ValueError(f'update "{options["update"]}" needs whole layers, but FSDP has sharded {layer}')

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state; training continues as if it had never stopped."""
        super().load_state_dict(self._check_state(state_dict, set(self.kept)))

    def _check_options(self, options: dict[str, Any]) -> None:
        if options["update"] not in get_args(Update):
            raise ValueError(f"update must be one of {', '.join(get_args(Update))}, got {options['update']!r}")
        BELOW_ONE.checked("momentum", options["momentum"])
        POSITIVE.checked("eps", options["eps"])
        if options["update"] == "adam" and options["momentum"]:
            raise ValueError('update "adam" takes betas instead of momentum')
        for beta in options["betas"]:
            BELOW_ONE.checked("each of betas", beta)
        super()._check_options(options)


class BinaryConnect(DescentOptimizer):
    """BinaryConnect (Courbariaux et al., 2015): gradients at the binary weights move the latent ones.

        Ω ← clip(Ω − lr · u, ±clip),   with u from the gradient ∂E/∂W by `direction`

    Args:
        params: A model, binary layers, parameters, or parameter groups `{"params": layers, "lr": …}`.
        lr: Step size of the latent weights; None takes a relative one from norms, depth and `steps`, for "sgd" 1.
        update: "sgd", "sign" (signSGD), "adam", "normalized" (SGD's step divided by the layer's rms), or "muon".
        momentum: Momentum of all but "adam", which uses `betas`.
        betas: Decay rates of Adam's two means.
        eps: Added to Adam's denominator.
        clip: Bound of the latent weights; None leaves them free.
        steps: Steps of the whole training: the rate rises over the first, and falls to zero over the rest by a cosine.
        warmup: Fraction of `steps` over which the rate rises.
        relative: Whether `lr` is in units of each layer's initial range; so by default only where no lr is given.
        real: Whether and how to train everything else in the model, as in `QPSBGD`.
    """

    kept = frozenset({"step", "mean", "square", "buffer"})

    def __init__(
        self,
        params: Layers,
        lr: float | None = None,
        update: Update = "adam",
        *,
        momentum: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip: float | None = 1.0,
        steps: int | None = None,
        warmup: float = WARMUP,
        relative: bool | None = None,
        real: Real = None,
    ) -> None:
        if lr is None and update == "sgd":
            lr = SGD_RATE
        options = {"lr": lr, "update": update, "momentum": momentum, "betas": betas, "eps": eps, "clip": clip}
        super().__init__(params, {**options, "steps": steps, "warmup": warmup, "relative": relative}, real)

    def _rate_factor(self, options: dict[str, Any]) -> float:
        return RATE_FACTORS.get(options["update"], SGD_RATE)  # an unknown update is reported by the check


def direction(grad: Tensor, state: dict[str, Any], options: dict[str, Any]) -> Tensor:
    """The step of a gradient, lr left out: SGD's or signSGD's with momentum, or Adam's; `state` is brought forward.

    sgd: b ← β b + ∇, u = b;   sign: b ← β b + (1−β) ∇, u = sign(b);   adam: u = m̂ / (√v̂ + ε);
    normalized: as sign, u = b / rms(b);   muon: as sign, u = √max(1, m/n) · polar(β b + (1−β) ∇)
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
        grad = torch.lerp(grad, buffer, momentum) if options["update"] == "muon" else buffer
    if options["update"] == "muon":
        wide = math.sqrt(max(1.0, len(grad) / grad[0].numel()))
        return wide * orthogonalized(grad.reshape(1, len(grad), -1)).reshape(grad.shape)
    if options["update"] == "normalized":
        return normalized(grad)
    return grad.sign() if options["update"] == "sign" else grad
