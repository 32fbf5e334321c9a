import sys

import pytest
import torch
from lazy import Lazy

import qpsbgd
from qpsbgd import nn
from qpsbgd.nn.tape import record_rows
from qpsbgd.qubo import binary_map

geometric, graph = Lazy("torch_geometric.nn"), Lazy("qpsbgd.nn.graph")
PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])  # 0 – 1 – 2, and 3 alone


@pytest.mark.parametrize("bits", [1, 2])
def test_it_equals_a_graph_convolution_with_the_same_weights(bits):
    ours, theirs = nn.BinaryGCNConv(3, 2, bits=bits), geometric.GCNConv(3, 2, bias=False)
    theirs.lin.weight.data = ours.quantized_weight * ours.gain
    x = torch.randn(4, 3)
    torch.testing.assert_close(ours(x, PATH), theirs(x, PATH))
    weights = torch.rand(4)
    torch.testing.assert_close(ours(x, PATH, weights), theirs(x, PATH, weights))


def test_a_hand_computed_case():
    layer = nn.BinaryGCNConv(1, 1, gain=1.0)
    with torch.no_grad():
        layer.weight[:] = -0.5
    # Degrees with self loops 2, 3, 2, 1: node 1 gets x1/3 + (x0 + x2)/√6.
    out = layer(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), PATH)
    expected = [1 / 2 + 2 / 6**0.5, 2 / 3 + 4 / 6**0.5, 3 / 2 + 2 / 6**0.5, 4.0]
    torch.testing.assert_close(out[:, 0], -torch.tensor(expected))


def test_the_recorded_rows_are_the_aggregated_features_of_nodes_with_gradient():
    layer = nn.BinaryGCNConv(3, 2)
    x = torch.randn(4, 3)
    with record_rows([layer]) as (tape,):
        layer(x, PATH)[:1].sum().backward()
        record = tape.read()
    edges, weights = graph.normalize_edges(PATH, num_nodes=4)
    dense = torch.zeros(4, 4).index_put((edges[1], edges[0]), weights)
    torch.testing.assert_close(record.inputs, dense @ x)
    family = binary_map(record.inputs, record.output_grads, gain=layer.gain)
    alone = binary_map(record.inputs[:1], record.output_grads[:1], gain=layer.gain)
    torch.testing.assert_close(family.quadratic, alone.quadratic)


def test_a_part_of_a_graph_gives_the_same_as_the_whole():
    layer = nn.BinaryGCNConv(3, 2, normalize=False)
    x = torch.randn(4, 3)
    edges, weights = graph.normalize_edges(PATH, num_nodes=4)
    whole = layer(x, edges, weights)
    into = edges[1] == 0
    torch.testing.assert_close(layer(x, edges[:, into], weights[into])[0], whole[0])


@pytest.mark.parametrize(
    ("x", "edges", "message"),
    [
        (torch.randn(4, 2), PATH, r"shape \(N, 3\)"),
        (torch.randn(4, 3), PATH.T, r"shape \(2, E\)"),
        (torch.randn(2, 3), PATH, "nodes 0 to 1"),
    ],
)
def test_wrong_shapes_are_refused(x, edges, message):
    with pytest.raises(ValueError, match=message):
        nn.BinaryGCNConv(3, 2)(x, edges)


def test_without_torch_geometric_the_install_line_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    monkeypatch.delitem(sys.modules, "qpsbgd.nn.graph", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'qpsbgd\[graph\]'"):
        qpsbgd.nn.BinaryGCNConv  # noqa: B018
