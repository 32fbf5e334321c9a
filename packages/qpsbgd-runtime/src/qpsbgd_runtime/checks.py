"""What operations that come from a file must be: a right checksum does not say who wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import qpsbgd_runtime.operations as ops
import qpsbgd_runtime.tensor_operations as tensors
from qpsbgd_runtime.stages import natural_shape, sources_of, walk
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Scale, Steps, Threshold

MODES = ("zeros", "reflect", "replicate", "circular")

Rules = Iterator[tuple[bool, str]]
"""Whether something holds, and what the operation must have for it; what is behind a rule relies on it."""


def check(operations: tuple[ops.Operation, ...], input_shape: ops.Shape | None = None) -> None:
    """Raise ValueError, naming the operation, unless all are as `pack` makes them and fit one another."""
    for place, operation in enumerate(operations):
        if not isinstance(operation, ops.Operation) or not isinstance(operation.name, str):
            raise ValueError(f"operation {place} must be one with a name, got {type(operation).__name__}")
        for right, wanted in _rules(operation):
            if not right:
                raise ValueError(f"{operation} must have {wanted}")
        sources_of(operation, place + 1)
    if input_shape is not None and not (input_shape and _are_whole(input_shape, least=1)):
        raise ValueError("input_shape must be the positive sizes of one sample")
    shape = natural_shape(operations) if input_shape is None else input_shape
    if shape is not None:
        walk(operations, shape)


def _rules(operation: ops.Operation) -> Rules:
    yield _are_whole(operation.inputs, least=0), "numbers of values"
    match operation:
        case ops.Dense(weights=weights, integer=integer):
            yield from _weights_rules(weights, integer)
            yield len(weights.shape) == 2, "weights (m, n)"
        case ops.Convolution(weights=weights, integer=integer, window=window, groups=groups):
            yield from _weights_rules(weights, integer)
            yield from _window_rules(window)
            yield weights.shape[2:] == window.size, "weights of the window's size"
            whole = _are_whole((groups,), least=1) and not weights.shape[0] % groups
            yield whole, "groups of as many units each"
        case Threshold(levels=levels, flipped=flipped, axis=axis):
            yield _is_end(axis), "units along the first or the last dimension"
            right = _is_list(levels, "i4") and _is_list(flipped, "?") and len(levels) == len(flipped)
            yield right, "as many whole levels of 32 bits as directions"
        case Quantize(steps=steps):
            yield _are_steps(steps), "whole numbers of 8 bits that count a power of two"
        case Requantize():
            yield from _line_rules(operation)
        case Scale(factor=factor, offset=offset, axis=axis):
            yield _is_end(axis), "units along the first or the last dimension"
            yield all(_is_list(v, "f4") and np.isfinite(v).all() for v in (factor, offset)), "finite factors in float32"
        case ops.Clip(low=low, high=high):
            right = isinstance(low, int | float) and isinstance(high, int | float) and float(low) <= float(high)
            yield right, "two limits in order"
        case ops.MaxPool(window=window):
            yield from _window_rules(window)
        case ops.AveragePool(window=window, counts_padding=counts, dimensions=dimensions):
            right = dimensions in (1, 2) and isinstance(counts, bool)
            yield right, "one or two dimensions, and whether padding counts"
            if window is not None:
                yield from _window_rules(window)
                yield len(window.size) == dimensions, "a window of its dimensions"
        case ops.Reshape(shape=shape):
            right = _are_whole(shape, least=-1) and 0 not in shape and shape.count(-1) <= 1
            yield right, "a shape of whole numbers"
        case _:
            yield from _tensor_rules(operation)


def _tensor_rules(operation: ops.Operation) -> Rules:
    match operation:
        case tensors.Activation(function=function, slope=slope):
            right = function in tensors.FUNCTIONS and isinstance(slope, float) and np.isfinite(slope)
            yield bool(right), f"a function of {', '.join(tensors.FUNCTIONS)}, and a finite slope"
        case tensors.Normalize(eps=eps, centred=centred):
            right = isinstance(eps, float) and 0 <= eps < np.inf and isinstance(centred, bool)
            yield right, "a positive number to add, and whether to centre"
        case tensors.Mean(axes=axes, keep=keep):
            right = _are_axes(axes) and len(axes) > 0 and isinstance(keep, bool)
            yield right, "dimensions, and whether to keep them"
        case tensors.Transpose(order=order):
            yield _are_axes(order), "an order of dimensions"
        case tensors.Slice(axis=axis, start=start, stop=stop, keep=keep):
            right = _are_axes((axis,)) and _are_whole((start, stop), least=0) and isinstance(keep, bool)
            yield right, "a dimension, a start and a stop"
        case tensors.Take(axis=axis, places=places, fill=fill):
            right = _are_axes((axis,)) and isinstance(fill, float) and bool(np.isfinite(fill))
            yield right, "a dimension and a finite number to fill in"
            yield _is_list(places, "i4", "i8") and int(places.min()) >= -1, "places from 0 on, or -1 to fill in"
        case tensors.Embedding(table=table):
            yield _are_finite(table) and table.ndim == 2 and table.size > 0, "a finite table (rows, width)"
        case tensors.Softmax(axis=axis) | tensors.Concatenate(axis=axis):
            yield _are_axes((axis,)), "a dimension"
        case tensors.Combine(how=how, constant=constant):
            yield how in tensors.COMBINATIONS, f"a way of {', '.join(tensors.COMBINATIONS)}"
            yield constant is None or _are_finite(constant), "a finite constant or none"


def _line_rules(operation: Requantize) -> Rules:
    yield _is_end(operation.axis), "units along the first or the last dimension"
    lines, bounds = (operation.factors, operation.offsets), (operation.lows, operation.highs)
    whole = all(_is_list(part, "i4", "i8") for part in lines) and all(_is_list(part, "i4") for part in bounds)
    alike = whole and all(len(part) == len(operation.factors) for part in (*lines, *bounds))
    yield alike, "as many whole factors as offsets and bounds, these of 32 bits"
    yield type(operation.shift) is int and 0 <= operation.shift <= 61, "a shift of 0 to 61 bits"
    steps, lows, highs = operation.steps, operation.lows, operation.highs
    inside = _are_steps(steps) and not (lows < steps.low).any() and not (highs > steps.high).any()
    yield inside, "results within their steps"
    yield not (lows > highs).any(), "bounds in order"
    for one in operation.exceptions if isinstance(operation.exceptions, tuple) else ("",):
        right = _are_whole(one, least=-(2**31)) and len(one) == 3 and 0 <= one[0] < len(operation.factors)
        yield right and steps.low <= one[2] <= steps.high, "exceptions of units, sums and results"


def _weights_rules(weights: Any, integer: Any) -> Rules:
    are_weights = isinstance(weights, ops.Weights) and isinstance(weights.array, np.ndarray)
    yield are_weights and isinstance(integer, bool), "weights, and whether inputs are bits"
    right = len(weights.shape) >= 2 and 0 not in weights.array.shape and weights.array.dtype in (bool, np.float32)
    yield right, "real or binary weights, at least one"
    numbers = weights.coefficients
    if not weights.binary:
        yield not integer and _are_finite(weights.array), "finite weights"
    elif isinstance(numbers, np.ndarray):
        right = _are_finite(numbers) and numbers.shape == weights.array.shape[:2] and not integer
        yield right, "finite coefficients, one per plane and unit"
    else:
        right = isinstance(numbers, tuple) and all(isinstance(c, float) and np.isfinite(c) for c in numbers)
        yield right, "finite coefficients"
        right = len(numbers) == len(weights.array) and (len(numbers) == 1 or not integer)
        yield right, "one coefficient a plane"


def _window_rules(window: Any) -> Rules:
    right = isinstance(window, ops.Window) and window.mode in MODES
    yield right, f"a window with a mode of {', '.join(MODES)}"
    parts = (window.size, window.stride, window.dilation)
    right = all(_are_whole(part, least=1) and len(part) == len(window.size) for part in parts)
    right = right and isinstance(window.sides, tuple) and len(window.sides) == len(window.size)
    right = right and all(_are_whole(pair, least=0) and len(pair) == 2 for pair in window.sides)
    yield right and len(window.size) in (1, 2), "a window of whole numbers, in one or two dimensions"


def _are_steps(steps: Any) -> bool:
    if not isinstance(steps, Steps) or not _are_whole((steps.low, steps.high, steps.exponent), least=-128):
        return False
    most = 127 if steps.low < 0 else 255
    return steps.low <= 0 < steps.high <= most and abs(steps.exponent) <= 120


def _are_axes(axes: Any) -> bool:
    return _are_whole(axes, least=-8, most=7)


def _is_end(axis: Any) -> bool:
    return axis is None or _are_whole((axis,), least=-1, most=0)


def _are_whole(numbers: Any, *, least: int, most: int = 2**31 - 1) -> bool:
    return isinstance(numbers, tuple) and all(type(n) is int and least <= n <= most for n in numbers)


def _are_finite(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == np.float32 and bool(np.isfinite(values).all())


def _is_list(values: Any, *types: str) -> bool:
    return isinstance(values, np.ndarray) and values.ndim == 1 and len(values) > 0 and values.dtype in types
