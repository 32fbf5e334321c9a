"""The functions of batches that a packed model runs for operations on numbers, dimensions and several values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import qpsbgd_runtime.tensor_operations as tensors
from qpsbgd_runtime.operations import Array, Operation, Shape

Step = Callable[..., Array]


def tensor_step(operation: Operation, shape: Shape) -> Step:
    """The function of batches of values, of which the first has this shape per sample."""
    rank = len(shape)
    match operation:
        case tensors.Activation(function=function, slope=slope):
            if function == "leaky relu":
                return lambda x: np.where(x < 0, np.float32(slope) * x, x)
            return _FUNCTIONS[function]
        case tensors.Softmax(axis=axis):
            return lambda x: _softmax(x, axis % rank + 1)
        case tensors.Normalize():
            return _normalize(operation)
        case tensors.Mean(keep=keep):
            axes = tuple(at + 1 for at in operation.places(shape))
            return lambda x: x.mean(axes, dtype=np.float32, keepdims=keep)
        case tensors.Transpose(order=order):
            return lambda x: x.transpose(0, *(at + 1 for at in order))
        case tensors.Slice(axis=axis, start=start, stop=stop, keep=keep):
            place = (slice(None),) * (axis % rank + 1)
            return lambda x: x[(*place, slice(start, stop) if keep else start)]
        case tensors.Take():
            return _take(operation, axis=operation.axis % rank + 1)
        case tensors.Embedding():
            return _embedding(operation)
        case tensors.Combine(how=how, constant=constant):
            combine = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[how]
            return combine if constant is None else lambda x: combine(x, constant)
        case tensors.Concatenate(axis=axis):
            return lambda *values: np.concatenate(values, axis % rank + 1)
        case tensors.Product():
            return np.matmul
    raise TypeError(f"{operation} is not an operation")


def _take(operation: tensors.Take, axis: int) -> Step:
    places, fill = operation.places, np.float32(operation.fill)
    empty = places < 0

    def take(x: Array) -> Array:
        taken = np.take(x, places, axis)
        if empty.any():
            np.moveaxis(taken, axis, -1)[..., empty] = fill
        return taken

    return take


def _embedding(operation: tensors.Embedding) -> Step:
    table = operation.table

    def look_up(x: Array) -> Array:
        rows = x.astype(np.int64)
        if (rows != x).any() or (rows < 0).any() or (rows >= len(table)).any():
            raise ValueError(f"{operation} takes whole numbers from 0 to {len(table) - 1}, got others")
        found: Array = table[rows]
        return found

    return look_up


def _softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    shares: Array = powers / powers.sum(axis, keepdims=True)
    return shares


def _normalize(operation: tensors.Normalize) -> Step:
    eps, centred = np.float32(operation.eps), operation.centred

    def normalize(x: Array) -> Array:
        if centred:
            x = x - x.mean(-1, keepdims=True)
        normal: Array = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)
        return normal

    return normalize


@np.errstate(over="ignore")
def _sigmoid(x: Array) -> Array:
    """As torch computes it: positive until exp overflows."""
    share: Array = 1 / (1 + np.exp(-x))
    return share


@np.errstate(over="ignore")
def _silu(x: Array) -> Array:
    """As torch computes it: negative until exp overflows."""
    share: Array = x / (1 + np.exp(-x))
    return share


def _hard_sigmoid(x: Array) -> Array:
    return (x + np.float32(3)).clip(0, 6) / np.float32(6)


@np.errstate(over="ignore")
def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    share: Array = np.float32(0.5) * (1 + np.tanh(inner))
    return x * share


# erf(x) for |x| ≤ 4 as x · P(x²) / Q(x²), to the precision of float32; the polynomials of Eigen and XLA.
_P = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02)


def _erf(x: Array) -> Array:
    x = x.clip(-4, 4)
    square = x * x
    above, below = np.full_like(x, _P[0]), np.full_like(x, _Q[0])
    for number in _P[1:]:
        above = above * square + np.float32(number)
    for number in _Q[1:]:
        below = below * square + np.float32(number)
    ratio: Array = above / below
    return x * ratio


_FUNCTIONS: dict[str, Step] = {
    "gelu": lambda x: np.float32(0.5) * x * (1 + _erf(np.float32(np.sqrt(0.5)) * x)),
    "gelu tanh": _gelu_tanh,
    "hard sigmoid": _hard_sigmoid,
    "hard swish": lambda x: x * _hard_sigmoid(x),
    "sigmoid": _sigmoid,
    "silu": _silu,
    "tanh": np.tanh,
}
