"""Projections: from what a layer saw to the direction of its step.

A new projection is one file with a subclass of `Projection`, mostly of `SystemProjection`, and one line in
`PROJECTIONS`; an object of the class can be passed without that line.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from qpsbgd.projections.polar import Polar
from qpsbgd.projections.printed import Printed
from qpsbgd.projections.protocol import Capabilities, Direction, LayerInputs, LayerState, Projection
from qpsbgd.projections.ridge import Ridge
from qpsbgd.projections.solving import TRAINING
from qpsbgd.projections.spins import Spins
from qpsbgd.projections.system import System, SystemProjection, SystemState

PROJECTIONS: Mapping[str, type[Projection]] = MappingProxyType(
    {kind.name: kind for kind in (Ridge, Spins, Polar, Printed)}
)
"""Name → class."""


def make_projection(projection: Any, **options: Any) -> Projection:
    """The projection of this name with these options; an object is returned as it is.

    Raises:
        ValueError: The name is unknown.
        TypeError: Something else was given, or the projection has no such option.
    """
    if isinstance(projection, Projection):
        if options:
            raise TypeError(
                f"{', '.join(options)} belongs in the projection: {type(projection).__name__}"
                f"({', '.join(f'{name}=…' for name in options)})"
            )
        return projection
    if isinstance(projection, type) and issubclass(projection, Projection):
        raise TypeError(f"projection must be an object, not a class: write {projection.__name__}()")
    if not isinstance(projection, str) or projection not in PROJECTIONS:
        names = ", ".join(f'"{name}"' for name in PROJECTIONS)
        raise ValueError(f"projection must be one of {names} or an object such as Spins(bits=2), got {projection!r}")
    return PROJECTIONS[projection](**options)


__all__ = [
    "PROJECTIONS",
    "TRAINING",
    "Capabilities",
    "Direction",
    "LayerInputs",
    "LayerState",
    "Polar",
    "Printed",
    "Projection",
    "Ridge",
    "Spins",
    "System",
    "SystemProjection",
    "SystemState",
    "make_projection",
]
