"""Zachary's karate club: 34 members, their friendships, four communities."""

import torch

from qpsbgd_paper.datasets.graphs import Graph, both_directions

NUM_BITS = 6
PER_CLASS = 5


def load_karate(*, seed: int = 0) -> Graph:
    """The club with node numbers in binary as features, and a drawn split of 20 training and 14 test nodes.

    The paper packs the one-hot feature of a node to binary code: here its number, 0 to 33, in 6 bits, the highest
    first, as ±1. It trains on five nodes of each class. One community has only four members: all of them are taken, and
    one more node is drawn from all that are left, so that there are 20 and 14 as in the paper.

    Args:
        seed: Seed of the split.
    """
    try:
        from torch_geometric.datasets import KarateClub
    except ImportError as error:
        raise ImportError("the karate club needs torch_geometric: pip install 'qpsbgd[graph]'") from error
    club = KarateClub()[0]
    labels = club.y.long()
    num_nodes, num_classes = len(labels), int(labels.max()) + 1

    bits = torch.arange(num_nodes)[:, None] >> torch.arange(NUM_BITS - 1, -1, -1) & 1
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(seed))
    chosen = torch.cat([order[labels[order] == label][:PER_CLASS] for label in range(num_classes)])
    left = order[~torch.isin(order, chosen)]
    more = PER_CLASS * num_classes - len(chosen)
    return Graph(
        name="karate",
        features=2.0 * bits - 1,
        edge_index=both_directions(club.edge_index.T.numpy(), num_nodes=num_nodes),
        labels=labels,
        train=torch.cat([chosen, left[:more]]).sort().values,
        validation=torch.empty(0, dtype=torch.long),
        test=left[more:].sort().values,
    )
