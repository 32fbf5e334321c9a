from dataclasses import replace

import numpy as np
import pytest

from qpsbgd_runtime.checks import check
from qpsbgd_runtime.image_operations import AveragePool, Convolution, MaxPool, Window
from qpsbgd_runtime.operations import Clip, Dense, Reshape, Sign, Value, Weights
from qpsbgd_runtime.stages import walk
from qpsbgd_runtime.tensor_operations import (
    Activation,
    Combine,
    Concatenate,
    Embedding,
    Mean,
    Normalize,
    Product,
    Slice,
    Softmax,
    Take,
    Transpose,
)
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Scale, Steps, Threshold

ONES = np.ones
BITS = Weights(ONES((1, 4, 3), bool))
TWO_PLANES = Weights(ONES((2, 4, 3), bool), (0.8, 0.4))
REAL = Weights(ONES((4, 3), np.float32))
WINDOW = Window((2, 2), (1, 1), ((0, 0), (1, 0)), (1, 1))
LINE = Window((2,), (1,), ((0, 1),), (1,))
IMAGE = Weights(ONES((1, 4, 3, 2, 2), bool))
DENSE = Dense("a", BITS, integer=True)
CONVOLUTION = Convolution("a", IMAGE, WINDOW)
THRESHOLD = Threshold("a", ONES(4, np.int32), ONES(4, bool))
SCALE = Scale("a", ONES(4, np.float32), ONES(1, np.float32))
MEAN = AveragePool("a", LINE, False, 1)

STEPS, WIDE = Steps(0, 15, -3), ONES(4, np.int64)
LINES = Requantize("a", WIDE, WIDE, 40, 0 * ONES(4, np.int32), 15 * ONES(4, np.int32), ((0, -3, 7),), STEPS)

