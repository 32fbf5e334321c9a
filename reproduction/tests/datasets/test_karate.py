import pytest
import torch

from qpsbgd_paper.datasets.graphs import load_karate

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def _needs_torch_geometric():
    pytest.importorskip("torch_geometric")


def test_the_club_has_34_members_78_friendships_and_four_communities():
    club = load_karate()
    assert club.num_nodes == 34 and club.num_classes == 4
    assert club.edge_index.shape == (2, 156)
    pairs = {tuple(pair) for pair in club.edge_index.T.tolist()}
    assert len(pairs) == 156 and all((b, a) in pairs and a != b for a, b in pairs)
    assert sorted(club.labels.bincount().tolist()) == [4, 5, 12, 13]


def test_features_are_node_numbers_in_binary():
    features = load_karate().features
    assert features.shape == (34, 6) and features.dtype == torch.float32
    assert features[0].tolist() == [-1, -1, -1, -1, -1, -1]
    assert features[5].tolist() == [-1, -1, -1, 1, -1, 1]
    assert features[33].tolist() == [1, -1, -1, -1, -1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_five_nodes_of_each_class_and_all_of_the_smallest_are_for_training(seed):
    club = load_karate(seed=seed)
    assert len(club.train) == 20 and len(club.test) == 14 and len(club.validation) == 0
    assert torch.equal(torch.cat([club.train, club.test]).sort().values, torch.arange(34))
    counts = club.labels[club.train].bincount(minlength=4)
    sizes = club.labels.bincount()
    assert bool((counts >= sizes.clamp(max=5)).all()) and counts.max() <= 6


def test_the_seed_decides_the_split():
    assert torch.equal(load_karate(seed=3).train, load_karate(seed=3).train)
    assert len({tuple(load_karate(seed=seed).train.tolist()) for seed in range(10)}) == 10
