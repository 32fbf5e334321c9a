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

RIGHT = [
    *(Quantize("a", STEPS), Quantize("a", Steps(-128, 127, 0)), LINES, replace(LINES, exceptions=())),
    *(Dense("a", REAL), Dense("a", TWO_PLANES), CONVOLUTION, Convolution("a", IMAGE, WINDOW, groups=2)),
    *(THRESHOLD, SCALE, Clip("a", 0.0, float("inf")), Clip("a", 1, 1), MaxPool("a", WINDOW), MaxPool("a", LINE)),
    *(MEAN, AveragePool("a", None, True, 2), Reshape("a", (-1,)), Reshape("a", (1, 6, 6)), Sign("")),
]
RIGHT += [
    *(
        Dense("a", Weights(TWO_PLANES.array, ONES((2, 4), np.float32))),
        replace(SCALE, axis=-1),
        replace(SCALE, axis=None),
    ),
    *(Activation("a", "gelu"), Activation("a", "leaky relu", 0.5), Softmax("a", -1), Normalize("a", 1e-5, False)),
    *(
        Mean("a", (1, 2), True),
        Transpose("a", (1, 0)),
        Slice("a", 0, 1, 2, False),
        Combine("a", "add", ONES(3, np.float32)),
    ),
    *(Take("a", -1, np.array([0, -1, 2], np.int32), 0.5), Embedding("a", ONES((3, 2), np.float32))),
    *(Combine("a", "multiply", inputs=(0, 0)), Concatenate("a", 0, inputs=(0, 0, 0)), Product("a", inputs=(0, 0))),
]
FINITE, COEFFICIENTS, WHOLE = "finite weights", "finite coefficients", "a window of integers"
WRONG = [
    *(
        (Quantize("a", steps), "integers of 8 bits")
        for steps in (None, Steps(0, 256, 0), Steps(-1, 128, 0), Steps(1, 3, 0), Steps(0, 3.0, 0), Steps(0, 3, 200))
    ),
    (replace(LINES, factors=WIDE[:3]), "as many whole factors"),
    (replace(LINES, offsets=ONES(4)), "as many whole factors"),
    (replace(LINES, shift=62), "a shift of 0 to 61"),
    (replace(LINES, shift=True), "a shift of 0 to 61"),
    (replace(LINES, steps=None), "results within their steps"),
    (replace(LINES, highs=16 * ONES(4, np.int32)), "results within their steps"),
    (replace(LINES, lows=16 * ONES(4, np.int32)), "bounds in order"),
    *(
        (replace(LINES, exceptions=given), "exceptions of units, sums and results")
        for given in (None, ((4, 0, 0),), ((0, 0, 16),), ((0, 0),), ((-1, 0, 0),), ((0, 2**31, 0),), (3,))
    ),
    (replace(LINES, axis=1), "units along the first or the last dimension"),
    (replace(DENSE, weights=None), "weights, and whether inputs are bits"),
    (replace(DENSE, weights=Weights([[True]])), "weights, and whether inputs are bits"),
    (replace(DENSE, integer=1), "weights, and whether inputs are bits"),
    (replace(DENSE, weights=Weights(ONES((1, 4), bool))), "real or binary weights"),
    (replace(DENSE, weights=Weights(ONES((1, 0, 3), bool))), "real or binary weights"),
    (replace(DENSE, weights=Weights(ONES((4, 3)))), "real or binary weights"),
    (replace(DENSE, weights=IMAGE), r"weights \(m, n\)"),
    (replace(DENSE, weights=REAL), FINITE),
    (Dense("a", Weights(np.full((4, 3), np.nan, np.float32))), FINITE),
    (Dense("a", Weights(BITS.array, [1.0])), COEFFICIENTS),
    (Dense("a", Weights(BITS.array, (np.nan,))), COEFFICIENTS),
    (Dense("a", Weights(BITS.array, (1,))), COEFFICIENTS),
    (Dense("a", Weights(BITS.array, (1.0, 2.0))), "one coefficient a plane"),
    (Dense("a", TWO_PLANES, integer=True), "one coefficient a plane"),
    (replace(CONVOLUTION, weights=REAL, window=None), "a window with a mode"),
    (replace(CONVOLUTION, weights=None), "weights, and whether inputs are bits"),
    (replace(CONVOLUTION, window=replace(WINDOW, size=(2, 3))), "weights of the window's size"),
    *((replace(CONVOLUTION, groups=groups), "groups of as many units each") for groups in (0, 3, 1.0, True, -1)),
    (replace(THRESHOLD, levels=ONES(4)), "as many whole levels of 32 bits as directions"),
    (replace(THRESHOLD, levels=ONES(3, np.int32)), "as many whole levels of 32 bits as directions"),
    (replace(THRESHOLD, flipped=ONES(4, np.int32)), "as many whole levels of 32 bits as directions"),
    (replace(THRESHOLD, levels=ONES((4, 1), np.int32)), "as many whole levels of 32 bits as directions"),
    (Threshold("a", ONES(0, np.int32), ONES(0, bool)), "as many whole levels of 32 bits as directions"),
    (replace(SCALE, factor=np.full(4, np.inf, np.float32)), "finite factors"),
    (replace(SCALE, offset=np.full(4, np.nan, np.float32)), "finite factors"),
    (replace(SCALE, offset=1.0), "finite factors"),
    (Clip("a", 1.0, 0.0), "two limits in order"),
    (Clip("a", float("nan"), 0.0), "two limits in order"),
    (Clip("a", "0", 1.0), "two limits in order"),
    (Clip("a", 0.0, None), "two limits in order"),
    (MaxPool("a", replace(WINDOW, mode="mirror")), "a window with a mode"),
    *((MaxPool("a", replace(WINDOW, size=size)), WHOLE) for size in ((2,), (2, 0), [2, 2], (2, 2.0), (2, 2**31))),
    (MaxPool("a", replace(WINDOW, stride=(1, 0))), WHOLE),
    (MaxPool("a", replace(WINDOW, dilation=(1,))), WHOLE),
    *(
        (MaxPool("a", replace(WINDOW, sides=sides)), WHOLE)
        for sides in (((0, 0),), ((0, 0), (-1, 0)), ((0, 0), (0,)), 0)
    ),
    (MaxPool("a", Window((1,) * 3, (1,) * 3, ((0, 0),) * 3, (1,) * 3)), WHOLE),
    (replace(MEAN, dimensions=2), "a window of its dimensions"),
    (replace(MEAN, dimensions=3), "one or two dimensions"),
    (replace(MEAN, counts_padding=0), "one or two dimensions"),
    (replace(MEAN, window=replace(LINE, stride=(0,))), WHOLE),
    (Dense("a", Weights(TWO_PLANES.array, ONES((2, 3), np.float32))), "finite coefficients, one per plane and unit"),
    (Dense("a", Weights(TWO_PLANES.array, np.full((2, 4), np.inf, np.float32))), "finite coefficients, one per"),
    (Dense("a", Weights(BITS.array, ONES((1, 4), np.float32)), integer=True), "finite coefficients, one per plane"),
    *((replace(SCALE, axis=axis), "units along the first or the last") for axis in (1, -2, 0.0, True, "0")),
    (replace(THRESHOLD, axis=1), "units along the first or the last"),
    *((replace(SCALE, inputs=inputs), "numbers of values") for inputs in ((-1,), (0.0,), [0], None, (True,))),
    *((Activation("a", function), "a function of gelu") for function in ("exp", None, [])),
    *((Activation("a", "gelu", slope), "a function of gelu.* and a finite slope") for slope in (1, np.nan, None)),
    *((Softmax("a", axis), "a dimension") for axis in (0.0, None, 8, -9, True)),
    *((Concatenate("a", axis), "a dimension") for axis in (0.0, None, 8)),
    *((Normalize("a", eps), "a positive number to add") for eps in (-1.0, np.inf, np.nan, 1, None)),
    (Normalize("a", 1.0, 1), "a positive number to add, and whether to centre"),
    *((Mean("a", axes), "dimensions, and whether to keep them") for axes in ((), 1, (0.5,), (9,), [1])),
    (Mean("a", (0,), 1), "dimensions, and whether to keep them"),
    *((Transpose("a", order), "an order of dimensions") for order in (None, [0], (0.0,), (8,))),
    *((Slice("a", 0, *ends), "a dimension, a start and a stop") for ends in ((-1, 1), (0, 1.0), (0, 1, 1), (0, None))),
    (Slice("a", 9, 0, 1), "a dimension, a start and a stop"),
    *((Take("a", axis, ONES(2, np.int32)), "a dimension and a finite number") for axis in (9, 0.0, None)),
    *((Take("a", 0, ONES(2, np.int32), fill), "a dimension and a finite number") for fill in (np.inf, 1, None)),
    *(
        (Take("a", 0, places), "places from 0 on")
        for places in (ONES(2), -2 * ONES(2, np.int32), [0], ONES(0, np.int32))
    ),
    *(
        (Embedding("a", table), r"a finite table \(rows, width\)")
        for table in (ONES((3, 2)), ONES(3, np.float32), None)
    ),
    *((Combine("a", how), "a way of add") for how in ("divide", None, [])),
    *(
        (Combine("a", "add", array), "a finite constant or none")
        for array in (ONES(3), 1.0, np.full(2, np.nan, np.float32))
    ),
    *((Reshape("a", shape), "a shape of integers") for shape in ((0,), (-1, -1), (-2,), [1], (1.0,), None)),
]


