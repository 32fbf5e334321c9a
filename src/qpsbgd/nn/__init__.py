"""Layers with weights ±1; `BinaryGCNConv` needs the extra `graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qpsbgd.nn.fused import watch_fused_paths
from qpsbgd.nn.layers import BinaryConv2d, BinaryLayer, BinaryLinear, Gain, sign

if TYPE_CHECKING:
    from qpsbgd.nn.graph import BinaryGCNConv as BinaryGCNConv

__all__ = ["BinaryConv2d", "BinaryLayer", "BinaryLinear", "Gain", "sign"]

watch_fused_paths()


def __getattr__(name: str) -> Any:
    # torch_geometric takes a second to load, so it is loaded on first use.
    if name == "BinaryGCNConv":
        from qpsbgd.nn.graph import BinaryGCNConv

        return BinaryGCNConv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
