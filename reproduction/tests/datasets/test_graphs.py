import pickle

import numpy as np
import pytest
import torch
from python2_pickles import Malicious, array, number

from qpsbgd_paper.datasets.graphs import load_planetoid, read_pickle


def matrix(dense):
    """A scipy.sparse.csr_matrix as Python 2 pickled it."""
    dense = np.asarray(dense, dtype=np.float32)
    rows, columns = dense.nonzero()
    starts = np.concatenate([[0], np.bincount(rows, minlength=len(dense)).cumsum()]).astype(np.int32)
    parts = {b"indptr": starts, b"indices": columns.astype(np.int32), b"data": dense[rows, columns]}
    state = b"".join(b"U" + bytes([len(name)]) + name + array(part) for name, part in parts.items())
    shape = b"U\x06_shape" + number(dense.shape[0]) + number(dense.shape[1]) + b"\x86"
    return b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(" + shape + state + b"ub"


def lists(neighbours):
    """A defaultdict of lists as Python 2 pickled it."""
    items = (number(node) + b"](" + b"".join(map(number, others)) + b"e" for node, others in neighbours.items())
    return b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(" + b"".join(items) + b"u"


@pytest.fixture
def small(publish):
    """CiteSeer with 2 training nodes, 1 more, and test nodes 3, 5, 6, listed in another order; node 4 is missing."""
    parts = {
        "x": matrix([[1, 0, 1], [0, 1, 0]]),
        "y": array(np.array([[1, 0], [0, 1]], dtype=np.int32)),
        "allx": matrix([[1, 0, 1], [0, 1, 0], [0, 0, 1]]),
        "ally": array(np.array([[1, 0], [0, 1], [0, 1]], dtype=np.int32)),
        "tx": matrix([[1, 1, 1], [0, 0, 1], [1, 1, 0]]),
        "ty": array(np.array([[1, 0], [0, 1], [1, 0]], dtype=np.int32)),
        "graph": lists({0: [1, 1, 2], 1: [0], 2: [2], 5: [6], 4: []}),
    }
    content = {f"planetoid/ind.citeseer.{part}": b"\x80\x02" + raw + b"." for part, raw in parts.items()}
    return publish(content | {"planetoid/ind.citeseer.test.index": b"6\n3\n5\n"})


def test_rows_of_tx_go_to_the_nodes_that_are_listed(small):
    graph = load_planetoid("citeseer", data=small)
    assert graph.features[[6, 3, 5]].tolist() == [[1, 1, 1], [0, 0, 1], [1, 1, 0]]
    assert graph.features[:3].tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert graph.labels.tolist() == [0, 1, 1, 1, -1, 0, 0]
    assert graph.num_nodes == 7 and graph.num_classes == 2


def test_a_missing_node_has_zeros_and_is_in_no_split(small):
    graph = load_planetoid("citeseer", data=small)
    assert graph.features[4].tolist() == [0, 0, 0]
    assert graph.train.tolist() == [0, 1] and graph.test.tolist() == [3, 5, 6]


def test_edges_go_both_ways_without_loops_and_repeats(small):
    edges = load_planetoid("citeseer", data=small).edge_index
    assert edges.T.tolist() == [[0, 1], [0, 2], [1, 0], [2, 0], [5, 6], [6, 5]]


def test_an_unknown_graph_is_refused():
    with pytest.raises(ValueError, match="cora, citeseer, pubmed, got 'reddit'"):
        load_planetoid("reddit")


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_that_would_run_a_program_is_refused(tmp_path, protocol):
    marker, path = tmp_path / "marker", tmp_path / "ind.cora.x"
    path.write_bytes(pickle.dumps(Malicious(f"touch {marker}"), protocol=protocol))
    with pytest.raises(ValueError, match=r"ind.cora.x is not a file of Planetoid \(it names (posix|nt).system"):
        read_pickle(path)
    assert not marker.exists()


@pytest.mark.parametrize("name", [b"builtins\neval", b"__builtin__\neval", b"numpy\nload", b"numpy\nndarray.tofile"])
def test_only_the_classes_of_the_published_files_can_be_named(tmp_path, name):
    path = tmp_path / "file"
    path.write_bytes(b"\x80\x02c" + name + b"\n.")
    with pytest.raises(ValueError, match="it names"):
        read_pickle(path)


def test_a_pickle_with_another_checksum_is_not_even_opened(small, monkeypatch):
    (small / "planetoid/ind.citeseer.x").write_bytes(b"\x80\x02cos\nsystem\n.")
    monkeypatch.setattr("qpsbgd_paper.datasets.graphs.read_pickle", None)
    with pytest.raises(ValueError, match=r"x is not the published planetoid/ind.citeseer.x"):
        load_planetoid("citeseer", data=small)


@pytest.mark.parametrize(
    ("name", "nodes", "features", "classes", "edges", "train"),
    [
        ("cora", 2708, 1433, 7, 5278, 140),
        ("citeseer", 3327, 3703, 6, 4552, 120),
        ("pubmed", 19717, 500, 3, 44324, 60),
    ],
)
def test_the_published_graphs_have_the_known_sizes(real_data, name, nodes, features, classes, edges, train):
    graph = load_planetoid(name, data=real_data)
    assert graph.features.shape == (nodes, features) and graph.features.dtype == torch.float32
    assert graph.num_nodes == nodes and graph.num_classes == classes
    assert graph.edge_index.shape == (2, 2 * edges) and graph.edge_index.dtype == torch.long
    assert torch.equal(graph.labels[graph.train].bincount(), torch.full((classes,), 20))
    assert (len(graph.train), len(graph.validation), len(graph.test)) == (train, 500, 1000)
    parts = torch.cat([graph.train, graph.validation, graph.test])
    assert len(parts.unique()) == len(parts) and bool((graph.labels[parts] >= 0).all())
    assert int((graph.labels < 0).sum()) == (15 if name == "citeseer" else 0)
