"""The options of a binary optimiser: completed from its arguments and the network, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.recommend import WARMUP, Network, Recommendation, momentum_of
from qpsbgd.parallel.distributed_solver import check_serves_shards
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections import Projection, make_projection
from qpsbgd_qubo.options import AT_LEAST_ONE_OR_NONE, BELOW_ONE, FLAG, NOT_NEGATIVE, POSITIVE, POSITIVE_OR_NONE

_CHECKS: Mapping[str, Any] = MappingProxyType(
    {
        "relative": FLAG,
        "steps": AT_LEAST_ONE_OR_NONE,
        **dict.fromkeys(("warmup", "momentum"), BELOW_ONE),
        **dict.fromkeys(("rate", "weight_decay"), NOT_NEGATIVE),
        **dict.fromkeys(("eps", "threshold"), POSITIVE),
    }
)
"""The values that options may have, by name."""


@dataclass(frozen=True, kw_only=True)
class OptionRules:
    """How one kind of optimiser completes and checks the options of its parameter groups."""

    optimizer: str  # the name of the kind
    norms: bool  # whether the network has norms
    scale_rate_factor: float  # the factor on the rate of learned scales, by depth
    given: frozenset[str]  # the names of the options that the user has given

    @classmethod
    def of(cls, options: Mapping[str, Any], network: Network, optimizer: str, **more: Any) -> OptionRules:
        """The rules of an optimiser with these options; those that are None are not given."""
        needs_depth = options["lr"] is None or any(layer.scale is not None for layer in network.layers)
        return cls(
            optimizer=optimizer,
            norms=bool(network.norm_vectors),
            scale_rate_factor=network.scale_rate_factor if needs_depth else 1.0,
            **{"given": frozenset(name for name, value in options.items() if value is not None), **more},
        )

    def complete(
        self, options: dict[str, Any], defaults: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """A new group's options, with those that follow from them, given the defaults and the groups before it."""
        if options.get("lr") is not None and "relative" not in self.given:
            options = {"relative": False} | options  # as where the rate is an argument
        return {"step": max((group["step"] for group in groups), default=0)} | options

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for an option with a value that it cannot have."""
        NOT_NEGATIVE.checked("lr", options["lr"].item() if isinstance(options["lr"], Tensor) else options["lr"])
        if options.get("clip") != "range":
            POSITIVE_OR_NONE.checked("clip", options["clip"])
        for name, check in _CHECKS.items():
            if name in options:
                check.checked(name, options[name])

    def check_layer(self, layer: BinaryLayer, options: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for a layer that these options cannot train."""


@dataclass(frozen=True, kw_only=True)
class ProjectionRules(OptionRules):
    """The rules of QPSBGD, with what is recommended for its network."""

    recommended: Recommendation

    def complete(
        self, options: dict[str, Any], defaults: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """With the group's projection as an object, and the momentum and bound that go with it."""
        options = super().complete(options, defaults, groups)
        if (name := options.get("projection")) is not None:
            # Groups that name the same projection have one object, and with it one solver.
            known = {group["projection"].name: group["projection"] for group in (defaults, *groups)}
            projection = known[name] if isinstance(name, str) and name in known else make_projection(name)
            options = options | {"projection": projection.with_network_default(self.recommended.projection)}
        if "clip" not in self.given and "relative" in options:
            options = {"clip": usual_clip(relative=options["relative"])} | options
        if "momentum" not in self.given and {"projection", "steps"} & set(options):
            complete = {**defaults, **options}
            options = {"momentum": momentum_of(complete["projection"], complete["steps"])} | options
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

    `rate_factor` is that of the default rate; None where there is no default rate.
    """
    options = {name: python_number(value) for name, value in given.items()} | {"step": 0}
    if options["relative"] is None:
        options["relative"] = options["lr"] is None
    if options["warmup"] is None:
        options["warmup"] = WARMUP if network.norm_vectors else 0.0
    if options["lr"] is None:
        if rate_factor is None:
            raise ValueError(f"{rules.optimizer} needs a learning rate: give lr")
        if not options["relative"]:
            raise ValueError("the default learning rate is relative; leave relative out, or give lr")
        options["lr"] = network.rate(rate_factor, options["steps"])
    rules.check(options)
    return options


def usual_clip(*, relative: bool) -> float | Literal["range"]:
    """The bound of latent weights where none is given: in initial ranges where the rate is, else 1."""
    return "range" if relative else 1.0


def python_number(value: Any) -> Any:
    """A numpy number as Python's own, which checkpoints can hold."""
    return value.item() if isinstance(value, np.generic) else value
