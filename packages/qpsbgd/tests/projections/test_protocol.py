import copy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from small_networks import small_model, train
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.nn.tape import LayerMoments
from qpsbgd.optim import cuda_graph
from qpsbgd.optim.functional import LayerUpdate
from qpsbgd.projections import LayerInputs, Ridge, SystemProjection, SystemState


@dataclass(frozen=True)
class SignOfTheRidge(SystemProjection):
    """The signs of the ridge's answer, without a QUBO."""

    name = "sign-of-the-ridge"

    def solve(self, systems):
        return [system.direction(system.solution().sign()) for system in systems]


def test_a_projection_in_ten_lines_trains():
    torch.manual_seed(0)
    x = torch.randn(300, 20)
    targets = (x @ torch.randn(20) > 0).long()
    model = nn.Sequential(BinaryLinear(20, 32), nn.Hardtanh(), BinaryLinear(32, 2))
    optimizer = QPSBGD(model, projection=SignOfTheRidge(refresh=5), steps=150)
    for rows in torch.randint(0, 300, (150, 50)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), targets[rows]).backward()
        optimizer.step()
    assert (model(x).argmax(1) == targets).float().mean() > 0.9
    twin = copy.deepcopy(model)
    resumed = QPSBGD(twin, projection=SignOfTheRidge(), steps=150)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.param_groups[0]["projection"] == SignOfTheRidge(refresh=5)


@dataclass(frozen=True)
class DenseOnly(SystemProjection):
    name = "dense-only"

    def solve(self, systems):
        return [system.direction(system.solution()) for system in systems]

    def check(self, layer):
        if not isinstance(layer, BinaryLinear):
            raise TypeError(f"{layer} is not a dense layer")


def test_a_projection_may_refuse_a_layer_before_anything_changes():
    with pytest.raises(TypeError, match=r"BinaryConv2d.*is not a dense layer"):
        QPSBGD(BinaryConv2d(1, 2, 3), projection=DenseOnly())
    model = small_model()
    optimizer = QPSBGD(model, projection="spins")
    with pytest.raises(TypeError, match="is not a dense layer"):
        optimizer.add_param_group({"params": BinaryConv2d(1, 2, 3), "projection": DenseOnly()})
    assert len(optimizer.param_groups) == 1
    train(model, optimizer, range(2))


def test_groups_that_name_a_projection_share_one_object_and_take_its_momentum():
    model = small_model()
    groups = [{"params": model[0], "projection": "printed"}, {"params": model[2]}]
    optimizer = QPSBGD(groups, projection="spins")
    printed, spins = optimizer.param_groups
    assert (printed["projection"].name, printed["momentum"]) == ("printed", 0.0)
    assert (spins["projection"].name, spins["momentum"]) == ("spins", 0.9)
    given = QPSBGD(groups, projection="spins", momentum=0.5)
    assert [group["momentum"] for group in given.param_groups] == [0.5, 0.5]
    both = QPSBGD([{"params": model[0], "projection": "spins"}, {"params": model[2]}], projection="spins")
    assert both.param_groups[0]["projection"] is both.param_groups[1]["projection"]


def test_a_system_that_cannot_be_factorised_names_its_layer(monkeypatch):
    layer = BinaryLinear(3, 2)
    optimizer = QPSBGD(layer, projection=Ridge(delta=1e-30))
    monkeypatch.setattr("torch.linalg.cholesky_ex", lambda matrix: (matrix, torch.ones(1, dtype=torch.int32)))
    layer(torch.ones(4, 3)).sum().backward()
    with pytest.raises(ValueError, match=r"BinaryLinear\(3, 2.*too similar for δ = 1e-30"):
        optimizer.step()


@pytest.mark.parametrize(("projection", "steady"), [(SignOfTheRidge(), False), (Ridge(), True)])
def test_only_steps_that_a_projection_declares_capturable_become_graphs(projection, steady):
    weight = SimpleNamespace(is_cuda=True)
    state = SystemState(1, torch.ones(2, 3), inverse=torch.eye(3)[None])
    for record in (None, LayerMoments(torch.eye(3)[None], 8)):
        inputs = LayerInputs(BinaryLinear(3, 2), torch.ones(2, 3), record, 0.9, state)
        assert cuda_graph._capturable(LayerUpdate(weight, inputs, projection, 0.1, 1.0)) == steady
