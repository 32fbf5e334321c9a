"""The functions of batches that a packed model runs for layers over integers.

Bits are int8 ±1, other integers int8, uint8 or, sums, int32. Arrays of images have the shape (B, channels, …), and
stand in memory as (B, …, channels): kernels read and write all channels of a pixel side by side.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qpsbgd_runtime.image_operations import Convolution, MaxPool
from qpsbgd_runtime.kernels import kernels
from qpsbgd_runtime.operations import SMALL, Array, Dense, Kind, Operation, Shape, Step, Value, words_of
from qpsbgd_runtime.real_steps import real_program
from qpsbgd_runtime.stages import Stage
from qpsbgd_runtime.unit_operations import Lines, Requantize, Threshold

_FEW_CHANNELS = 8
"""Channels of each of several groups below which words of bits are so empty that real numbers are faster."""
_FEW_INPUTS = 64  # bits of a patch up to which they are faster as bytes
_EXACT = 2**24  # integers up to which float32 has all
_PANEL = 16  # units whose weights stand side by side, in fours of inputs


def layer_length(operations: Sequence[Operation], kind: Kind) -> int:
    """How many operations at the beginning are one layer: sums of integers, a pool, and a threshold or lines."""
    layer = operations[0]
    dense = isinstance(layer, Dense) and kind in SMALL
    if not (dense or (isinstance(layer, Convolution) and layer.integer and not _is_real(layer, kind))):
        return 0
    length = 1
    if length < len(operations) and isinstance(operations[length], MaxPool) and not dense:
        length += 1
    return length + (length < len(operations) and isinstance(operations[length], Threshold | Requantize))


def _is_real(layer: Convolution, kind: Kind) -> bool:
    """Whether a layer's groups are so narrow that real numbers are faster: below 2²⁴, they are exact."""
    return layer.groups > 1 and (kind != "bits" or layer.weights.shape[1] < _FEW_CHANNELS)


def integer_layer(operations: Sequence[Operation], value: Value) -> Step:
    """The function of batches for operations that `layer_length` counts."""
    kind, shape = value
    layer, rest = operations[0], list(operations[1:])
    pool = rest.pop(0) if rest and isinstance(rest[0], MaxPool) else None
    last = rest[0] if rest else None
    if isinstance(layer, Dense):  # positions are rows, whose number is free
        image: Shape = (1, 1)
        channels = layer.weights.shape[1]
        rows = columns = np.zeros((1, 1), np.int64)
        signs, groups = layer.weights.array[0].reshape(-1, 1, 1, channels), 1
    else:
        assert isinstance(layer, Convolution)
        image, channels = (1, 1, *shape[1:])[-2:], shape[0]
        rows, columns = layer.window.rows_and_columns(shape[1:])
        groups, window = layer.groups, (rows.shape[1], columns.shape[1])
        signs = layer.weights.array[0].reshape(-1, channels // groups, *window).transpose(0, 2, 3, 1)
    units, positions = len(signs), (len(rows), len(columns))
    none = np.zeros((0, 0), np.int64)
    pooled = (none, none)
    if isinstance(pool, MaxPool):
        pooled = pool.window.rows_and_columns(positions[-len(pool.window.size) :])
        positions = (len(pooled[0]), len(pooled[1]))
    bits = kind == "bits" and (groups > 1 or signs[0].size > _FEW_INPUTS)
    lines = last.lines if isinstance(last, Threshold | Requantize) else _NO_LINES
    dtype = np.dtype("int32" if last is None else "int8" if last.gives == "bits" else last.gives)
    stored = np.dtype(np.int32 if last is None else np.uint8)
    given = (rows, columns, *pooled, *lines, np.empty((0, *positions, units), stored))
    compute = (_bits if bits else _bytes)(signs, kind, groups, (0, *image, channels), given)

    def run(x: Array) -> Array:
        if isinstance(layer, Dense):
            images = x.reshape(-1, 1, 1, channels)
        else:
            images = (x if len(shape) == 3 else x.reshape(len(x), channels, *image)).transpose(0, 2, 3, 1)
        out = np.empty((len(images), *positions, units), stored)
        compute(np.ascontiguousarray(images), out)
        results: Array = out.view(dtype)
        if isinstance(layer, Dense):
            return results.reshape(*x.shape[:-1], units)
        return results.transpose(0, 3, 1, 2) if len(shape) == 3 else results[:, 0].transpose(0, 2, 1)

    return run


Compute = Callable[[Array, Array], None]


def _bits(signs: Array, kind: Kind, groups: int, images: Shape, rest: tuple[Any, ...]) -> Compute:
    """The kernel for signs (units, …window, inputs of a group) and images of a shape; rest: its other arguments."""
    grouped = signs.reshape(groups, -1, *signs.shape[1:])
    words = np.ascontiguousarray(words_of(grouped.reshape(*grouped.shape[:2], -1)).swapaxes(1, 2))
    ones = np.ascontiguousarray(grouped.sum(-1, dtype=np.int32).transpose(0, 2, 3, 1))
    return kernels.prepare_bit_layer(np.empty(images, np.int8), words, ones, *rest)


def _bytes(signs: Array, kind: Kind, groups: int, images: Shape, rest: tuple[Any, ...]) -> Compute:
    """The same for bytes, in one group; those of int8 go in plus 128."""
    assert groups == 1
    units, zero_point = len(signs), 0 if kind == "uint8" else 128
    flat = np.where(signs, np.int8(1), np.int8(-1)).reshape(units, -1)
    panels, quads = -(-units // _PANEL), -(-flat.shape[1] // 4)
    padded = np.zeros((panels * _PANEL, quads * 4), np.int8)
    padded[:units, : flat.shape[1]] = flat
    starts = -zero_point * padded.sum(1, dtype=np.int32)
    weights = np.ascontiguousarray(padded.reshape(panels, _PANEL, quads, 4).swapaxes(1, 2))
    compute: Compute = kernels.prepare_byte_layer(np.empty(images, np.uint8), weights, starts, zero_point, *rest)
    offset = np.uint8(zero_point)
    return compute if kind == "uint8" else lambda images, out: compute(images.view(np.uint8) ^ offset, out)


_NO_LINES = Lines(*(np.zeros(0, np.int64),) * 2, 0, *(np.zeros(0, np.int32),) * 2, np.zeros((0, 3), np.int64))


def narrow_convolution(operation: Convolution, value: Value) -> Step:
    """Sums over many small groups, which are computed as real numbers: exact up to 2²⁴."""
    if (largest := operation.largest_sum(value.kind)) > _EXACT:
        raise ValueError(
            f"{operation} must have sums of at most {_EXACT} in groups, but its inputs may add up to {largest}; use "
            "more groups, or activations of fewer bits"
        )
    real = Value("real", value.shape), Value("real", operation.shape_after(value.shape))
    program = real_program([Stage(replace(operation, integer=False), (0,), real[:1], real[1])], 1)
    return lambda x: program(x)[0].astype(np.int32)