def test_operations_as_they_are_made_are_right():
    for operation in RIGHT:
        check((operation,))


@pytest.mark.parametrize("kind", sorted({type(operation).__name__ for operation, _ in WRONG}))
def test_an_operation_that_cannot_be_is_named_with_what_it_needs(kind):
    for operation, wanted in WRONG:
        if type(operation).__name__ == kind:
            with pytest.raises(ValueError, match=rf"a \({kind}\) must have {wanted}"):
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
        (Combine("a", "add", ONES(3, np.float32)), [(3,), (3,)], "one input, got 2"),
        (Combine("a", "add", ONES((2, 3), np.float32)), [(3,)], "equally many dimensions"),
        (Concatenate("a", 0), [(3, 2), (3, 3)], "shapes differ only in dimension 0"),
        (Concatenate("a", 2), [(3, 2), (3, 3)], "a dimension 2"),
        (Product("a"), [(3, 2), (3, 3)], "matrices"),
        (Product("a"), [(3,), (3,)], "matrices"),
        (Product("a"), [(2, 3, 2), (1, 2, 3)], "matrices"),
        (Softmax("a", -3), [(3, 2)], "a dimension -3"),
        (Mean("a", (0, 2)), [(3, 2)], "a dimension 2"),
        (Transpose("a", (0, 0)), [(3, 2)], "2 dimensions"),
        (Slice("a", 0, 2, 4), [(3, 2)], "at least 4 numbers along dimension 0"),
        (Slice("a", 0, 1, 1), [(3, 2)], "at least 1 numbers"),
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
