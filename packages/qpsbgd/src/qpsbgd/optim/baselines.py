"""The baselines: BinaryConnect, ProxQuant, and how one-bit networks are trained today, straight through and by Bop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.binary_optimizer import BinaryOptimizer
from qpsbgd.optim.gradient_check import DeferredFiniteCheck
from qpsbgd.optim.options import OptionRules, resolve_defaults
from qpsbgd.optim.parameters import Layers, param_groups
from qpsbgd.optim.real_part import Real
from qpsbgd.optim.recommend import WARMUP, Network
from qpsbgd.optim.updates import State, Update, adam_state, directions, kept_dtype, proximal_step
from qpsbgd.parallel.shards import is_sharded, local
from qpsbgd_qubo.solvers.options import AT_LEAST_ONE_OR_NONE, BELOW_ONE, NOT_NEGATIVE, POSITIVE

RATE_FACTORS: Mapping[str, float] = MappingProxyType({"sign": 0.12, "adam": 0.3, "normalized": 0.12})
"""The factor of `Network.rate` per update. Steps of "sgd" are as large as the gradient, so no rate fits every loss."""
SGD_RATE = 1.0
"""The default of "sgd", absolute: gradients of a mean loss are small beside latent weights in [−1, 1]."""
RECIPES: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {"adam": (3e-3, 0.0, 0.05), "sgd": (0.1, 0.9, 5e-4), "muon": (0.02, 0.95, 0.0)}
)
"""Rate, momentum and weight decay per update, where none are given."""


class DescentOptimizer(BinaryOptimizer):
    """An optimiser that moves latent weights by steps of `directions`: the baselines."""

    option_checks: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The values that this baseline's own options may have."""
    state_names: ClassVar[frozenset[str]] = frozenset({"step", "mean", "square", "buffer"})
    """The names of what is kept of a weight."""
    fusable: ClassVar[bool] = False
    """Whether a step is that of its `update`, with weight decay and nothing else: torch's fused Adam can make it."""

    def __init__(
        self, params: Layers, options: Mapping[str, Any], real: Real, rate_factor: float | None = None
    ) -> None:
        groups = param_groups(params)
        network = Network.of(groups)
        rules = _DescentRules.of(options, network, type(self).__name__, more=dict(self.option_checks))
        super().__init__(groups, resolve_defaults(options, network, rules, rate_factor=rate_factor), real, rules)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move the latent weights of every layer that has a gradient; returns the closure's loss."""
        loss = self._run(closure)
        self._check_in_place()
        if any(map(is_sharded, self._layers)):  # all ranks must raise, or those that do not would wait for ever
            self._ranks.synchronized(self._check_gradients)
        else:
            adam = all(group["update"] == "adam" for group in self.binary_groups)
            self._check_gradients(later=self.fusable and adam and all(w.dtype == kept_dtype(w) for w in self._layers))
        moving = [(group, [w for w in group["params"] if w.grad is not None]) for group in self.binary_groups]
        for _, weights in moving:
            for weight in weights:
                self._check_kept(weight, self.state[weight])
        self._step_real()  # it may raise, and then nothing has changed
        for group, weights in moving:
            if weights:
                self._move(weights, [self.state[weight] for weight in weights], group)
                for observer in self.observers:
                    for weight in weights:
                        observer(self._layers[weight], {})
        self._finish_step()
        return loss

    def _move(self, weights: list[Tensor], states: list[State], group: dict[str, Any]) -> None:
        """Move and clip the weights; `states` are brought forward."""
        moved, limit = weights, group["clip"]
        if self._skip is None:
            moved = self._moved(weights, states, group)
        else:
            self._fused_adam(weights, states, group, self._skip.float())
        if limit is not None:
            torch._foreach_clamp_min_(moved, -limit)
            torch._foreach_clamp_max_(moved, limit)
        if moved is not weights:
            torch._foreach_copy_([local(weight) for weight in weights], [local(one) for one in moved])

    def _fused_adam(self, weights: list[Tensor], states: list[State], group: dict[str, Any], skip: Tensor) -> None:
        """The step of `_moved` by torch's own kernel, unless `skip` is 1; layers of the same rate go together."""
        (beta1, beta2), grads = group["betas"], _grads(weights)
        means, squares, counts = adam_state(grads, states)
        rates = [self._rate(group, self._layers[weight]) for weight in weights]
        keys = list(zip(rates, counts, [weight.dtype for weight in weights], strict=True))
        made = {count: torch.full((), float(count), device=skip.device) for count in set(counts)}
        for key in dict.fromkeys(keys):
            own, (rate, count, _) = [index for index, other in enumerate(keys) if other == key], key
            moved, by, mean, square = ([kind[i] for i in own] for kind in (weights, grads, means, squares))
            steps = [made[count]] * len(own)
            options: Any = {"weight_decay": group.get("weight_decay", 0.0), "eps": group["eps"], "found_inf": skip}
            options |= {"lr": rate, "beta1": beta1, "beta2": beta2, "amsgrad": False, "maximize": False}
            torch._fused_adamw_(moved, by, mean, square, [], steps, **options)

    def _moved(self, weights: list[Tensor], states: list[State], group: dict[str, Any]) -> list[Tensor]:
        """The weights after a step, not yet clipped; `states` are brought forward."""
        grads, decay = _grads(weights), group.get("weight_decay")
        if decay is not None and group["update"] == "sgd":  # as torch's SGD has it, the decay goes through the momentum
            grads, decay = list(torch._foreach_add(grads, weights, alpha=decay)), None
        steps = directions(grads, states, group)
        if decay is not None:
            steps = list(torch._foreach_add(steps, weights, alpha=decay))
        rates = [self._rate(group, self._layers[weight]) for weight in weights]
        return list(torch._foreach_sub(weights, torch._foreach_mul(steps, rates)))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state; training continues as if it had never stopped."""
        super().load_state_dict(self._check_state(state_dict, set(self.state_names)))
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for weight, number in zip(group["params"], saved["params"], strict=True):
                if weight in self._layers and weight.dtype != kept_dtype(weight) and number in state_dict["state"]:
                    # Torch has cast it to the precision of the weight.
                    self.state[weight] = _placed(state_dict["state"][number], weight.device)
        self._finite_check = DeferredFiniteCheck()


@dataclass(frozen=True, kw_only=True)
class _DescentRules(OptionRules):
    """The rules of the baselines."""

    more: Mapping[str, Any]

    def complete(
        self, options: dict[str, Any], defaults: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """With ProxQuant's pull for the group's own learning rate, where none is given."""
        options = super().complete(options, defaults, groups)
        if defaults.get("end") is not None and options.get("lr") is not None:
            options = {"rate": default_pull(options["lr"], defaults["end"])} | options
        return options

    def check(self, options: Mapping[str, Any]) -> None:
        """With the update and its momentum, and what one baseline alone has."""
        super().check(options)
        for name, check in {"momentum": BELOW_ONE, "eps": POSITIVE, **self.more}.items():
            check.checked(name, options[name])
        if options["update"] not in get_args(Update):
            raise ValueError(f"update must be one of {', '.join(get_args(Update))}, got {options['update']!r}")
        if options["update"] == "adam" and options["momentum"]:
            raise ValueError('update "adam" takes betas instead of momentum')
        for beta in options["betas"]:
            BELOW_ONE.checked("each of betas", beta)

    def check_layer(self, layer: BinaryLayer, options: Mapping[str, Any]) -> None:
        """Updates of whole matrices need whole layers."""
        if options["update"] in ("normalized", "muon") and is_sharded(layer.weight):
            raise ValueError(f'update "{options["update"]}" needs whole layers, but FSDP has sharded {layer}')


class BinaryConnect(DescentOptimizer):
    """BinaryConnect (Courbariaux et al., 2015): gradients at the binary weights move the latent ones.

        Ω ← clip(Ω − lr · u, ±clip),   with u from the gradient ∂E/∂W by `directions`

    `params`, `steps`, `warmup`, `relative` and `real` are those of `QPSBGD`.

    Args:
        lr: Step size of the latent weights; None takes a relative one from norms, depth and `steps`, for "sgd" 1.
        update: "sgd", "sign" (signSGD), "adam", "normalized" (SGD's step divided by the layer's rms), or "muon".
        momentum: Momentum of all but "adam", which uses `betas`.
        betas: Decay rates of Adam's two means.
        eps: Added to Adam's denominator.
        clip: Bound of the latent weights; None leaves them free.
    """

    fusable = True

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
        warmup: float | None = None,
        relative: bool | None = None,
        real: Real = None,
    ) -> None:
        if lr is None and update == "sgd":
            lr = SGD_RATE
        options = {"lr": lr, "update": update, "momentum": momentum, "betas": betas, "eps": eps, "clip": clip}
        options |= {"steps": steps, "warmup": warmup, "relative": relative}
        super().__init__(params, options, real, RATE_FACTORS.get(update, SGD_RATE))  # a check reports unknown updates


class ProxQuant(DescentOptimizer):
    """ProxQuant (Bai, Wang and Liberty, 2019): a gradient step at the real weights, then a proximal step to ±1.

        θ ← θ − lr · u,   θ ← prox(θ, λ_t),   λ_t = `rate` · t

    The layers compute with the real weights θ in training (`latent_forward`) and with sign(θ) in evaluation. Over T
    steps the proximal steps move a weight by up to rate · T²/2. By default, the pull takes a weight of zero to ±1, and
    from T/2 on it is stronger than a step of size lr against it: give `steps` = T. From step T on, all weights are at
    ±1, whatever is left of the way. `params` and `real` are those of `QPSBGD`; the rate of the real parameters falls to
    zero over `real["steps"]` alone.

    Args:
        lr: Step size of the weights.
        rate: Growth of the regulariser per step, and no end of it at T; None takes 2/T² + 2 lr/T, with T = 1000 where
            `steps` is not given.
        steps: T, the steps of the whole training. The learning rate stays: with a cosine ProxQuant trains worse.
        update: The gradient step: "sgd", "sign" or "adam".
        momentum: Momentum of "sgd" and "sign".
        betas: Decay rates of Adam's two means; `eps` is added to its denominator.
        clip: Bound of the weights; None leaves them free.
    """

    option_checks = MappingProxyType({"rate": NOT_NEGATIVE})
    trains_latent = True
    state_names = frozenset({"proximal_step", "descent"})

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
        if lr is None:
            raise ValueError("ProxQuant needs a learning rate: lr=0.1 suits sign steps")
        end = (steps or 1000) if rate is None else None
        if end is not None:
            rate = default_pull(NOT_NEGATIVE.checked("lr", lr), end)
        options = {
            "lr": lr,
            "rate": rate,
            "end": end,
            "update": update,
            "momentum": momentum,
            "betas": betas,
            "eps": eps,
        }
        super().__init__(params, {**options, "clip": clip, "steps": None, "warmup": 0.0, "relative": False}, real)

    def _moved(self, weights: list[Tensor], states: list[State], group: dict[str, Any]) -> list[Tensor]:
        for state in states:
            state["proximal_step"] = state.get("proximal_step", 0) + 1
        stepped = super()._moved(weights, [state.setdefault("descent", {}) for state in states], group)
        pairs = zip(stepped, states, strict=True)
        return [proximal_step(weight, _strength(group, state["proximal_step"])) for weight, state in pairs]


class StraightThrough(DescentOptimizer):
    """Straight-through training of free latent weights: AdamW, SGD or Muon, with weight decay and warm-up.

        Ω ← Ω − lr · (u + weight_decay · Ω),   u from the gradient at the binary weights

    Meant for layers with `scale="magnitude"`, as `convert(…, scale="magnitude")` makes them: XNOR-Net, DoReFa and
    BitNet train so.
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

    option_checks = MappingProxyType({"weight_decay": NOT_NEGATIVE})
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

    option_checks = MappingProxyType({"threshold": POSITIVE})
    state_names = frozenset({"mean"})

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

    def _moved(self, weights: list[Tensor], states: list[State], group: dict[str, Any]) -> list[Tensor]:
        moved = []
        for weight, state in zip(weights, states, strict=True):
            (grad,) = _grads([weight])
            mean = state.setdefault("mean", torch.zeros_like(grad))
            mean.lerp_(grad, min(1.0, self._rate(group, self._layers[weight])))
            against = (mean.abs() > group["threshold"]) & ((mean > 0) == (weight >= 0))
            flipped = torch.where(weight == 0, -torch.finfo(weight.dtype).tiny, -weight)  # the sign of zero is +1
            moved.append(torch.where(against, flipped, weight))
        return moved


def _grads(weights: list[Tensor]) -> list[Tensor]:
    """The gradients, in the type of what is kept."""
    return [weight.grad.to(kept_dtype(weight)) for weight in weights if weight.grad is not None]


def _placed(value: Any, device: torch.device) -> Any:
    """A copy of a saved state, with its tensors on this device."""
    if isinstance(value, dict):
        return {name: _placed(inner, device) for name, inner in value.items()}
    return value.to(device, copy=True) if isinstance(value, Tensor) else value


def default_pull(lr: float, end: int) -> float:
    """The `rate` at which ProxQuant takes every weight to ±1 within `end` steps of size `lr`."""
    return 2 / end**2 + 2 * lr / end


def _strength(group: Mapping[str, Any], step: int) -> float:
    """λ_t of a group's weights at a step, counted from 1."""
    at_end = group["end"] is not None and step >= group["end"]
    return math.inf if at_end else float(group["rate"]) * step
