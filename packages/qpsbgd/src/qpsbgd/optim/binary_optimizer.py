"""The base of all binary optimisers: parameter groups, the real-valued part, checks, warnings."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.functional import schedule
from qpsbgd.optim.parameters import NO_LAYER, Layers, ParameterSplit, check_weights, param_groups
from qpsbgd.optim.real_part import Real, RealGroups
from qpsbgd.optim.recommend import WARMUP, Network
from qpsbgd.parallel.ranks import Ranks
from qpsbgd.parallel.shards import local, saved_tensors
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE, BELOW_ONE, FLAG, NOT_NEGATIVE, POSITIVE, POSITIVE_OR_NONE

_CHECKS: Mapping[str, Any] = MappingProxyType(
    {
        "relative": FLAG,
        "steps": AT_LEAST_ONE_OR_NONE,
        **dict.fromkeys(("warmup", "momentum"), BELOW_ONE),
        **dict.fromkeys(("lr", "rate", "weight_decay"), NOT_NEGATIVE),
        **dict.fromkeys(("eps", "threshold"), POSITIVE),
        "clip": POSITIVE_OR_NONE,
    }
)
"""The values that options may have, by name."""
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
        self,
        params: Layers,
        options: Mapping[str, Any],  # those that are None get the defaults of the network
        real: Real,
        rate_factor: float | None = None,  # that of the default rate; None where there is no default rate
    ) -> None:
        groups = param_groups(params)
        network = Network.of(groups)
        # Torch's constructor calls add_param_group, which needs these.
        self._layers: dict[Tensor, BinaryLayer] = {}
        self._given = {name for name, value in options.items() if value is not None}
        needs_depth = options["lr"] is None or any(layer.scale is not None for layer in network.layers)
        depth_factor = network.scale_rate_factor if needs_depth else 1.0
        self._real = RealGroups(real, norms=bool(network.norm_vectors), depth_factor=depth_factor)
        self._reset_transient_state()
        super().__init__(cast(Any, groups), self._defaults(options, network, rate_factor))
        if not self._layers:
            raise ValueError(NO_LAYER)

    def _defaults(self, options: Mapping[str, Any], network: Network, rate_factor: float | None) -> dict[str, Any]:
        """The options with the network's defaults in place of None."""
        options = {name: _python_number(value) for name, value in options.items()} | {"step": 0}
        if options["relative"] is None:
            options["relative"] = options["lr"] is None
        if options["warmup"] is None:
            options["warmup"] = WARMUP if network.norm_vectors else 0.0
        if options["lr"] is None:
            if rate_factor is None:
                raise ValueError(f"{type(self).__name__} needs a learning rate: give lr")
            if not options["relative"]:
                raise ValueError("the default learning rate is relative; leave relative out, or give lr")
            options["lr"] = network.rate(rate_factor, options["steps"])
        self._check_options(options)
        return options

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add layers or parameters with options of their own: `{"params": model.head, "lr": 0.1}`."""
        if "params" not in param_group:
            raise ValueError('a parameter group needs the key "params" with a model, layers or parameters')
        options = {name: _python_number(value) for name, value in param_group.items() if name != "params"}
        members = ParameterSplit.of(param_group["params"])
        part = self._real.take(members, options, self.defaults)
        if not members.layers and part is None:
            raise ValueError(NO_LAYER)
        if members.layers:
            options = self._group_options(members.layers, options)
        claimed = {p for group in self.param_groups for p in group["params"]}
        if part is not None and not claimed.isdisjoint(part.optimizer.param_groups[0]["params"]):
            raise ValueError("some parameters appear in more than one parameter group")
        if members.layers:
            weights = members.with_names([layer.weight for layer in members.layers])
            super().add_param_group({**options, "params": weights})
            for layer in members.layers:
                self._layers[layer.weight] = layer
                self._attach(layer)
        if part is not None:
            if "betas" in self.defaults:  # which schedulers that cycle the momentum then look for in every group
                part.optimizer.param_groups[0].setdefault("betas", self.defaults["betas"])
            self._real.parts.append(part)
            self.param_groups += part.optimizer.param_groups
            self.state.update(part.optimizer.state)  # most keep nothing at the beginning

    def _group_options(self, layers: Sequence[BinaryLayer], options: dict[str, Any]) -> dict[str, Any]:
        """The options of a new group, with those that follow from them, if these layers can be trained so."""
        options = self._complete(options)
        if unknown := sorted(set(options) - set(self.defaults)):
            raise TypeError(
                f"{type(self).__name__} has no option {', '.join(unknown)}; "
                f"it has {', '.join(name for name in self.defaults if name != 'step')}"
            )
        check_weights(layers, self._ranks.size)
        self._check_options({**self.defaults, **options})
        for layer in layers:
            self._check_layer(layer, {**self.defaults, **options})
        return options

    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a new group, with those that follow from them."""
        if options.get("lr") is not None and "relative" not in self._given:
            options = {"relative": False} | options  # as where the rate is an argument
        return {"step": max((group["step"] for group in self.binary_groups), default=0)} | options

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for an option with a value that it cannot have."""
        for name, value in options.items():
            if name in _CHECKS and value != "range":
                _CHECKS[name].checked(name, value.item() if isinstance(value, Tensor) else value)

    def _check_layer(self, layer: BinaryLayer, options: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for a layer that these options cannot train."""

    @property
    def binary_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of latent weights."""
        return [group for group in self.param_groups if group["params"][0] in self._layers]

    @property
    def real_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of real-valued parameters."""
        return [group for group in self.param_groups if group["params"][0] not in self._layers]

    def _attach(self, layer: BinaryLayer) -> None:
        """Prepare a layer that this optimiser now trains, whatever an earlier optimiser has set on it."""
        if layer.tape is not None:
            layer.tape.close()
            layer.tape = None
        layer.latent_forward = self.trains_latent

    def _reset_transient_state(self) -> None:
        """Reset what belongs to this object's own steps and is neither copied nor saved."""
        self._real.forget_steps()
        self.observers = []
        self._ranks = Ranks()

    def _check_in_place(self) -> None:
        """Raise RuntimeError for parameters without values, or other ones than this optimiser was made for."""
        if any(p.is_meta for group in self.param_groups for p in group["params"]):
            raise RuntimeError(
                "a step needs parameters with values, but some are on the meta device: call model.to_empty(device=…), "
                "load or reset their values, and make the optimiser after that"
            )
        for weight, layer in self._layers.items():
            if layer.weight is not weight:
                raise RuntimeError(
                    f"the weight of {layer} was replaced by a new parameter, or was sharded since: call "
                    "fully_shard(model) before the optimiser is made, leave reshard_after_backward on, or make a new "
                    "optimiser"
                )

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
        for part, group in zip(self._real.parts, self.real_groups, strict=True):
            part.step(group, self.state, steps_made=steps_made)

    def _finish_step(self, *messages: str) -> None:
        """Count the step, and warn of parameters that nothing trains; to be called by `step` itself."""
        for group in self.binary_groups:
            group["step"] += 1
        trained = (p for group in self.param_groups for p in group["params"])
        for message in (*messages, *self._real.untrained_messages(trained, type(self).__name__)):
            warnings.warn(message, stacklevel=_CALLER)

    def _check_gradients(
        self, layers: Iterable[BinaryLayer] | None = None, moments: Mapping[Any, Tensor] = MappingProxyType({})
    ) -> None:
        """Raise ValueError unless gradients, of these layers or all and real ones, and moments are finite."""
        weights = [layer.weight for layer in (self._layers.values() if layers is None else layers)]
        real = [p for group in self.real_groups for p in group["params"]]
        wrong = _nonfinite({**{p: p.grad for p in (*weights, *real) if p.grad is not None}, **moments})
        if not wrong:
            return
        gradients = [p for p in wrong if isinstance(p, Tensor)]
        if not gradients:
            fault = "NaN or infinite values, or some whose squares overflow; the forward pass has diverged"
            raise ValueError(f"{wrong[0]}: the inputs hold {fault}; nothing was changed")
        shapes = f"real parameters of the shapes {', '.join(str(tuple(p.shape)) for p in gradients)}"
        of = ", ".join(str(self._layers[p]) for p in gradients if p in self._layers) or shapes
        raise ValueError(f"the gradient of {of} holds NaN or infinite values; nothing was changed")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved state, as if training had never stopped; one that does not fit changes nothing."""
        state_dict = self._check_state(state_dict)
        before = self.state_dict()
        try:
            self._restore(state_dict)
        except Exception:
            self._restore(before)
            raise

    def _restore(self, state_dict: dict[str, Any]) -> None:
        """Put a state in place of the present one."""
        super().load_state_dict(state_dict)
        for weight, name, value in saved_tensors(state_dict, self.param_groups):
            if weight in self._layers:  # torch has cast it to the precision of the weight
                self.state[weight][name] = value

    def _check_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state, if it has all options and no other than the known entries, with this optimiser's `steps`."""
        groups = [dict(group) for group in state_dict["param_groups"]]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"the state has {len(groups)} parameter groups, but this {type(self).__name__} has "
                f"{len(self.param_groups)}; make it with the same groups, and with `real` where the other had it"
            )
        real, missing, members, others = iter(self._real.parts), set[str](), set[int](), set[str]()
        for present, group in zip(self.param_groups, groups, strict=True):
            binary = present["params"][0] in self._layers
            members.update(group["params"] if binary else ())
            others.update(group if binary else ())
            missing |= (self.defaults.keys() if binary else next(real).options) - {*group, "differentiable"}
        others &= {"projection", "rate", "threshold", "weight_decay"} - self.defaults.keys()  # options of other kinds
        if missing or others:  # torch itself adds "differentiable"
            fault = f"no {', '.join(sorted(missing))}" if missing else ", ".join(sorted(others))
            raise ValueError(self._foreign(f"its groups have {fault}"))
        for present, group in zip(self.param_groups, groups, strict=True):
            group["steps"] = group["steps"] if present["steps"] is None else present["steps"]
        kept = {name for number, entry in state_dict["state"].items() if number in members for name in entry}
        if foreign := sorted(kept - self.state_names):
            raise ValueError(self._foreign(f"it holds {', '.join(foreign)}"))
        return {**state_dict, "param_groups": groups}

    @property
    @abstractmethod
    def state_names(self) -> Set[str]:
        """What is kept of latent weights."""

    def _foreign(self, fault: str) -> str:
        return (
            f"this is not a state of {type(self).__name__}: {fault}; "
            "load it into the kind of optimiser that it was saved from"
        )

    def __getstate__(self) -> dict[str, Any]:
        # Torch copies and pickles only what it knows.
        layers = list(self._layers.values())
        return {**super().__getstate__(), "_real": self._real, "_given": self._given, "_layers": layers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        layers = state.pop("_layers", None)
        super().__setstate__(state)
        if layers is not None:
            self._layers = {layer.weight: layer for layer in layers}
            self._reset_transient_state()
            for layer in layers:
                self._attach(layer)


def _python_number(value: Any) -> Any:
    """A numpy number as Python's own, which checkpoints can hold."""
    return value.item() if isinstance(value, np.generic) else value


def _nonfinite(values: Mapping[Any, Tensor]) -> list[Any]:
    """The owners of the tensors, such as the parameters of gradients, that hold NaN or infinite values."""
    plain = {owner: value.coalesce().values() if value.is_sparse else local(value) for owner, value in values.items()}
    plain = {owner: value for owner, value in plain.items() if value.numel()}
    if not plain:
        return []
    norms = list(torch._foreach_norm(list(plain.values()), math.inf))
    if len({(norm.dtype, norm.device) for norm in norms}) > 1:  # in half precision large moments would be infinite
        norms = [norm.to(norms[0].device, torch.float64) for norm in norms]
    return [owner for owner, norm in zip(plain, torch.stack(norms).tolist(), strict=True) if not math.isfinite(norm)]
