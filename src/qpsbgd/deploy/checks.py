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
    Scale,
    Threshold,
    Weights,
    Window,
    natural_shape,
    walk,
)

MODES = ("zeros", "reflect", "replicate", "circular")


def check(operations: tuple[Operation, ...]) -> None:
    """Raise ValueError, naming the operation, unless all are as `pack` makes them and fit one another."""
    for place, operation in enumerate(operations):
        if not isinstance(operation, Operation) or not isinstance(operation.name, str):
            raise ValueError(f"operation {place} must be one with a name, got {type(operation).__name__}")
        wrong = _wrong(operation)
        if wrong:
            raise ValueError(f"{operation} must have {wrong}")
    shape = natural_shape(operations)
    if shape is not None:
        for _ in walk(operations, shape):
            pass


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
        case Threshold(levels=levels, flipped=flipped):
            right = _is_list(levels, "i") and _is_list(flipped, "b") and len(levels) == len(flipped)
            return "" if right else "as many whole levels as directions"
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
    return ""


def _wrong_weights(weights: Any, integer: Any) -> str:
    if not isinstance(weights, Weights) or not isinstance(weights.array, np.ndarray) or not isinstance(integer, bool):
        return "weights, and whether inputs are bits"
    if len(weights.shape) < 2 or 0 in weights.array.shape or weights.array.dtype not in (bool, np.float32):
        return "real or binary weights, at least one"
    if not weights.binary:
        return "finite weights" if integer or not np.isfinite(weights.array).all() else ""
    numbers = weights.coefficients
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


def _are_whole(numbers: Any, *, least: int) -> bool:
    return isinstance(numbers, tuple) and all(type(n) is int and least <= n < 2**31 for n in numbers)


def _is_list(values: Any, kind: str) -> bool:
    return isinstance(values, np.ndarray) and values.ndim == 1 and len(values) > 0 and values.dtype.kind == kind
