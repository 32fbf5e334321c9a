import pytest
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryConv2d
from qpsbgd.optim.recommend import DEEP
from qpsbgd.projections import Spins


def convolutional(depth, norm=lambda: nn.BatchNorm2d(2)):
    return nn.Sequential(*(part for _ in range(depth) for part in (BinaryConv2d(2, 2, 3, padding=1), norm())))


@pytest.mark.parametrize(("depth", "target"), [(DEEP, "polar"), (DEEP - 1, "ridge")])
def test_spins_are_near_to_the_default_of_their_network(depth, target):
    model = convolutional(depth)
    optimizer = QPSBGD(model, projection="spins", steps=10, real=False)
    assert optimizer.param_groups[0]["projection"].target == target
    groups = [{"params": model[:4]}, {"params": model[4:], "projection": Spins(bits=2)}]
    assert [group["projection"].target for group in QPSBGD(groups, solver="exact").param_groups] == [target] * 2
    given = QPSBGD(model, projection=Spins(target="ridge"), steps=10, real=False)
    assert given.param_groups[0]["projection"].target == "ridge"


def test_a_state_that_does_not_fit_leaves_the_chosen_projection():
    model = convolutional(DEEP)
    state = QPSBGD(model, projection="polar", steps=10, real=True).state_dict()
    state["param_groups"][0]["projection"]["unknown"] = 1
    optimizer = QPSBGD(model, steps=10, real=True)
    with pytest.raises(ValueError, match="unknown"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["projection"].name == optimizer.defaults["projection"].name == "polar"
    with pytest.raises(AttributeError, match='"polar" has no solver'):
        _ = optimizer.solver
