import pytest
import torch

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear
from qpsbgd.projections import Ridge


@pytest.mark.parametrize(("rows", "penalty"), [(None, 2.25), (32, 1.0)])
def test_of_more_rows_than_the_projection_wants_no_more_are_recorded(rows, penalty):
    layer = BinaryLinear(5, 2)
    optimizer = QPSBGD(layer, projection=Ridge(rows=rows))
    layer(torch.randn(48, 5)).square().sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["penalty"] == penalty  # the square of the rows, in parts of 32
