import copy
from dataclasses import dataclass

import pytest
import torch
from small_networks import assert_equal, latent, small_model, train
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.projections import PROJECTIONS, Printed, Ridge, Spins, SystemProjection


@dataclass(frozen=True)
class SignOfTheRidge(SystemProjection):
    """The signs of the ridge's answer, without a QUBO."""

    name = "sign-of-the-ridge"

    def directions(self, systems, shared):
        return [system.answer(system.solved().sign()) for system in systems]


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

    def directions(self, systems, shared):
        return [system.answer(system.solved()) for system in systems]

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


def test_every_projection_is_registered_by_its_name_and_describes_itself_in_plain_values():
    for name, kind in PROJECTIONS.items():
        described = kind().describe()
        assert described["name"] == name
        assert all(isinstance(value, int | float | str | None) for value in described.values())


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


@pytest.mark.parametrize("saved", [Ridge, Spins, Printed])
@pytest.mark.parametrize("loaded", [Ridge, Spins, Printed])
def test_a_state_of_another_projection_is_refused_and_says_which_it_was(saved, loaded):
    if saved is loaded:
        return
    model = small_model()
    optimizer = QPSBGD(model, projection=saved(), momentum=0.9)
    train(model, optimizer, range(2))
    other = QPSBGD(small_model(), projection=loaded())
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=f'saved with projection="{saved.name}", but this optimiser has'):
        other.load_state_dict(optimizer.state_dict())
    assert other.state_dict()["param_groups"] == before["param_groups"]


def test_options_of_a_saved_projection_come_back_with_the_state():
    model = small_model()
    optimizer = QPSBGD(model, projection=Spins(kappa=2.5, bits=2, solver="exact"))
    train(model, optimizer, range(2))
    other = QPSBGD(small_model(), projection=Spins(solver="exact"))
    other.load_state_dict(optimizer.state_dict())
    projection = other.param_groups[0]["projection"]
    assert (projection.kappa, projection.bits) == (2.5, 2)
    assert other.solver == optimizer.solver


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"scale": "literal"}, r"Printed\(scale=\"literal\"\)"),
        ({"scale": 4.0}, r"Spins\(kappa=4.0\)"),
        ({"ridge": 3.0}, r"Ridge\(delta=3.0\)"),
        ({"memory": 0.5}, r"Ridge\(memory=0.5\)"),
        ({"refresh": 5}, r"Ridge\(refresh=5\)"),
        ({"block": 64}, r"Ridge\(block=64\)"),
        ({"rows": None}, r"Ridge\(rows=None\)"),
    ],
)
def test_old_spellings_say_the_new_one(old, new):
    with pytest.raises(TypeError, match=new):
        QPSBGD(small_model(), **old)
    with pytest.raises(TypeError, match=new):
        QPSBGD([{"params": small_model(), **old}])


def test_an_option_that_never_was_is_refused():
    with pytest.raises(TypeError, match="QPSBGD has no option 'learning_rate'"):
        QPSBGD(small_model(), learning_rate=0.1)


def old_group(group, **options):
    """A parameter group as version 0.1 saved it."""
    plain = {name: value for name, value in group.items() if name != "projection"}
    return {
        **plain,
        "scale": 1.0,
        "ridge": "auto",
        "memory": 0.9,
        "refresh": 20,
        "block": 1024,
        "rows": 2048,
        **options,
    }


def test_ridge_states_of_version_0_1_are_loaded():
    model, fresh = small_model(), small_model(seed=9)
    optimizer = QPSBGD(model, projection=Ridge(delta=3.0))
    train(model, optimizer, range(4))
    state = optimizer.state_dict()
    state["param_groups"] = [old_group(group, projection="ridge", ridge=3.0) for group in state["param_groups"]]
    fresh.load_state_dict(model.state_dict())
    resumed = QPSBGD(fresh)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0]["projection"] == Ridge(delta=3.0)
    assert_equal(train(model, optimizer, range(4, 9)), train(fresh, resumed, range(4, 9)))


def test_literal_states_of_version_0_1_are_loaded_and_those_of_its_spins_refused_with_the_reason():
    model, fresh = small_model(), small_model(seed=9)
    optimizer = QPSBGD(model, projection="printed", momentum=0.9)
    train(model, optimizer, range(4))
    state = optimizer.state_dict()
    single = {
        number: {name: value if name == "step" else value[0] for name, value in kept.items()}
        for number, kept in state["state"].items()
    }
    groups = [old_group(group, projection="spins", scale="literal") for group in state["param_groups"]]
    fresh.load_state_dict(model.state_dict())
    resumed = QPSBGD(fresh, projection="printed", momentum=0.9)
    resumed.load_state_dict({"state": single, "param_groups": groups})
    assert_equal(train(model, optimizer, range(4, 9)), train(fresh, resumed, range(4, 9)))
    groups = [{**group, "scale": 1.0} for group in groups]
    before = latent(fresh)
    for projection in ("spins", "printed"):
        with pytest.raises(ValueError, match=r"spins of version 0\.1.*start the optimiser anew"):
            QPSBGD(fresh, projection=projection).load_state_dict({"state": single, "param_groups": groups})
    assert_equal(latent(fresh), before)


def test_a_group_that_is_added_later_has_the_solver_that_was_set_meanwhile():
    model = small_model()
    optimizer = QPSBGD(model[0], projection="spins")
    optimizer.solver = "exact"
    optimizer.add_param_group({"params": model[2]})
    assert optimizer.param_groups[0]["projection"] is optimizer.param_groups[1]["projection"]
    named = small_model()
    optimizer.add_param_group({"params": named, "projection": "spins"})
    assert optimizer.param_groups[2]["projection"] is optimizer.param_groups[0]["projection"]


@pytest.mark.parametrize("projection", [3, {}, {"name": "spins", "colour": "red"}, {"name": "spins", "bits": 0}])
def test_a_crafted_projection_in_a_state_is_refused(projection):
    optimizer = QPSBGD(small_model(), projection="spins")
    state = optimizer.state_dict()
    state["param_groups"] = [{**group, "projection": projection} for group in state["param_groups"]]
    with pytest.raises(ValueError, match=r"projection|bits"):
        optimizer.load_state_dict(state)


def test_a_system_that_cannot_be_factorised_names_its_layer(monkeypatch):
    layer = BinaryLinear(3, 2)
    optimizer = QPSBGD(layer, projection=Ridge(delta=1e-30))
    monkeypatch.setattr("torch.linalg.cholesky_ex", lambda matrix: (matrix, torch.ones(1, dtype=torch.int32)))
    layer(torch.ones(4, 3)).sum().backward()
    with pytest.raises(ValueError, match=r"BinaryLinear\(3, 2.*too alike for δ = 1e-30"):
        optimizer.step()


@pytest.mark.parametrize("projection", ["ridge", "spins", "printed"])
def test_a_scaled_gradient_in_half_precision_is_unscaled_in_single(projection):
    model = small_model(torch.float16)
    optimizer = QPSBGD(model, projection=projection, momentum=0.9)
    (2.0**8 * model(torch.randn(8, 4).half()).float().square().mean()).backward()
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0**8), torch.tensor(0.0)
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert {value.dtype for value in kept if value.is_floating_point()} == {torch.float32}
