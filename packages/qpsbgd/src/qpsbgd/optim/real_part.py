"""The real-valued parameters of a model: torch's own optimisers at work inside a binary one."""

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.known_layers import KNOWN
from qpsbgd.optim.functional import schedule
from qpsbgd.optim.parameters import NamedTensor, ParameterSplit
from qpsbgd.optim.recommend import REAL_RATE, scale_unit, vector_rate
from qpsbgd.parallel.shards import local
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE, BELOW_ONE, POSITIVE, POSITIVE_OR_NONE

Real = Mapping[str, Any] | bool | None
"""Whether and how to train real parameters: options, True for the defaults, False for not at all, None for no word."""

_OWN = {
    "max_norm": (None, POSITIVE_OR_NONE),
    "steps": (None, AT_LEAST_ONE_OR_NONE),
    "warmup": (0.0, BELOW_ONE),
    "vector_factor": (1.0, POSITIVE),
    "scale_factor": (None, POSITIVE_OR_NONE),
}
"""Options of `real` that are not the torch optimiser's: their defaults, and what they must be."""

_PATIENCE = 2
"""Steps, after the first, in which another optimiser has to change a parameter; then it is taken to have none."""
_NAMED = 4  # parameters that a message names; of the others it says how many there are


class RealPart:
    """Steps one parameter group by an optimiser of torch, to which the group and the state are lent.

    So there is one `param_groups` for schedulers and one `state_dict`. The options are those of `real` of `QPSBGD`;
    where a rate or kind is given, vectors and learned scales have that of any matrix. `norms` says whether the network
    has normalisation layers, and `depth_factor` is that on the rate of learned scales, in the units of their layers.
    """

    def __init__(
        self, params: Sequence[NamedTensor], options: Mapping[str, Any], *, norms: bool, depth_factor: float
    ) -> None:
        tensors = {p[1] if isinstance(p, tuple) else p for p in params}
        self._scales: dict[Tensor, float] = {
            layer.scale: scale_unit(layer) for layer in list(KNOWN) if layer.scale in tensors
        }
        values = {name: rule.checked(name, options.get(name, default)) for name, (default, rule) in _OWN.items()}
        if not {"lr", "kind"} & set(options):
            factor = vector_rate(values["steps"]) / REAL_RATE
            values["vector_factor"] = options.get("vector_factor", factor if norms else 1.0)
            values["scale_factor"] = options.get("scale_factor", factor * depth_factor if self._scales else None)
        self.optimizer = _torch_optimizer(params, {name: v for name, v in options.items() if name not in _OWN})
        self.optimizer.param_groups[0].update(values)

    @property
    def options(self) -> set[str]:
        """The options that a group of this kind has."""
        return {*self.optimizer.defaults, *_OWN}

    @_disable_dynamo  # torch fails to compile the step of an optimiser whose state is lent
    def step(self, group: dict[str, Any], state: defaultdict[Tensor, Any], *, steps_made: int) -> None:
        """Move the parameters of the group that have a gradient, at its rate by its schedule."""
        moving = [p for p in group["params"] if p.grad is not None]
        if not moving:
            return
        if group["max_norm"] is not None:
            nn.utils.clip_grad_norm_(moving, group["max_norm"])
        factor, rate = schedule(steps_made, group["steps"], group["warmup"]), group["lr"]
        try:
            group["lr"] = rate if factor == 1 else rate * factor
            parts = [part for part in _by_rate(group, self._scales) if any(p.grad is not None for p in part["params"])]
            self.optimizer.state, self.optimizer.param_groups = state, parts
            self.optimizer.step()
            group.update({name: value for name, value in parts[-1].items() if name not in ("params", "lr")})
        finally:
            group["lr"] = rate


class RealGroups:
    """The real-valued parameter groups of a binary optimiser, and how other parameters are treated."""

    def __init__(self, real: Real, *, norms: bool, depth_factor: float) -> None:
        self.options = real_options(real)
        self.parts: list[RealPart] = []
        self._norms, self._depth_factor = norms, depth_factor
        self._unclaimed: dict[Tensor, str] = {}  # parameters of models about which nothing was said: their names
        self.forget_steps()

    def forget_steps(self) -> None:
        """Start watching the other parameters again."""
        self._steps = 0
        self._first: dict[Tensor, tuple[int, Tensor]] = {}

    def take(self, members: ParameterSplit, options: dict[str, Any], defaults: Mapping[str, Any]) -> RealPart | None:
        """What steps the real parameters of a new group, if they are trained; their options come out of `options`."""
        of_group = real_options(options.pop("real", None))
        wanted = self.options if of_group is None else of_group
        params = members.given + (list(members.inside) if isinstance(wanted, dict) else [])
        if wanted is None:
            self._unclaimed.update(members.inside)
        real = {name: options.get(name, defaults[name]) for name in ("steps", "warmup")}
        real |= (self.options or {}) | (of_group or {})
        if params:
            for name in [name for name in options if name not in defaults or not members.layers]:
                real[name] = options.pop(name)
            return RealPart(members.with_names(params), real, norms=self._norms, depth_factor=self._depth_factor)
        if options.get("weight_decay") == 0 and "weight_decay" not in defaults:
            del options["weight_decay"]  # frameworks give one to every group
        return None

    def untrained_messages(self, trained: Iterable[Tensor], optimizer: str) -> Iterator[str]:
        """A message, given once, if parameters that are not `trained` have gradients, but nothing changes them."""
        self._steps += 1
        if self._steps > 1 + _PATIENCE or not self._unclaimed:
            return
        claimed = set(trained)
        if self._steps == 1:
            self._first = {p: _version(p) for p in self._unclaimed if p.requires_grad and p.grad is not None}
        if self._steps == 1 + _PATIENCE:
            left = [self._unclaimed[p] for p, first in self._first.items() if p not in claimed and _is_still(p, first)]
            self._first = {}
            if left:
                more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
                yield (
                    f"{optimizer} trains the binary weights alone, and nothing has changed {len(left)} other "
                    f"trainable parameters since its first step: {', '.join(left[:_NAMED])}{more}; give it real=True "
                    "or real=dict(lr=…) to train them too, real=False to leave them as they are"
                )


