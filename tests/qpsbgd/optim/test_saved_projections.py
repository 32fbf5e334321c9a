import copy

import pytest
from small_networks import assert_equal, latent, small_model, train

from qpsbgd import QPSBGD
from qpsbgd.projections import Printed, Ridge, Spins


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


@pytest.mark.parametrize("projection", [3, {}, {"name": "spins", "colour": "red"}, {"name": "spins", "bits": 0}])
def test_a_crafted_projection_in_a_state_is_refused(projection):
    optimizer = QPSBGD(small_model(), projection="spins")
    state = optimizer.state_dict()
    state["param_groups"] = [{**group, "projection": projection} for group in state["param_groups"]]
    with pytest.raises(ValueError, match=r"projection|bits"):
        optimizer.load_state_dict(state)


def test_a_saved_option_that_the_projection_has_not_is_named():
    optimizer = QPSBGD(small_model())
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["projection"] = {**group["projection"], "colour": "red"}
    with pytest.raises(ValueError, match="the saved projection has colour, which ridge has not"):
        optimizer.load_state_dict(state)
