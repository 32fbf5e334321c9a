"""What operations that come from a file must be: a right checksum does not say who wrote it."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpsbgd.deploy.operations import (
    AveragePool,
    Clip,
    Convolution,
    Dense,
    MaxPool,
    Operation,
    Reshape,
    Shape,
    Weights,
    Window,
)
from qpsbgd.deploy.stages import natural_shape, sources_of, walk
from qpsbgd.deploy.tensor_operations import (
    COMBINATIONS,
    FUNCTIONS,
    Activation,
    Combine,
    Concatenate,
    Mean,
    Normalize,
    Slice,
    Softmax,
    Transpose,
)
from qpsbgd.deploy.unit_operations import Quantize, Requantize, Scale, Steps, Threshold

MODES = ("zeros", "reflect", "replicate", "circular")


def check(operations: tuple[Operation, ...], input_shape: Shape | None = None) -> None:
    """Raise ValueError, naming the operation, unless all are as `pack` makes them and fit one another."""
    for place, operation in enumerate(operations):
        if not isinstance(operation, Operation) or not isinstance(operation.name, str):
            raise ValueError(f"operation {place} must be one with a name, got {type(operation).__name__}")
        wrong = "numbers of values" if not _are_whole(operation.inputs, least=0) else _wrong(operation)
        if wrong:
            raise ValueError(f"{operation} must have {wrong}")
        sources_of(operation, place + 1)
    if input_shape is not None and not (input_shape and _are_whole(input_shape, least=1)):
        raise ValueError("input_shape must be the positive sizes of one sample")
    shape = natural_shape(operations) if input_shape is None else input_shape
    if shape is not None:
        walk(operations, shape)


def _wrong(operation: Operation) -> str:
    """What the operation must have and has not; empty where it is right."""
    match operation:
        case Dense(weights=weights, integer=integer):
            return _wrong_weights(weights, integer) or ("" if len(weights.shape) == 2 else "weights (m, n)")
        case Convolution(weights=weights, integer=integer, window=window, groups=groups):
            wrong = _wrong_weights(weights, integer) or _wrong_window(window)
            if wrong or weights.shape[2:] != window.size:
                return wrong or "weights of the window's size"
            whole = _are_whole((groups,), least=1) and not weights.shape[0] % groups
            return "" if whole else "groups of as many units each"
        case Threshold(axis=axis) | Requantize(axis=axis) | Scale(axis=axis) if not (
            axis is None or _are_whole((axis,), least=-1, most=0)
        ):
            return "units along the first or the last dimension"
        case Threshold(levels=levels, flipped=flipped):
            right = _is_list(levels, "i") and _is_list(flipped, "b") and len(levels) == len(flipped)
            return "" if right else "as many whole levels as directions"
        case Quantize(steps=steps):
            return _wrong_steps(steps)
        case Requantize():
            return _wrong_line(operation)
        case Scale(factor=factor, offset=offset):
            return "" if all(_is_list(v, "f") and np.isfinite(v).all() for v in (factor, offset)) else "finite factors"
        case Clip(low=low, high=high):
            right = isinstance(low, int | float) and isinstance(high, int | float) and low <= high
            return "" if right else "two limits in order"
        case MaxPool(window=window):
            return _wrong_window(window)
        case AveragePool(window=window, counts_padding=counts, dimensions=dimensions):
            if dimensions not in (1, 2) or not isinstance(counts, bool):
                return "one or two dimensions, and whether padding counts"
            wrong = "" if window is None else _wrong_window(window)
            return wrong or ("" if window is None or len(window.size) == dimensions else "a window of its dimensions")
        case Reshape(shape=shape):
            right = _are_whole(shape, least=-1) and 0 not in shape and shape.count(-1) <= 1
            return "" if right else "a shape of whole numbers"
    return _wrong_tensor(operation)


def _wrong_steps(steps: Any) -> str:
    right = isinstance(steps, Steps) and all(type(n) is int for n in (steps.low, steps.high, steps.exponent))
    right = right and -128 <= steps.low <= 0 < steps.high <= (127 if steps.low < 0 else 255)
    return "" if right and abs(steps.exponent) <= 120 else "whole numbers of 8 bits that count a power of two"


def _wrong_line(operation: Requantize) -> str:
    parts = (operation.factors, operation.offsets, operation.lows, operation.highs)
    if not all(_is_list(part, "i") and len(part) == len(operation.factors) for part in parts):
        return "as many whole factors as offsets and bounds"
    if type(operation.shift) is not int or not 0 <= operation.shift <= 61:
        return "a shift of 0 to 61 bits"
    steps = operation.steps
    if _wrong_steps(steps) or (operation.lows < steps.low).any() or (operation.highs > steps.high).any():
        return "results within their steps"
    if (operation.lows > operation.highs).any():
        return "bounds in order"
    for one in operation.exceptions if isinstance(operation.exceptions, tuple) else ("",):
        right = _are_whole(one, least=-(2**31)) and len(one) == 3 and 0 <= one[0] < len(operation.factors)
        if not right or not steps.low <= one[2] <= steps.high:
            return "exceptions of units, sums and results"
    return ""


def _wrong_tensor(operation: Operation) -> str:
    match operation:
        case Activation(function=function, slope=slope):
            right = function in FUNCTIONS and isinstance(slope, float) and np.isfinite(slope)
            return "" if right else f"a function of {', '.join(FUNCTIONS)}, and a finite slope"
        case Normalize(eps=eps, centred=centred):
            right = isinstance(eps, float) and 0 <= eps < np.inf and isinstance(centred, bool)
            return "" if right else "a positive number to add, and whether to centre"
        case Mean(axes=axes, keep=keep):
            return "" if _are_axes(axes) and axes and isinstance(keep, bool) else "dimensions, and whether to keep them"
        case Transpose(order=order):
            return "" if _are_axes(order) else "an order of dimensions"
        case Slice(axis=axis, start=start, stop=stop, keep=keep):
            right = _are_axes((axis,)) and _are_whole((start, stop), least=0) and isinstance(keep, bool)
            return "" if right else "a dimension, a start and a stop"
        case Softmax(axis=axis) | Concatenate(axis=axis):
            return "" if _are_axes((axis,)) else "a dimension"
        case Combine(how=how, constant=constant):
            if how not in COMBINATIONS:
                return f"a way of {', '.join(COMBINATIONS)}"
            array = constant is None or (isinstance(constant, np.ndarray) and constant.dtype == np.float32)
            return "" if array and (constant is None or np.isfinite(constant).all()) else "a finite constant or none"
    return ""


def _are_axes(axes: Any) -> bool:
    return _are_whole(axes, least=-8, most=7)


def _wrong_weights(weights: Any, integer: Any) -> str:
    if not isinstance(weights, Weights) or not isinstance(weights.array, np.ndarray) or not isinstance(integer, bool):
        return "weights, and whether inputs are bits"
    if len(weights.shape) < 2 or 0 in weights.array.shape or weights.array.dtype not in (bool, np.float32):
        return "real or binary weights, at least one"
    if not weights.binary:
        return "finite weights" if integer or not np.isfinite(weights.array).all() else ""
    numbers = weights.coefficients
    if isinstance(numbers, np.ndarray):
        right = numbers.dtype == np.float32 and numbers.shape == weights.array.shape[:2] and np.isfinite(numbers).all()
        return "" if right and not integer else "finite coefficients, one per plane and unit"
    if not isinstance(numbers, tuple) or not all(isinstance(c, float) and np.isfinite(c) for c in numbers):
        return "finite coefficients"
    return (
        "" if len(numbers) == len(weights.array) and (len(numbers) == 1 or not integer) else "one coefficient a plane"
    )


def _wrong_window(window: Any) -> str:
    if not isinstance(window, Window) or window.mode not in MODES:
        return f"a window with a mode of {', '.join(MODES)}"
    parts = (window.size, window.stride, window.dilation)
    right = all(_are_whole(part, least=1) and len(part) == len(window.size) for part in parts)
    sides = isinstance(window.sides, tuple) and len(window.sides) == len(window.size)
    right = right and sides and all(_are_whole(pair, least=0) and len(pair) == 2 for pair in window.sides)
    return "" if right and len(window.size) in (1, 2) else "a window of whole numbers, in one or two dimensions"


def _are_whole(numbers: Any, *, least: int, most: int = 2**31 - 1) -> bool:
    return isinstance(numbers, tuple) and all(type(n) is int and least <= n <= most for n in numbers)


def _is_list(values: Any, kind: str) -> bool:
    return isinstance(values, np.ndarray) and values.ndim == 1 and len(values) > 0 and values.dtype.kind == kind
