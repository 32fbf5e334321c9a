"""Our solvers as a dimod sampler: `FamilySampler`, of the package `qpsbgd_qubo`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["FamilySampler"]  # noqa: F822  # found by `__getattr__`


def __getattr__(name: str) -> Any:
    if name == "FamilySampler":
        return import_module("qpsbgd_qubo.dimod_sampler").FamilySampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
