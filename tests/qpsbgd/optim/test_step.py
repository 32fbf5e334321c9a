import pytest
import torch

from qpsbgd.nn import BinaryLinear
from qpsbgd.optim.step import Share, advance
from qpsbgd.projections import Direction, Projection, Seen


class Ones(Projection):
    name = "ones"

    def answers(self, seen, shared):
        return [Direction(torch.ones_like(one.layer.weight)) for one in seen]


def test_the_layers_of_a_projection_share_the_time_between_two_looks_at_the_clock():
    projections, ticks = [Ones(), Ones()], iter([100.0, 102.5, 110.0, 111.0])
    shares = []
    for projection in (projections[0], projections[1], projections[0]):
        layer = BinaryLinear(2, 2)
        layer.weight.requires_grad_(False)
        shares.append(Share(Seen(layer, layer.weight, None, 0.0, {}, {}), projection, 0.1, 1.0, {}, {}))
    assert [answer.seconds for answer in advance(shares, lambda solver: solver, lambda: next(ticks))] == [2.5, 1.0, 2.5]
    assert [answer.seconds for answer in advance(shares, lambda solver: solver)] == pytest.approx([0.0, 0.0, 0.0])
