"""The options of a binary optimiser: completed from its arguments and the network, and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.chains import chained_norms
from qpsbgd.optim.parameters import ParameterSplit
from qpsbgd.optim.rates import KEPT_SIZE, WARMUP, default_momentum, default_rate, depth_factor
from qpsbgd.parallel.distributed_solver import check_serves_shards
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections import Projection, make_projection
from qpsbgd_qubo.solvers.options import AT_LEAST_ONE_OR_NONE, BELOW_ONE, FLAG, NOT_NEGATIVE, POSITIVE_OR_NONE


@dataclass(frozen=True)
class Network:
    """The parts of a network that default options depend on.

    Attributes:
        layers: Its binary layers, in the order of all ranks.
        norms: The number of its norms.
        batch_norms: Those of them that normalise over a batch.
        modules: The modules that the optimiser was given.
    """

    layers: Sequence[BinaryLayer]
    norms: int
    batch_norms: int
    modules: Sequence[nn.Module]

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]]) -> Network:
        """The network in parameter groups."""
        splits = [ParameterSplit.of(group["params"]) for group in groups if "params" in group]
        return cls(
            layers=list(dict.fromkeys(layer for split in splits for layer in split.layers)),
            norms=sum(split.norms for split in splits),
            batch_norms=sum(split.batch_norms for split in splits),
            modules=[module for split in splits for module in split.modules],
        )

    @cached_property
    def depth(self) -> dict[str, int]:
        """The depth, as `default_rate` and `depth_factor` take it."""
        counted = sum(layer.weight.requires_grad and _keeps_size(layer) for layer in self.layers)
        chained = max((chained_norms(module) for module in self.modules), default=0)
        return {"layers": counted, "norms": self.norms, "chained": chained}


@dataclass(frozen=True, kw_only=True)
class OptionRules:
    """How one kind of optimiser completes and checks the options of its parameter groups.

    Attributes:
        optimizer: The name of the kind.
        norms: The number of the network's norms.
        scale_rate_factor: The factor on the rate of learned scales, by depth.
        relative_given: Whether the user has said if rates are relative.
    """

    checks: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"relative": FLAG, "steps": AT_LEAST_ONE_OR_NONE, "warmup": BELOW_ONE}
    )
    """The values that options may have, by name."""

    optimizer: str
    norms: int
    scale_rate_factor: float
    relative_given: bool

    @classmethod
    def of(cls, given: Mapping[str, Any], network: Network, optimizer: str, **more: Any) -> OptionRules:
        """The rules of an optimiser with these arguments."""
        needs_depth = given["lr"] is None or any(layer.scale is not None for layer in network.layers)
        factor = depth_factor(**network.depth) if needs_depth else 1.0
        relative_given = given["relative"] is not None
        return cls(
            optimizer=optimizer, norms=network.norms, scale_rate_factor=factor, relative_given=relative_given, **more
        )

    def complete(
        self, options: dict[str, Any], defaults: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """A new group's options, with those that follow from them, given the defaults and the groups before it."""
        if options.get("lr") is not None and not self.relative_given:
            options = {"relative": False} | options  # as where the rate is an argument
        return {"step": max((group["step"] for group in groups), default=0)} | options

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for an option with a value that it cannot have."""
        NOT_NEGATIVE.checked("lr", options["lr"].item() if isinstance(options["lr"], Tensor) else options["lr"])
        if options.get("clip") != "range":
            POSITIVE_OR_NONE.checked("clip", options["clip"])
        for name, check in self.checks.items():
            check.checked(name, options[name])

    def check_layer(self, layer: BinaryLayer, options: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for a layer that these options cannot train."""


@dataclass(frozen=True, kw_only=True)
class ProjectionRules(OptionRules):
    """The rules of QPSBGD, and which of its options the user has given."""

    checks: ClassVar[Mapping[str, Any]] = MappingProxyType({**OptionRules.checks, "momentum": BELOW_ONE})

    network_default: Projection
    projection_given: bool
    momentum_given: bool
    clip_given: bool

    def complete(
        self, options: dict[str, Any], defaults: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """With the group's projection as an object, and the momentum and bound that go with it."""
        options = super().complete(options, defaults, groups)
        if (name := options.get("projection")) is not None:
            # Groups that name the same projection have one object, and with it one solver.
            known = {group["projection"].name: group["projection"] for group in (defaults, *groups)}
            projection = known[name] if isinstance(name, str) and name in known else make_projection(name)
            options = options | {"projection": projection.with_network_default(self.network_default)}
        if not self.clip_given and "relative" in options:
            options = {"clip": usual_clip(relative=options["relative"])} | options
        if not self.momentum_given and {"projection", "steps"} & set(options):
            complete = {**defaults, **options}
            momentum = default_momentum(complete["projection"].capabilities.momentum, steps=complete["steps"])
            options = {"momentum": momentum} | options
        return options

    def check_layer(self, layer: BinaryLayer, options: Mapping[str, Any]) -> None:
        """As the projection says."""
        projection: Projection = options["projection"]
        projection.check(layer)
        if is_sharded(layer.weight):
            check_serves_shards(projection, layer)


def resolve_defaults(
    given: Mapping[str, Any], network: Network, rules: OptionRules, *, rate_factor: float | None = None
) -> dict[str, Any]:
    """The options of an optimiser for this network: those `given`, and defaults in the place of None.

    Args:
        given: The arguments, `lr`, `relative`, `steps` and `warmup` among them.
        network: The network.
        rules: The rules that the options must obey.
        rate_factor: The factor of `default_rate`; None where there is no default rate.
    """
    options = {name: plain(value) for name, value in given.items()} | {"step": 0}
    if options["relative"] is None:
        options["relative"] = options["lr"] is None
    if options["warmup"] is None:
        options["warmup"] = WARMUP if network.norms else 0.0
    if options["lr"] is None:
        if rate_factor is None:
            raise ValueError(f"{rules.optimizer} needs a learning rate: give lr")
        if not options["relative"]:
            raise ValueError("the default learning rate is relative; leave relative out, or give lr")
        options["lr"] = default_rate(rate_factor, **network.depth, steps=options["steps"])
    rules.check(options)
    return options


def usual_clip(*, relative: bool) -> float | Literal["range"]:
    """The bound of latent weights where none is given: in initial ranges where the rate is, else 1."""
    return "range" if relative else 1.0


def plain(value: Any) -> Any:
    """A numpy number as Python's own, which checkpoints can hold."""
    return value.item() if isinstance(value, np.generic) else value


def scale_unit(layer: BinaryLayer) -> float:
    """The learned scale at which outputs are as large as inputs; 1 at the default gain."""
    unit = 1 / (layer.gain * math.sqrt(_inputs(layer)))
    return 1.0 if math.isclose(unit, 1.0) else unit


def _keeps_size(layer: BinaryLayer) -> bool:
    """Whether outputs are about as large as inputs; they are where the scale is constant."""
    size: Any
    if layer.unit is not None:
        size = layer.unit * layer.weight.detach().abs().mean() * math.sqrt(_inputs(layer))
    elif layer.scale is not None:
        size = layer.scale.detach().square().sum(1).mean().sqrt() / scale_unit(layer)
    else:
        return True
    return float(size.full_tensor() if is_sharded(size) else size) >= KEPT_SIZE


def _inputs(layer: BinaryLayer) -> int:
    return math.prod(layer.weight.shape[1:]) // layer.bits
