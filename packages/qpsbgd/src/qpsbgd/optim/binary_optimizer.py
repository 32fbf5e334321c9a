"""The base of all binary optimisers: parameter groups, the real-valued part, checks, warnings."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.known_layers import KNOWN
from qpsbgd.optim.functional import schedule
from qpsbgd.optim.gradient_check import DeferredFiniteCheck, nonfinite
from qpsbgd.optim.options import OptionRules, python_number
from qpsbgd.optim.parameters import NO_LAYER, NamedTensor, ParameterSplit, check_weights
from qpsbgd.optim.real_part import Real, RealGroups, RealPart
from qpsbgd.optim.recommend import scale_unit
from qpsbgd.optim.recorder import Recorder
from qpsbgd.parallel.ranks import Ranks
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections.protocol import check_fits

_CALLER = 5  # stack level of the caller of `step` in `_finish_step`: torch puts two wrappers around `step`


class BinaryOptimizer(Optimizer):
    """A torch optimiser of the latent weights of binary layers, and of the other parameters if asked to.

    Wherever torch optimisers take parameters, these also take a model, a layer, or several of them. The latent weights
    of the binary layers inside become a parameter group. With `real`, all other parameters become a second group,
    stepped by a torch optimiser. Parameters that are given one by one, as `model.parameters()`, are all trained:
    without `real`, real-valued ones as with `real=True`.

    In a parameter group `{"params": …, "lr": …}` that has binary weights, options that the binary optimiser has are
    theirs; all others, and those under `"real"`, are for its other parameters. In a group without binary weights, all
    options are the torch optimiser's. A rate given there is absolute, as one given as an argument is, unless `relative`
    is given. Groups that are added later join the schedule where it is.
    """

    trains_latent: ClassVar[bool] = False  # whether layers compute with their real weights in training
    observers: list[Callable[[BinaryLayer, dict[str, float]], None]]
    """Called with every layer that a step moves and the figures of its projection, if it has one."""

    def __init__(
        self, groups: Sequence[dict[str, Any]], defaults: dict[str, Any], real: Real, rules: OptionRules
    ) -> None:
        # Torch's constructor calls add_param_group, which needs these.
        self._layers: dict[Tensor, BinaryLayer] = {}
        self._real, self._rules = RealGroups(real), rules
        self._reset_transient_state()
        super().__init__(cast(Any, groups), defaults)
        if not self._layers:
            raise ValueError(NO_LAYER)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add layers or parameters with options of their own: `{"params": model.head, "lr": 0.1}`."""
        if "params" not in param_group:
            raise ValueError('a parameter group needs the key "params" with a model, layers or parameters')
        options = {name: python_number(value) for name, value in param_group.items() if name != "params"}
        members = ParameterSplit.of(param_group["params"])
        real, real_options = self._real.take(members, options, self.defaults)
        if not members.layers and not real:
            raise ValueError(NO_LAYER)
        if members.layers:
            options = self._checked(members.layers, options)
        part = self._real_part(members.named(real), real_options) if real else None
        if members.layers:
            weights = members.named([layer.weight for layer in members.layers])
            super().add_param_group({**options, "params": weights})
            for layer in members.layers:
                self._layers[layer.weight] = layer
                self._attach_tape(layer)
        if part is not None:
            self._real.parts.append(part)
            self.param_groups += part.optimizer.param_groups
            self.state.update(part.optimizer.state)  # most keep nothing at the beginning

    def _checked(self, layers: Sequence[BinaryLayer], options: dict[str, Any]) -> dict[str, Any]:
        """The options of a new group, with those that follow from them, if these layers can be trained so."""
        options = self._rules.complete(options, self.defaults, self.binary_groups)
        if unknown := sorted(set(options) - set(self.defaults)):
            raise TypeError(
                f"{type(self).__name__} has no option {', '.join(unknown)}; "
                f"it has {', '.join(name for name in self.defaults if name != 'step')}"
            )
        check_weights(layers, self._ranks.size)
        self._rules.check({**self.defaults, **options})
        for layer in layers:
            self._rules.check_layer(layer, {**self.defaults, **options})
        return options

    def _real_part(self, params: Sequence[NamedTensor], options: dict[str, Any]) -> RealPart:
        """What steps a group of real parameters."""
        tensors = {p[1] if isinstance(p, tuple) else p for p in params}
        if not {p for group in self.param_groups for p in group["params"]}.isdisjoint(tensors):
            raise ValueError("some parameters appear in more than one parameter group")
        scales: dict[Tensor, float] = {
            layer.scale: scale_unit(layer) for layer in list(KNOWN) if layer.scale in tensors
        }
        factor = self._rules.scale_rate_factor
        part = RealPart(params, options, norms=self._rules.norms, scales=scales, depth_factor=factor)
        if "betas" in self.defaults:  # which schedulers that cycle the momentum then look for in every group
            part.optimizer.param_groups[0].setdefault("betas", self.defaults["betas"])
        return part

    @property
    def binary_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of latent weights."""
        return [group for group in self.param_groups if group["params"][0] in self._layers]

    @property
    def real_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of real-valued parameters."""
        return [group for group in self.param_groups if group["params"][0] not in self._layers]

    def _attach_tape(self, layer: BinaryLayer) -> None:
        """Prepare a layer that this optimiser now trains, whatever an earlier optimiser has set on it."""
        group = next(g for g in self.binary_groups if any(weight is layer.weight for weight in g["params"]))
        step = self.state.get(layer.weight, {}).get("step", 0)
        self._recorder.attach_tape(layer, group.get("projection"), ranks=self._ranks.size, step=step)
        layer.latent_forward = self.trains_latent

    def _reset_transient_state(self) -> None:
        """Reset what belongs to this object's own steps and is neither copied nor saved."""
        self._real.forget_steps()
        self.observers = []
        self._finite_check: DeferredFiniteCheck[Tensor | BinaryLayer] = DeferredFiniteCheck()
        self._skip: Tensor | None = None
        self._ranks, self._recorder = Ranks(), Recorder()

    def _check_in_place(self) -> None:
        """Raise RuntimeError if a layer has another parameter than the one that this optimiser was made for."""
        for weight, layer in self._layers.items():
            if layer.weight is weight:
                continue
            reason = "was replaced by a new parameter; make a new optimiser"
            if is_sharded(layer.weight):
                reason = "was sharded since; call fully_shard(model) before the optimiser is made"
            elif is_sharded(weight):
                reason = "is not sharded at the moment; leave reshard_after_backward on, or call model.reshard()"
            raise RuntimeError(f"the weight of {layer} {reason}")

    def _run(self, closure: Callable[[], float] | None) -> float | None:
        with torch.enable_grad():
            return None if closure is None else closure()

    def _rate(self, group: dict[str, Any], layer: BinaryLayer) -> float:
        """The step size of a layer's latent weights: `lr`, by the schedule of `steps`, in the layer's units."""
        factor = schedule(group["step"], group["steps"], group["warmup"])
        return float(group["lr"]) * factor * (layer.initial_bound if group["relative"] else 1.0)

    def _step_real(self) -> None:
        """Step the real-valued parameters, which may fail: the first change of a step, when nothing else can fail."""
        steps_made = max(group["step"] for group in self.binary_groups)
        scale = getattr(self, "grad_scale", None)
        for part, group in zip(self._real.parts, self.real_groups, strict=True):
            part.step(group, self.state, steps_made=steps_made, grad_scale=scale, skip=self._skip)

    def _finish_step(self, *messages: str) -> None:
        """Count the step, and warn of parameters that nothing trains; to be called by `step` itself."""
        for group in self.binary_groups:
            group["step"] += 1
        trained = (p for group in self.param_groups for p in group["params"])
        for message in (*messages, *self._real.left_behind(trained, type(self).__name__)):
            warnings.warn(message, stacklevel=_CALLER)

    def _check_gradients(
        self,
        layers: Iterable[BinaryLayer] | None = None,
        moments: Mapping[Any, Tensor] = MappingProxyType({}),
        *,
        later: bool = False,
    ) -> bool:
        """True; raise ValueError unless gradients, of these layers or all and real ones, and moments are finite.

        With `later`, the step need not wait for a GPU: it becomes one under `_skip`, and the next one raises.
        """
        self._report(self._finite_check.answer(), "held", "in the step before, which changed nothing")
        weights = [layer.weight for layer in (self._layers.values() if layers is None else layers)]
        real = [p for group in self.real_groups for p in group["params"]]
        grads: dict[Tensor | BinaryLayer, Tensor] = {p: p.grad for p in (*weights, *real) if p.grad is not None}
        values = {**grads, **moments}
        if later and self._can_be_left_out(grads):
            self._skip = self._finite_check.ask(values)
        else:
            self._skip = None
            self._report(nonfinite(values), "hold", "nothing was changed")
        return True

    def _can_be_left_out(self, grads: Iterable[Tensor | BinaryLayer]) -> bool:
        """Whether a flag on one GPU can keep all that has a gradient from moving."""
        devices = {p.device for p in grads if isinstance(p, Tensor)}
        fused = all(group.get("fused") for group in self.real_groups)
        on_one_gpu = len(devices) == 1 and devices.pop().type == "cuda"
        return on_one_gpu and fused and self._ranks.size == 1 and not hasattr(self, "found_inf")

    def _report(self, wrong: Sequence[Tensor | BinaryLayer], hold: str, then: str) -> None:
        if not wrong:
            return
        gradients = [p for p in wrong if isinstance(p, Tensor)]
        if not gradients:
            fault = "NaN or infinite values, or some whose squares overflow; the forward pass has diverged"
            raise ValueError(f"{wrong[0]}: the inputs {hold} {fault}; {then}")
        shapes = f"real parameters of the shapes {', '.join(str(tuple(p.shape)) for p in gradients)}"
        of = ", ".join(str(self._layers[p]) for p in gradients if p in self._layers) or shapes
        holds = "holds" if hold == "hold" else hold
        raise ValueError(f"the gradient of {of} {holds} NaN or infinite values; {then}")

    def _check_kept(self, weight: Tensor) -> None:
        """Raise RuntimeError where what is kept of a weight, at least in single precision, does not fit it."""
        like = weight.to(torch.promote_types(weight.dtype, torch.float32))
        for value in self.state[weight].values():
            if isinstance(value, Tensor) and value.ndim:
                check_fits(self._layers[weight], value, like)

    def _check_state(self, state_dict: dict[str, Any], known: set[str]) -> dict[str, Any]:
        """The state, if it has all options and no other than the `known` entries, with this optimiser's `steps`."""
        groups = [dict(group) for group in state_dict["param_groups"]]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"the state has {len(groups)} parameter groups, but this {type(self).__name__} has "
                f"{len(self.param_groups)}; make it with the same groups, and with `real` where the other had it"
            )
        pairs = list(zip(self.param_groups, groups, strict=True))
        binary = [group for ours, group in pairs if ours["params"][0] in self._layers]
        real = [group for ours, group in pairs if ours["params"][0] not in self._layers]
        missing = [set(self.defaults) - {*group, "differentiable"} for group in binary]  # which torch itself adds
        missing += [part.missing(group) for part, group in zip(self._real.parts, real, strict=True)]
        if names := sorted(set().union(*missing)):
            raise ValueError(self._foreign(f"its groups have no {', '.join(names)}"))
        others = {"projection", "rate", "threshold", "weight_decay"} - set(self.defaults)  # options of other kinds
        if names := sorted(others.intersection(set().union(*binary))):
            raise ValueError(self._foreign(f"its groups have {', '.join(names)}"))
        for ours, group in pairs:
            group["steps"] = group["steps"] if ours["steps"] is None else ours["steps"]
        members = {number for group in binary for number in group["params"]}
        kept = {name for number, entry in state_dict["state"].items() if number in members for name in entry}
        if foreign := sorted(kept - known):
            raise ValueError(self._foreign(f"it holds {', '.join(foreign)}"))
        return {**state_dict, "param_groups": groups}

    def _foreign(self, fault: str) -> str:
        return (
            f"this is not a state of {type(self).__name__}: {fault}; "
            "load it into the kind of optimiser that it was saved from"
        )

    def __getstate__(self) -> dict[str, Any]:
        # Torch copies and pickles only what it knows.
        ours = {name: vars(self)[name] for name in ("_real", "_rules")}
        return {**super().__getstate__(), **ours, "_layers": list(self._layers.values())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        layers = state.pop("_layers", None)
        super().__setstate__(state)
        if layers is not None:
            self._layers = {layer.weight: layer for layer in layers}
            self._reset_transient_state()
            for layer in layers:
                self._attach_tape(layer)
        for part, group in zip(self._real.parts, self.real_groups, strict=True):
            part.restore(group, self.state)
