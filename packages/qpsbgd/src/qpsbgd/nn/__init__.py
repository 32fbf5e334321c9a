"""Layers with weights ±1; `BinaryGCNConv` needs the extra `graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qpsbgd.nn.activations import QuantActivation, SignActivation
from qpsbgd.nn.attention import ProjectedAttention
from qpsbgd.nn.conversion import convert
from qpsbgd.nn.convolutions import BinaryConv1d, BinaryConv2d
from qpsbgd.nn.layers import BinaryLayer, Gain
from qpsbgd.nn.linear import BinaryLinear
from qpsbgd.nn.model_summary import LayerSummary, ModelSummary, summary
from qpsbgd.nn.straight_through import sign

if TYPE_CHECKING:
    from qpsbgd.nn.graph import BinaryGCNConv as BinaryGCNConv

__all__ = [
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryLayer",
    "BinaryLinear",
    "Gain",
    "LayerSummary",
    "ModelSummary",
    "ProjectedAttention",
    "QuantActivation",
    "SignActivation",
    "convert",
    "sign",
    "summary",
]


def __getattr__(name: str) -> Any:
    # torch_geometric takes a second to load, so it is loaded on first use.
    if name == "BinaryGCNConv":
        from qpsbgd.nn.graph import BinaryGCNConv

        return BinaryGCNConv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
