"""The baselines: BinaryConnect, ProxQuant, and how one-bit networks are trained today, straight through and by Bop."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.binary_optimizer import BinaryOptimizer
from qpsbgd.optim.parameters import Layers
from qpsbgd.optim.real_part import Real
from qpsbgd.optim.recommend import WARMUP
from qpsbgd.optim.updates import Update, base_optimizer, kept_dtype, proximal_step
from qpsbgd.parallel.shards import is_sharded, local
from qpsbgd.projections.protocol import check_fits
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE, BELOW_ONE, NOT_NEGATIVE

RATE_FACTORS: Mapping[str, float] = MappingProxyType({"sign": 0.12, "adam": 0.3, "normalized": 0.12})
"""The factor of `Network.rate` per update. Steps of "sgd" are as large as the gradient, so no rate fits every loss."""
SGD_RATE = 1.0  # the default of "sgd", absolute: gradients of a mean loss are small beside latent weights in [−1, 1]
RECIPES: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {"adam": (3e-3, 0.0, 0.05), "sgd": (0.1, 0.9, 5e-4), "muon": (0.02, 0.95, 0.0)}
)
"""Rate, momentum and weight decay per update, where none are given."""


class DescentOptimizer(BinaryOptimizer):
    """A step of a base optimiser in at least single precision, then a proximal map, as PARQ has it."""

    state_names: ClassVar[frozenset[str]] = frozenset({"step", "exp_avg", "exp_avg_sq", "momentum_buffer"})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move the latent weights of every layer that has a gradient; returns the closure's loss."""
        loss = self._run(closure)
        moving = [(group, [w for w in group["params"] if w.grad is not None]) for group in self.binary_groups]
        self._check([weight for _, weights in moving for weight in weights])
        self._step_real()  # it may raise, and then nothing has changed
        for group, weights in moving:
            if weights:
                self._move(weights, group)
            for observer in self.observers:
                for weight in weights:
                    observer(self._layers[weight], {})
        self._finish_step()
        return loss

    def _check(self, moving: Sequence[Tensor]) -> None:
        """Raise an error for layers, gradients or states that cannot make a step."""
        self._check_in_place()
        if any(map(is_sharded, self._layers)):  # all ranks must raise, or those that do not would wait for ever
            self._ranks.synchronize(self._check_gradients)
        else:
            self._check_gradients()
        for weight in moving:
            for value in self.state[weight].values():
                if isinstance(value, Tensor) and value.ndim:
                    check_fits(self._layers[weight], value, weight.to(kept_dtype(weight)))

    @_disable_dynamo  # torch fails to compile the step of an optimiser whose state is lent
    def _move(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Move the weights of a group."""
        moved = {weight: weight.detach().to(kept_dtype(weight)) for weight in weights}
        for weight, p in moved.items():
            assert weight.grad is not None
            p.grad = weight.grad.to(p.dtype)
        self._descend(moved, group)
        self._project(moved, group)
        if group["clip"] is not None:
            torch._foreach_clamp_min_(list(moved.values()), -group["clip"])
            torch._foreach_clamp_max_(list(moved.values()), group["clip"])
        for weight, p in moved.items():
            if p.dtype != weight.dtype:
                local(weight).copy_(local(p))

    def _descend(self, moved: dict[Tensor, Tensor], group: dict[str, Any]) -> None:
        """A step of the base optimiser, whose state is that of this one; `moved` are weights and what moves of them."""
        by_rate: dict[float, list[Tensor]] = {}
        for weight, p in moved.items():
            by_rate.setdefault(self._rate(group, self._layers[weight]), []).append(p)
        parts = [{"params": params, "lr": rate} for rate, params in by_rate.items()]
        fused = all(p.device.type in ("cpu", "cuda") and not is_sharded(p) for p in moved.values())
        base = base_optimizer(parts, group, fused=fused)
        base.state = defaultdict(dict, {p: self.state[weight] for weight, p in moved.items()})
        base.step()

    def _project(self, moved: dict[Tensor, Tensor], group: dict[str, Any]) -> None:
        """The proximal map of what the base optimiser has moved, before it is clipped."""

    def _check_options(self, options: Mapping[str, Any]) -> None:
        super()._check_options(options)
        if "update" not in options:
            return
        if options["update"] not in get_args(Update):
            raise ValueError(f"update must be one of {', '.join(get_args(Update))}, got {options['update']!r}")
        if options["update"] == "adam" and options["momentum"]:
            raise ValueError('update "adam" takes betas instead of momentum')
        for beta in options["betas"]:
            BELOW_ONE.checked("each of betas", beta)

    def _check_layer(self, layer: BinaryLayer, options: Mapping[str, Any]) -> None:
        if options.get("update") in ("normalized", "muon") and is_sharded(layer.weight):
            raise ValueError(f'update "{options["update"]}" needs whole layers, but FSDP has sharded {layer}')


class BinaryConnect(DescentOptimizer):
    """BinaryConnect (Courbariaux et al., 2015): gradients at the binary weights move the latent ones.

        Ω ← clip(Ω − lr · u, ±clip),   with u from the gradient ∂E/∂W by `optim/updates.py`

    `params`, `steps`, `warmup`, `relative` and `real` are those of `QPSBGD`.

    Args:
        lr: Step size of the latent weights; None takes a relative one from norms, depth and `steps`, for "sgd" 1.
        update: "sgd", "sign" (signSGD), "adam", "normalized" (SGD's step divided by the layer's rms), or "muon".
        momentum: Momentum of all but "adam", which uses `betas`.
        betas: Decay rates of Adam's two means.
        eps: Added to Adam's denominator.
        clip: Bound of the latent weights; None leaves them free.
    """

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
    ±1, however far they had still to go. `params` and `real` are those of `QPSBGD`; the rate of the real parameters
    falls to zero over `real["steps"]` alone.

    Args:
        lr: Step size of the weights.
        rate: Growth of the regulariser per step, which continues beyond T; None takes 2/T² + 2 lr/T, with T = 1000
            where `steps` is not given.
        steps: T, the steps of the whole training. The learning rate is constant: with a cosine ProxQuant trains worse.
        update: The gradient step: "sgd", "sign" or "adam".
        momentum: Momentum of "sgd" and "sign".
        betas: Decay rates of Adam's two means; `eps` is added to its denominator.
        clip: Bound of the weights; None leaves them free.
    """

    trains_latent = True
    state_names = DescentOptimizer.state_names | {"proximal_step"}

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
        options = {"lr": lr, "rate": rate, "end": end, "update": update, "momentum": momentum, "betas": betas}
        options |= {"eps": eps, "clip": clip, "steps": None, "warmup": 0.0, "relative": False}
        super().__init__(params, options, real)

    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        options = super()._complete(options)
        if self.defaults["end"] is not None and options.get("lr") is not None:
            options = {"rate": default_pull(options["lr"], self.defaults["end"])} | options
        return options

    def _project(self, moved: dict[Tensor, Tensor], group: dict[str, Any]) -> None:
        for weight, p in moved.items():
            count = self.state[weight]["proximal_step"] = self.state[weight].get("proximal_step", 0) + 1
            at_end = group["end"] is not None and count >= group["end"]
            p.copy_(proximal_step(p, math.inf if at_end else group["rate"] * count))


class StraightThrough(DescentOptimizer):
    """Straight-through training of free latent weights: AdamW, SGD or Muon, with weight decay and warm-up.

        Ω ← Ω − lr · (u + weight_decay · Ω),   u from the gradient at the binary weights

    Meant for layers with `scale="magnitude"`, as `convert(…, scale="magnitude")` makes them: XNOR-Net, DoReFa and
    BitNet train this way.
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
    """Bop (Helwegen et al., 2019): a weight flips once the mean gradient has pushed against it for long enough.

        m ← (1 − lr) m + lr · ∂E/∂W,   Ω ← −Ω where |m| > threshold and m has the sign of Ω

    There are no latent weights in the usual sense: Ω keeps its size, and only its sign matters. `params`, `warmup` and
    `real` are those of `QPSBGD`.

    Args:
        lr: The adaptivity rate γ.
        threshold: τ.
        steps: Steps of the whole training; γ follows the same schedule as other rates.
    """

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
        super().__init__(params, options, real)

    def _descend(self, moved: dict[Tensor, Tensor], group: dict[str, Any]) -> None:
        for weight, p in moved.items():
            assert p.grad is not None
            mean = self.state[weight].setdefault("mean", torch.zeros_like(p))
            mean.lerp_(p.grad, min(1.0, self._rate(group, self._layers[weight])))
            against = (mean.abs() > group["threshold"]) & ((mean > 0) == (p >= 0))
            flipped = torch.where(p == 0, -torch.finfo(weight.dtype).tiny, -p)  # the sign of zero is +1
            p.copy_(torch.where(against, flipped, p))


def default_pull(lr: float, end: int) -> float:
    """The `rate` at which ProxQuant takes every weight to ±1 within `end` steps of size `lr`."""
    return 2 / end**2 + 2 * lr / end
