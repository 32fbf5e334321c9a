import pytest
import torch
from torch import nn

from qpsbgd import binarize
from qpsbgd.binarization import mixed_bits


@pytest.fixture
def model():
    """A layer of two values per output, which one bit holds exactly, between two that want more bits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24))
    with torch.no_grad():
        model[1].weight.copy_(torch.where(torch.rand(24, 24) < 0.5, 0.2, -0.2))
    return model


def test_bits_go_where_they_save_most(model):
    data = [torch.randn(300, 24)]
    bits = mixed_bits(model, data, average=2.0, first=True, last=True)
    assert bits["1"] == 1
    assert sum(bits.values()) == 6 and min(bits["0"], bits["2"]) >= 2
    mixed = binarize(model, data, bits=bits, first=True, last=True).report
    plain = binarize(model, data, bits=2, first=True, last=True).report
    assert mixed.bits_per_weight == 2
    assert sum(row.lost for row in mixed.rows) < sum(row.lost for row in plain.rows)


def test_the_mean_is_over_weights_and_generators_are_read_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 8))
    bits = mixed_bits(model, (torch.randn(50, 8) for _ in range(2)), average=1.6, most=2, first=True, last=True)
    assert sorted(bits.values()) == [1, 2]  # both layers have 320 weights; 2 and 2 would be too many


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": 0.5}, "average must be from 1 to most=4"),
        ({"average": float("nan")}, "average must be"),
        ({"most": 9}, "most must be a whole number from 1 to 8"),
        ({"most": True}, "most must be"),
        ({"average": 5}, "average must be"),
    ],
)
def test_ranges_are_checked(model, options, message):
    with pytest.raises(ValueError, match=message):
        mixed_bits(model, [torch.randn(30, 24)], **options)


def test_a_bit_goes_only_where_all_weights_of_the_layer_fit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 30))  # 120 and 900 weights
    data = [torch.randn(60, 4)]
    for average, expected in ((1.11, {"0": 1, "2": 1}), (1.12, {"0": 2, "2": 1})):
        assert mixed_bits(model, data, average=average, most=2, first=True, last=True) == expected