def real_optimizer(
    model: nn.Module, beside: Optimizer, kind: type[Optimizer] = torch.optim.Adam, **options: Any
) -> Optimizer:
    """An ordinary optimiser for all parameters that `beside` does not train: biases, norms, encoders.

    In a model without such parameters its steps do nothing; a GradScaler does not accept such an optimiser.

    Args:
        model: The whole model.
        beside: The binary optimiser of the model.
        kind: Class of the optimiser to make.
        **options: Passed on to it, such as `lr=1e-3`.

    Raises:
        ValueError: A binary layer's weight was left out by `beside`.
    """
    claimed = {p for group in beside.param_groups for p in group["params"]}
    rest = {name: p for name, p in model.named_parameters() if p.requires_grad and p not in claimed}
    binary = {layer.weight for layer in model.modules() if isinstance(layer, BinaryLayer)}
    if left := [name for name, p in rest.items() if p in binary]:
        raise ValueError(
            f"{type(beside).__name__} does not train the binary weights {', '.join(left)}; give it all layers"
        )
    return kind([{"params": list(rest.values())}], **options)


def real_options(real: Real) -> dict[str, Any] | Literal[False] | None:
    """The option `real` of a binary optimiser, checked: options of a torch optimiser, False or None for none."""
    if real is True:
        return {}
    if real is None or real is False:
        return real
    if not isinstance(real, Mapping):
        raise TypeError(f"real must be a dict of options such as dict(lr=1e-2), True, False or None, got {real!r}")
    return dict(real)


def _torch_optimizer(params: Sequence[NamedTensor], options: Mapping[str, Any]) -> Optimizer:
    """The optimiser of torch with these options, by default a fused AdamW."""
    kind = options.get("kind", torch.optim.AdamW)
    if not callable(kind):
        raise TypeError(f"kind must be a class of optimisers such as torch.optim.SGD, got {kind!r}")
    defaults: dict[str, Any] = {} if "kind" in options else {"lr": REAL_RATE}
    if defaults and _can_be_fused(params) and not {"foreach", "differentiable"} & set(options):
        defaults["fused"] = True  # one call for all, which saves most of the time of small ones, on a CPU, too
    optimizer = kind([{"params": list(params)}], **defaults | {k: v for k, v in options.items() if k != "kind"})
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"kind must make a torch.optim.Optimizer, got {type(optimizer).__name__}")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise TypeError(f"{type(optimizer).__name__} evaluates the loss several times per step; choose another kind")
    return optimizer


def _can_be_fused(params: Sequence[NamedTensor]) -> bool:
    tensors = [p[1] if isinstance(p, tuple) else p for p in params]
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in tensors)


def _by_rate(group: dict[str, Any], scales: Mapping[Tensor, float]) -> list[dict[str, Any]]:
    """The group itself, or where vectors or learned scales have other rates, its parts by rate."""
    vector, scale = group["vector_factor"], group["scale_factor"]
    if vector == 1 and scale is None:
        return [group]
    parts: dict[float, list[Tensor]] = {1.0: []}
    for p in group["params"]:
        is_scale = scale is not None and p in scales
        factor = scale * scales[p] if is_scale else vector if p.ndim < 2 else 1.0
        parts.setdefault(factor, []).append(p)
    return [{**group, "params": members, "lr": group["lr"] * factor} for factor, members in parts.items()]


def _version(parameter: Tensor) -> tuple[int, Tensor]:
    """A parameter's version, and some of its values for optimisers that write to `.data`, which has no version."""
    return parameter._version, local(parameter.detach()).reshape(-1)[:64].clone()


def _is_still(parameter: Tensor, first: tuple[int, Tensor]) -> bool:
    version, values = _version(parameter)
    return version == first[0] and values.device == first[1].device and torch.equal(values, first[1])