MODES, PIXELS = "a window with a mode", "a window of integers"
LEVELS, FINITE = "as many whole levels of 32 bits as directions", "finite factors"
PAIR = np.array([0, 1], np.int32)
WRONG = {
    "integers of 8 bits": [Quantize("a", one) for one in (None, Steps(0, 256, 0), Steps(1, 3, 0), Steps(0, 3, 200))],
    "as many whole factors": [replace(LINES, factors=WIDE[:3]), replace(LINES, offsets=ONES(4))],
    "a shift of 0 to 61": [replace(LINES, shift=62), replace(LINES, shift=True)],
    "results within their steps": [replace(LINES, steps=None), replace(LINES, highs=16 * ONES(4, np.int32))],
    "bounds in order": [replace(LINES, lows=16 * ONES(4, np.int32))],
    "exceptions of units, sums and results": [
        replace(LINES, exceptions=one) for one in (None, ((4, 0, 0),), ((0, 0, 16),), ((0, 0),), ((0, 2**31, 0),), (3,))
    ],
    "units along the first or the last dimension": [
        *(replace(SCALE, axis=axis) for axis in (1, -2, 0.0, True, "0")),
        *(replace(THRESHOLD, axis=1), replace(LINES, axis=1)),
    ],
    "weights, and whether inputs are bits": [
        *(replace(DENSE, weights=None), replace(DENSE, weights=Weights([[True]])), replace(DENSE, integer=1)),
        replace(CONVOLUTION, weights=None),
    ],
    "real or binary weights": [
        replace(DENSE, weights=Weights(array)) for array in (ONES((1, 4), bool), ONES((1, 0, 3), bool), ONES((4, 3)))
    ],
    r"weights \(m, n\)": [replace(DENSE, weights=IMAGE)],
    "finite weights": [replace(DENSE, weights=REAL), Dense("a", Weights(np.full((4, 3), np.nan, np.float32)))],
    "finite coefficients": [Dense("a", Weights(BITS.array, one)) for one in ([1.0], (np.nan,), (1,))],
    "one coefficient a plane": [Dense("a", Weights(BITS.array, (1.0, 2.0))), Dense("a", TWO_PLANES, integer=True)],
    "finite coefficients, one per plane and unit": [
        *(
            Dense("a", Weights(TWO_PLANES.array, one))
            for one in (ONES((2, 3), np.float32), np.float32([[np.inf] * 4] * 2))
        ),
        Dense("a", Weights(BITS.array, ONES((1, 4), np.float32)), integer=True),
    ],
    MODES: [replace(CONVOLUTION, weights=REAL, window=None), MaxPool("a", replace(WINDOW, mode="mirror"))],
    "weights of the window's size": [replace(CONVOLUTION, window=replace(WINDOW, size=(2, 3)))],
    "groups of as many units each": [replace(CONVOLUTION, groups=groups) for groups in (0, 3, 1.0, True)],
    LEVELS: [
        *(replace(THRESHOLD, levels=levels) for levels in (ONES(4), ONES(3, np.int32), ONES((4, 1), np.int32))),
        *(replace(THRESHOLD, flipped=ONES(4, np.int32)), Threshold("a", ONES(0, np.int32), ONES(0, bool))),
    ],
    FINITE: [replace(SCALE, factor=np.full(4, np.inf, np.float32)), replace(SCALE, offset=1.0)],
    "two limits in order": [Clip("a", *ends) for ends in ((1.0, 0.0), (float("nan"), 0.0), ("0", 1.0), (0.0, None))],
    PIXELS: [
        *(MaxPool("a", replace(WINDOW, size=size)) for size in ((2,), (2, 0), [2, 2], (2, 2.0), (2, 2**31))),
        *(MaxPool("a", replace(WINDOW, stride=(1, 0))), MaxPool("a", replace(WINDOW, dilation=(1,)))),
        *(MaxPool("a", replace(WINDOW, sides=sides)) for sides in (((0, 0),), ((0, 0), (-1, 0)), ((0, 0), (0,)), 0)),
        *(
            MaxPool("a", Window((1,) * 3, (1,) * 3, ((0, 0),) * 3, (1,) * 3)),
            replace(MEAN, window=replace(LINE, size=(0,))),
        ),
    ],
    "a window of its dimensions": [replace(MEAN, dimensions=2)],
    "one or two dimensions": [replace(MEAN, dimensions=3), replace(MEAN, counts_padding=0)],
    "numbers of values": [replace(SCALE, inputs=inputs) for inputs in ((-1,), (0.0,), [0], None, (True,))],
    "a function of gelu": [Activation("a", "exp"), Activation("a", []), Activation("a", "gelu", np.nan)],
    "a dimension": [*(Softmax("a", axis) for axis in (0.0, None, 8, -9, True)), Concatenate("a", 8)],
    "a positive number to add": [*(Normalize("a", eps) for eps in (-1.0, np.inf, 1)), Normalize("a", 1.0, 1)],
    "dimensions, and whether to keep them": [*(Mean("a", axes) for axes in ((), 1, (9,))), Mean("a", (0,), 1)],
    "an order of dimensions": [Transpose("a", order) for order in (None, [0], (0.0,), (8,))],
    "a dimension, a start and a stop": [
        Slice("a", *ends) for ends in ((9, 0, 1), (0, -1, 1), (0, 0, 1.0), (0, 0, 1, 1))
    ],
    "a dimension and a finite number": [Take("a", 9, PAIR), Take("a", 0, PAIR, np.inf), Take("a", 0, PAIR, 1)],
    "places from 0 on": [Take("a", 0, places) for places in (ONES(2), -2 * PAIR, [0], PAIR[:0])],
    "a finite table": [Embedding("a", table) for table in (ONES((3, 2)), ONES(3, np.float32), None)],
    "a way of add": [Combine("a", how) for how in ("divide", None, [])],
    "a finite constant or none": [Combine("a", "add", array) for array in (ONES(3), 1.0, np.float32([np.nan]))],
    "a shape of integers": [Reshape("a", shape) for shape in ((0,), (-1, -1), (-2,), [1], (1.0,), None)],
}


@pytest.mark.parametrize("wanted", WRONG)
def test_an_operation_that_cannot_be_is_named_with_what_it_needs(wanted):
    for operation in WRONG[wanted]:
        with pytest.raises(ValueError, match=rf"a \({type(operation).__name__}\) must have {wanted}"):
            check((Reshape("b", (-1,)), operation))


@pytest.mark.parametrize("other", [3, None, BITS, Sign(3)])
def test_what_is_no_operation_is_named_by_its_place(other):
    with pytest.raises(ValueError, match="operation 1 must be one with a name"):
        check((Sign("a"), other))


