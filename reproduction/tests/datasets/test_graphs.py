import pytest
import torch

from qpsbgd_paper.datasets.graphs import load_planetoid

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.*scipy.sparse.csr")


@pytest.fixture(autouse=True)
def _needs_torch_geometric():
    pytest.importorskip("torch_geometric")


def test_an_unknown_graph_is_refused():
    with pytest.raises(ValueError, match="cora, pubmed, got 'reddit'"):
        load_planetoid("reddit")


def test_a_pickle_with_another_checksum_is_not_even_opened(publish, tmp_path):
    parts = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
    folder = publish({f"planetoid/ind.cora.{part}": b"" for part in parts})
    (folder / "planetoid/ind.cora.ally").write_bytes(b"cos\nsystem\n(S'touch " + bytes(tmp_path / "marker") + b"'\ntR.")
    with pytest.raises(ValueError, match=r"ally is not the published planetoid/ind.cora.ally"):
        load_planetoid("cora", data=folder)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("name", "nodes", "features", "classes", "edges", "train"),
    [("cora", 2708, 1433, 7, 5278, 140), ("pubmed", 19717, 500, 3, 44324, 60)],
)
def test_the_published_graphs_have_the_known_sizes(real_data, name, nodes, features, classes, edges, train):
    graph = load_planetoid(name, data=real_data)
    assert graph.features.shape == (nodes, features) and graph.features.dtype == torch.float32
    assert graph.num_nodes == nodes and graph.num_classes == classes
    assert graph.edge_index.shape == (2, 2 * edges) and graph.edge_index.dtype == torch.long
    assert torch.equal(graph.labels[graph.train].bincount(), torch.full((classes,), 20))
    assert (len(graph.train), len(graph.validation), len(graph.test)) == (train, 500, 1000)
    parts = torch.cat([graph.train, graph.validation, graph.test])
    assert len(parts.unique()) == len(parts)


def test_edges_go_both_ways_without_loops(real_data):
    edges = {tuple(pair) for pair in load_planetoid("cora", data=real_data).edge_index.T.tolist()}
    assert all((b, a) in edges and a != b for a, b in edges)
