"""Graphs whose nodes are to be classified: Cora and PubMed in the splits of Planetoid; the karate club."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from qpsbgd_paper.datasets.files import locate

Planetoid = Literal["cora", "pubmed"]

KARATE_BITS, KARATE_PER_CLASS = 6, 5  # bits of a member's number, and training nodes per community


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph with features and classes of its nodes."""

    name: str  # the data set
    features: Tensor  # (N, F), float32
    edge_index: Tensor  # (2, E), long; every edge in both directions, sorted, without loops and repeats
    labels: Tensor  # (N,), long
    train: Tensor  # nodes to train on
    validation: Tensor  # nodes to choose options on; may be empty
    test: Tensor  # nodes to test on

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return int(self.labels.max()) + 1


def load_planetoid(name: Planetoid, *, data: Path | None = None) -> Graph:
    """A citation graph with the public split of Yang et al. (2016).

    Training nodes are 20 of each class, validation nodes the 500 after them, test nodes 1000 that the authors list.
    """
    from torch_geometric.io import read_planetoid_data
    from torch_geometric.utils import to_undirected

    if name not in get_args(Planetoid):
        raise ValueError(f"a graph of Planetoid must be one of {', '.join(get_args(Planetoid))}, got {name!r}")
    # The files are pickles, which can run programs: only those with the published checksums are read.
    parts = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
    folder = {locate(f"planetoid/ind.{name}.{part}", data=data).parent for part in parts}.pop()
    graph = read_planetoid_data(str(folder), name)
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    return Graph(name, graph.x, to_undirected(graph.edge_index), graph.y, *(mask.nonzero()[:, 0] for mask in masks))


def load_karate(*, seed: int = 0) -> Graph:
    """The club with node numbers, 0 to 33, as 6 bits ±1, the highest first, and a split of 20 and 14 nodes by the seed.

    The paper trains on five nodes of each class. One community has only four members: all of them are taken, and one
    more node is drawn from all that are left.
    """
    from torch_geometric.datasets import KarateClub
    from torch_geometric.utils import to_undirected

    club = KarateClub()[0]
    labels = club.y.long()
    num_nodes, num_classes = len(labels), int(labels.max()) + 1

    bits = torch.arange(num_nodes)[:, None] >> torch.arange(KARATE_BITS - 1, -1, -1) & 1
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    chosen = torch.cat([order[labels[order] == label][:KARATE_PER_CLASS] for label in range(num_classes)])
    left = order[~torch.isin(order, chosen)]
    more = KARATE_PER_CLASS * num_classes - len(chosen)
    return Graph(
        name="karate",
        features=2.0 * bits - 1,
        edge_index=to_undirected(club.edge_index),
        labels=labels,
        train=torch.cat([chosen, left[:more]]).sort().values,
        validation=torch.empty(0, dtype=torch.long),
        test=left[more:].sort().values,
    )