def test_operations_that_do_not_fit_one_another_are_refused():
    check((Sign("a"), DENSE, THRESHOLD))
    with pytest.raises(ValueError, match="takes 3 units, got shape"):
        check((Sign("a"), DENSE, Threshold("a", ONES(3, np.int32), ONES(3, bool))))


def test_values_of_another_kind_are_refused():
    with pytest.raises(ValueError, match=r"a \(Threshold\) .*ints, got real"):
        check((Dense("a", REAL), THRESHOLD))
    with pytest.raises(ValueError, match=r"a \(Dense\) takes .*bits or int8 or uint8, got real"):
        check((DENSE,))


def test_windows_that_would_take_the_memory_are_refused():
    sides, ones = ((10**9, 10**9),), (1,)
    with pytest.raises(ValueError, match="smaller windows, or images with less padding"):
        MaxPool("a", Window((10**9,), ones, sides, ones)).shape_after((1, 4))
    assert MaxPool("a", Window((8000,), ones, ((0, 0),), ones)).shape_after((1, 16_000)) == (1, 8001)


def test_values_that_do_not_come_before_an_operation_are_refused():
    check((Sign("a"), Sign("b", inputs=(0,))))
    for number in (1, 2, 2**31 - 1):
        with pytest.raises(
            ValueError, match=rf"a \(Sign\) takes the values \({number},\), but only 0 to 0 come before"
        ):
            check((Sign("a", inputs=(number,)), Sign("b")))


def test_operations_that_would_take_the_memory_are_refused_before_they_run():
    """A kilobyte of operations, each of which doubles its input."""
    doubled = tuple(Concatenate("a", 0, inputs=(number, number)) for number in range(60))
    with pytest.raises(ValueError, match=r"a \(Concatenate\) .*memory for \d+ numbers"):
        check(doubled, (1000,))
    check(doubled[:10], (1000,))


def test_only_what_is_needed_at_once_counts_as_memory():
    ends = tuple(Reshape("a", (2**26,)) for _ in range(50))
    assert len(walk(ends, (2**26,))) == 50
    with pytest.raises(ValueError, match="would need memory"):
        walk((*ends, Concatenate("a", 0, inputs=(0, 50))), (2**26,))


@pytest.mark.parametrize("shape", [(), (0,), (-3,), (2.0,), [3], (True,)])
def test_shapes_of_samples_that_cannot_be_are_refused(shape):
    with pytest.raises(ValueError, match="input_shape must be the positive sizes"):
        check((Sign("a"),), shape)


@pytest.mark.parametrize(
    ("operation", "shapes", "wanted"),
    [
        (Combine("a", "add"), [(3,), (2,)], "values of one shape"),
        (Combine("a", "add"), [(3,), (1, 3)], "equally many dimensions"),
        (Combine("a", "add"), [(3,)], "two inputs, got 1"),
        (Combine("a", "add", ONES((2, 3), np.float32)), [(3,)], "equally many dimensions"),
        (Concatenate("a", 0), [(3, 2), (3, 3)], "shapes differ only in dimension 0"),
        (Concatenate("a", 2), [(3, 2), (3, 3)], "a dimension 2"),
        (Product("a"), [(3, 2), (3, 3)], "matrices"),
        (Product("a"), [(2, 3, 2), (1, 2, 3)], "matrices"),
        (Softmax("a", -3), [(3, 2)], "a dimension -3"),
        (Mean("a", (0, 2)), [(3, 2)], "a dimension 2"),
        (Transpose("a", (0, 0)), [(3, 2)], "2 dimensions"),
        (Slice("a", 0, 2, 4), [(3, 2)], "at least 4 numbers along dimension 0"),
        (Take("a", 1, np.array([0, 2], np.int32)), [(3, 2)], "at least 3 numbers along dimension 1"),
        (Slice("a", 0, 0, 2, False), [(3, 2)], "at least 2 numbers"),
        (replace(SCALE, axis=None), [(4, 4)], "4 units"),
        (replace(SCALE, axis=-1), [(4, 3)], "4 units"),
        (Sign("a"), [(3,), (3,)], "one input, got 2"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_what_is_wanted(operation, shapes, wanted):
    with pytest.raises(ValueError, match=rf"a \({type(operation).__name__}\) takes .*{wanted}"):
        operation.result(*(Value("real", shape) for shape in shapes))
