"""What the kernels of inference are given is checked once, in the binding."""

import numpy as np
import pytest

from qpsbgd_runtime.kernels import kernels


def byte_layer(images, *, rows=1, units=2, out=None, channels=4, high=1, wide=1, tap=0):
    """Sums of one pixel each, at `rows` positions."""
    panels, numbers = -(-units // 16), np.zeros(0, np.int64)
    out = np.zeros((len(images), rows, 1, units), np.int32) if out is None else out
    kernels.byte_layer(
        *(images, np.ones((panels, channels // 4, 16, 4), np.int8), np.zeros(16 * panels, np.int32), 0),
        *(np.full((rows, high), tap), np.full((1, wide), tap), *(np.zeros((0, 0), np.int64),) * 2),
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


@pytest.mark.parametrize("shape", [(0, 0, 1, 4), (0, 1, 0, 4), (0, 1, 1, 0)])
def test_images_need_pixels_and_channels(shape):
    with pytest.raises(ValueError, match="images must have at least one pixel and one channel"):
        byte_layer(np.zeros(shape, np.uint8), channels=shape[3], tap=-1)


@pytest.mark.parametrize("side", ["high", "wide"])
def test_windows_need_pixels(side):
    with pytest.raises(ValueError, match="a window must have at least one pixel"):
        byte_layer(np.zeros((0, 1, 1, 4), np.uint8), **{side: 0})


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_sizes_whose_products_may_overflow_are_refused(axis):
    shape = [0, 1, 1, 4]
    shape[axis] = 2**31
    with pytest.raises(ValueError, match="fewer than 2"):
        byte_layer(np.zeros(shape, np.uint8))
