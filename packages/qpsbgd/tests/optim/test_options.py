"""The options of an optimiser, completed from its arguments and the network without an optimiser."""

import pytest
from torch import nn

from qpsbgd import Bop
from qpsbgd.nn import BinaryLinear
from qpsbgd.optim.options import OptionRules, resolve_defaults
from qpsbgd.optim.parameters import param_groups
from qpsbgd.optim.recommend import Network

GIVEN = {"lr": None, "relative": None, "warmup": None, "steps": 10_000, "clip": 1.0}


def resolved(model, **given):
    given = {**GIVEN, **given}
    network = Network.of(param_groups(model))
    return resolve_defaults(given, network, OptionRules.of(given, network, "Test"), rate_factor=0.25)


def test_a_network_with_norms_gets_a_relative_rate_and_a_warm_up():
    model = nn.Sequential(BinaryLinear(4, 4), nn.LayerNorm(4), BinaryLinear(4, 2))
    expected = {"lr": pytest.approx(0.025), "relative": True, "warmup": 0.1, "step": 0}
    assert resolved(model) == {**GIVEN, **expected}


def test_what_is_given_stays():
    given = {"lr": 0.3, "relative": True, "warmup": 0.25}
    assert resolved(nn.Sequential(BinaryLinear(4, 4), nn.LayerNorm(4)), **given) == {**GIVEN, **given, "step": 0}


def test_a_given_rate_is_absolute_and_a_network_without_norms_needs_no_warm_up():
    options = resolved(BinaryLinear(4, 4), lr=0.3)
    assert (options["relative"], options["warmup"]) == (False, 0.0)


def test_a_kind_without_a_default_rate_asks_for_one():
    with pytest.raises(ValueError, match="Bop needs a learning rate: give lr"):
        Bop(BinaryLinear(4, 4), None)


def test_layers_in_several_groups_count_once_in_the_order_of_the_groups():
    first, second = BinaryLinear(4, 4), BinaryLinear(4, 4)
    groups = [{"params": [second]}, {"params": [first]}, {"params": nn.Sequential(second, nn.BatchNorm1d(4))}]
    network = Network.of(param_groups(groups))
    assert list(network.layers) == [second, first]
    assert network.norm_vectors == 2
