"""What the kernels of inference are given is checked once, in the binding."""

import numpy as np
import pytest

from qpsbgd_runtime.kernels import kernels

pytestmark = pytest.mark.skipif(not hasattr(kernels, "__file__"), reason="kernels are not compiled")


def byte_layer(images, *, rows=1, units=2, out=None, channels=4):
    """Sums of one pixel each, at `rows` positions."""
    panels, numbers = -(-units // 16), np.zeros(0, np.int64)
    out = np.zeros((len(images), rows, 1, units), np.int32) if out is None else out
    kernels.byte_layer(
        *(images, np.ones((panels, channels // 4, 16, 4), np.int8), np.zeros(16 * panels, np.int32), 0),
        *(np.zeros((rows, 1), np.int64), np.zeros((1, 1), np.int64), *(np.zeros((0, 0), np.int64),) * 2),
        *(numbers, numbers, 0, numbers.astype(np.int32), numbers.astype(np.int32), np.zeros((0, 3), np.int64), out),
    )
    return out


def test_layers_need_positions_and_units():
    images = np.ones((2, 1, 1, 4), np.uint8)
    assert (byte_layer(images) == 4).all()
    for change in ({"rows": 0}, {"units": 0}):
        with pytest.raises(ValueError, match="at least one position and one unit"):
            byte_layer(images, **change)


def test_outputs_must_not_be_inputs():
    memory = np.ones(16, np.uint8)
    with pytest.raises(ValueError, match="share memory"):
        byte_layer(memory[:8].reshape(2, 1, 1, 4), out=memory.view(np.int32).reshape(2, 1, 1, 2))
