"""Graphs whose nodes are to be classified: Cora, CiteSeer and PubMed in the splits of Planetoid; the karate club."""

import pickle
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast, final, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qpsbgd_paper.datasets.files import locate

Planetoid = Literal["cora", "citeseer", "pubmed"]
Integers = npt.NDArray[np.int64]

NUM_VALIDATION = 500
KARATE_BITS, KARATE_PER_CLASS = 6, 5  # bits of a member's number, and training nodes per community


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph with features and classes of its nodes."""

    name: str  # the data set
    features: Tensor  # (N, F), float32
    edge_index: Tensor  # (2, E), long; every edge in both directions, sorted, without loops and repeats
    labels: Tensor  # (N,), long; -1 for a node of unknown class, which is in no split
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
    CiteSeer's 15 nodes without features have zeros and the label -1.
    """
    if name not in get_args(Planetoid):
        raise ValueError(f"a graph of Planetoid must be one of {', '.join(get_args(Planetoid))}, got {name!r}")
    x, y, tx, ty, allx, ally, neighbours = (
        read_pickle(locate(f"planetoid/ind.{name}.{part}", data=data))
        for part in ("x", "y", "tx", "ty", "allx", "ally", "graph")
    )
    listed = locate(f"planetoid/ind.{name}.test.index", data=data).read_text(encoding="ascii")
    test = np.array(listed.split(), dtype=np.int64)

    num_nodes = int(test.max()) + 1
    features = np.zeros((num_nodes, x._shape[1]), dtype=np.float32)
    features[: len(ally)] = _dense(allx)
    features[test] = _dense(tx)
    labels = np.full(num_nodes, -1, dtype=np.int64)
    labels[: len(ally)] = ally.argmax(axis=1)
    labels[test] = ty.argmax(axis=1)
    pairs = [(node, other) for node, others in neighbours.items() for other in others]
    return Graph(
        name=name,
        features=torch.from_numpy(features),
        edge_index=both_directions(np.array(pairs, dtype=np.int64), num_nodes=num_nodes),
        labels=torch.from_numpy(labels),
        train=torch.arange(len(y)),
        validation=torch.arange(len(y), len(y) + NUM_VALIDATION),
        test=torch.from_numpy(np.sort(test)),
    )


def load_karate(*, seed: int = 0) -> Graph:
    """The club with node numbers, 0 to 33, as 6 bits ±1, the highest first, and a split of 20 and 14 nodes by the seed.

    The paper trains on five nodes of each class. One community has only four members: all of them are taken, and one
    more node is drawn from all that are left.
    """
    from torch_geometric.datasets import KarateClub

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
        edge_index=both_directions(club.edge_index.T.numpy(), num_nodes=num_nodes),
        labels=labels,
        train=torch.cat([chosen, left[:more]]).sort().values,
        validation=torch.empty(0, dtype=torch.long),
        test=left[more:].sort().values,
    )


def both_directions(pairs: Integers, *, num_nodes: int) -> Tensor:
    """Edges (2, E) in both directions, sorted, without loops and repeats, from pairs of nodes (any number, 2)."""
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    numbers = np.unique(pairs[:, 0] * num_nodes + pairs[:, 1])
    return torch.from_numpy(np.stack([numbers // num_nodes, numbers % num_nodes]))


def read_pickle(path: Path) -> Any:
    """The content of one of Planetoid's files, pickled by Python 2; one that names other classes is refused."""
    with path.open("rb") as file:
        try:
            return _Unpickler(file, encoding="latin1").load()
        except Exception as error:  # damaged bytes are taken for any instruction, and those fail in their own ways
            reason = str(error) or type(error).__name__
            raise ValueError(f"{path} is not a file of Planetoid ({reason}); delete it and fetch it again") from error


@final
class _Unpickler(pickle.Unpickler):
    """Reads a pickle without running anything: only classes that are listed can be named."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which published files do not: it may run code")
        return _CLASSES[module, name]


def _dense(stored: Any) -> npt.NDArray[np.float32]:
    """The matrix of a pickled scipy.sparse.csr_matrix, of which the attributes are there."""
    full = np.zeros(stored._shape, dtype=np.float32)
    full[np.repeat(np.arange(len(full)), np.diff(stored.indptr)), stored.indices] = stored.data
    return full


# Its module has been renamed; every array knows where it is now.
_RECONSTRUCT = cast(tuple[Any, ...], np.empty(0).__reduce__())[0]

_CLASSES: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("scipy.sparse.csr", "csr_matrix"): SimpleNamespace,  # SciPy's own module of this name is going away
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
}
"""Objects that stand for the classes and functions that a pickle names, by module and name."""
