import numpy as np
import pytest
import torch
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryConv2d, BinaryLinear


def steps(packed, x):
    packed(x.numpy())
    return len(packed._plan.steps)


def close(packed, model, x):
    with torch.no_grad():
        np.testing.assert_allclose(packed(x.numpy()), model.eval()(x).numpy(), rtol=1e-4, atol=1e-4)


class Shared(nn.Module):
    """A value that is needed as it is, and clipped, scaled and added."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = BinaryConv2d(2, 17, 3, padding=1), nn.BatchNorm2d(17), BinaryLinear(17, 3)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        y = self.first(x)
        return self.last((torch.relu(y) + self.norm(y) + y).mean((2, 3)))


def test_a_value_that_several_operations_need_stays_as_it_is():
    model, x = Shared().eval(), torch.randn(5, 2, 6, 7)
    packed = pack(model)
    close(packed, model, x)
    assert steps(packed, x) == 1


@pytest.mark.parametrize("units", [10, 64, 100])
def test_outputs_hardly_depend_on_how_many_rows_come_at_once(units):
    packed = pack(nn.Sequential(BinaryLinear(130, units), nn.ReLU(), BinaryLinear(units, 7)))
    rows = np.random.default_rng(0).standard_normal((200, 130), np.float32)
    whole = packed(rows)
    for size in (1, 2, 3, 4, 5, 9, 65):
        parts = [packed(rows[begin : begin + size]) for begin in range(0, 200, size)]
        np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-5)


def test_numbers_that_overflow_between_operations_are_not_refused():
    layer = BinaryLinear(4, 2, gain=1e30)
    model = nn.Sequential(layer, BinaryLinear(2, 2, gain=1e30))
    assert not np.isfinite(pack(model)(np.full((1, 4), 1e30, np.float32))).all()
