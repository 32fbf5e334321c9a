from dataclasses import replace

import numpy as np
import pytest

from qpsbgd.deploy.checks import check
from qpsbgd.deploy.operations import (
    AveragePool,
    Clip,
    Convolution,
    Dense,
    MaxPool,
    Reshape,
    Scale,
    Sign,
    Threshold,
    Weights,
    Window,
)

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

RIGHT = [
    *(Dense("a", REAL), Dense("a", TWO_PLANES), CONVOLUTION, Convolution("a", IMAGE, WINDOW, groups=2)),
    *(THRESHOLD, SCALE, Clip("a", 0.0, float("inf")), Clip("a", 1, 1), MaxPool("a", WINDOW), MaxPool("a", LINE)),
    *(MEAN, AveragePool("a", None, True, 2), Reshape("a", (-1,)), Reshape("a", (1, 6, 6)), Sign("")),
]
FINITE, COEFFICIENTS, WHOLE = "finite weights", "finite coefficients", "a window of whole numbers"
WRONG = [
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
    (replace(THRESHOLD, levels=ONES(4)), "as many whole levels as directions"),
    (replace(THRESHOLD, levels=ONES(3, np.int32)), "as many whole levels as directions"),
    (replace(THRESHOLD, flipped=ONES(4, np.int32)), "as many whole levels as directions"),
    (replace(THRESHOLD, levels=ONES((4, 1), np.int32)), "as many whole levels as directions"),
    (Threshold("a", ONES(0, np.int32), ONES(0, bool)), "as many whole levels as directions"),
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
    *((Reshape("a", shape), "a shape of whole numbers") for shape in ((0,), (-1, -1), (-2,), [1], (1.0,), None)),
]


@pytest.mark.parametrize("operation", RIGHT, ids=str)
def test_operations_as_they_are_made_are_right(operation):
    check((operation,))


@pytest.mark.parametrize(("operation", "wanted"), WRONG)
def test_an_operation_that_cannot_be_is_named_with_what_it_needs(operation, wanted):
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
    with pytest.raises(ValueError, match=r"a \(Threshold\) takes values of kind ints, got real"):
        check((Dense("a", REAL), THRESHOLD))
    with pytest.raises(ValueError, match=r"a \(Dense\) takes values of kind bits, got real"):
        check((DENSE,))


def test_windows_that_would_take_the_memory_are_refused():
    sides, ones = ((10**9, 10**9),), (1,)
    with pytest.raises(ValueError, match="smaller windows, or images with less padding"):
        MaxPool("a", Window((10**9,), ones, sides, ones)).shape_after((1, 4))
    assert MaxPool("a", Window((8000,), ones, ((0, 0),), ones)).shape_after((1, 16_000)) == (1, 8001)
