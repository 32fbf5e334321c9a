import copy

import pytest
from small_networks import small_model, train

from qpsbgd import QPSBGD
from qpsbgd.projections import Printed, Ridge, Spins


@pytest.mark.parametrize(("saved", "loaded"), [(Ridge, Spins), (Spins, Printed), (Printed, Ridge)])
def test_a_state_of_another_projection_is_refused_and_says_which_it_was(saved, loaded):
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


@pytest.mark.parametrize("projection", [3, {}, {"name": "spins", "colour": "red"}, {"name": "spins", "bits": 0}])
def test_a_crafted_projection_in_a_state_is_refused(projection):
    optimizer = QPSBGD(small_model(), projection="spins")
    state = optimizer.state_dict()
    state["param_groups"] = [{**group, "projection": projection} for group in state["param_groups"]]
    with pytest.raises(ValueError, match=r"projection|bits"):
        optimizer.load_state_dict(state)
