"""Graph convolution with weights ±1, on torch_geometric."""

from typing import Any

from torch import Tensor

from qpsbgd.nn.layers import Gain
from qpsbgd.nn.linear import BinaryLinear

try:
    from torch_geometric.nn import SimpleConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
except ImportError as error:
    raise ImportError("graph layers need torch_geometric: pip install 'qpsbgd[graph]'") from error


class BinaryGCNConv(BinaryLinear):
    """Graph convolution with weights ±1: R = gain · (Â x) Wᵀ + bias, for nodes x of shape (N, in_channels).

    Â = D^(−1/2) (A + I) D^(−1/2) as in GCNConv. Nodes are aggregated before the binary map, so that the map's rows
    are the aggregated features; nodes that no gradient reaches are left out of the QUBO.

    Args:
        in_channels: n.
        out_channels: m.
        gain: "fan_in" for 1/√n, or a number.
        bias: Add a real bias, to be trained by an ordinary optimiser.
        normalize: Add self loops and normalise the edges. False uses edges and weights as given, such as for
            subgraphs whose weights were normalised in the full graph (`normalize_edges`).
        bits: Planes of binary weights, 1 to 8.

    Examples:
        >>> import torch
        >>> from qpsbgd.nn import BinaryGCNConv
        >>> edges = torch.tensor([[0, 1], [1, 0]])
        >>> BinaryGCNConv(3, 2)(torch.ones(2, 3), edges).shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = False,
        *,
        gain: Gain = "fan_in",
        normalize: bool = True,
        bits: int = 1,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_channels, out_channels, bias, gain=gain, bits=bits, device=device, dtype=dtype)
        self.normalize = normalize
        self.neighbours = SimpleConv(aggr="sum")

    def forward(  # type: ignore[override]
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None
    ) -> Tensor:
        """R for the nodes x (N, n) of a graph with edges (2, E), source and target, and weights (E,)."""
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"nodes must have shape (N, {self.in_features}), got {tuple(x.shape)}")
        if self.normalize:
            edge_index, edge_weight = normalize_edges(edge_index, edge_weight, num_nodes=len(x), like=x)
        rows: Tensor = self.neighbours(x, edge_index, edge_weight)
        return super().forward(rows)

    def extra_repr(self) -> str:
        """The arguments that make this layer, for `repr`."""
        return f"{super().extra_repr()}, normalize={self.normalize}"


def normalize_edges(
    edge_index: Tensor, edge_weight: Tensor | None = None, *, num_nodes: int, like: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Edges with self loops and the weights of Â = D^(−1/2) (A + I) D^(−1/2).

    Args:
        edge_index: Edges (2, E), both directions of an undirected graph.
        edge_weight: Weights (E,), all ones if none are given.
        num_nodes: N.
        like: A tensor whose dtype the weights get.
    """
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape (2, E), got {tuple(edge_index.shape)}")
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise ValueError(
            f"edges must join nodes 0 to {num_nodes - 1}, got {int(edge_index.min())} to {int(edge_index.max())}"
        )
    edges, weights = gcn_norm(edge_index, edge_weight, num_nodes, dtype=None if like is None else like.dtype)
    return edges, weights
