"""Inference with numpy and compiled kernels alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from qpsbgd.deploy.operations import (
    Array,
    Convolution,
    Dense,
    MaxPool,
    Operation,
    Reshape,
    Scale,
    Shape,
    Sign,
    Spins,
    Threshold,
    natural_shape,
    walk,
)
from qpsbgd.deploy.real_steps import SUPPORTED, real_program, two_dimensional, words_of
from qpsbgd.native import kernels

Step = Callable[[Array], Array]

_AT_ONCE = 2**22  # numbers of patches


@final
class PackedModel:
    """A trained network that runs without torch.

    Layers whose inputs are ±1 compute with XOR and population counts, on one core, and other Python threads may run
    meanwhile. The others compute in float32, with numpy's matrix products and as many threads as those use.

    Attributes:
        operations: What it computes, one after the other.
        input_shape: Of one sample, where the first layer tells it; None for a network that begins with a convolution.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = tuple(operations)
        self.input_shape = natural_shape(self.operations)
        self._plan: tuple[Shape, list[Step]] | None = None

    def __call__(self, rows: Any) -> Array:
        """The network's outputs (B, …) in float32.

        Args:
            rows: Samples (B, …): real numbers of any type, used as float32.

        Raises:
            ValueError: The shape is not that of a batch of samples, or a number is not finite.
            TypeError: They are not real numbers.
        """
        values = rows if isinstance(rows, np.ndarray) else np.asarray(rows)
        if values.dtype != np.float32 or not values.flags.c_contiguous:
            values = _as_float32(values)
        plan = self._plan
        if plan is None or plan[0] != values.shape[1:]:
            plan = self._plan = self._planned(values)
        for step in plan[1]:
            values = step(values)
        return values

    def _planned(self, values: Array) -> tuple[Shape, list[Step]]:
        shape = values.shape[1:]
        if values.ndim < 2:
            expected = "" if self.input_shape is None else f" of samples of shape {self.input_shape}"
            raise ValueError(f"inputs must be a batch{expected}, got shape {values.shape}; for one sample pass x[None]")
        return shape, _steps(self.operations, shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedModel, (self.operations,)

    def __repr__(self) -> str:
        return f"PackedModel({', '.join(map(str, self.operations))})"


def _as_float32(values: Array) -> Array:
    if values.dtype.kind not in "biuf":
        raise TypeError(f"inputs must be real numbers, got an array of {values.dtype}")
    with np.errstate(over="ignore"):  # infinite numbers are refused later
        return np.ascontiguousarray(values, np.float32)


def _steps(operations: Sequence[Operation], shape: Shape) -> list[Step]:
    """Functions of batches; a run of operations over real numbers is one, and so is a chain of dense layers of bits."""
    stages = [(operation, kind, before) for operation, kind, before, _, _ in walk(operations, shape)]
    steps: list[Step] = []
    place = 0
    while place < len(stages):
        chain, run = _chain_length(operations[place:]), _run_length(stages[place:])
        if chain:
            steps.append(_dense_chain(operations[place : place + chain]))
        elif run:
            steps.append(_real(operations[place : place + run], stages[place][2], first=place == 0))
        else:
            operation, _, before = stages[place]
            steps.append(_step(operation, before))
        if place == 0 and not run and not (chain and isinstance(operations[0], Sign)):
            steps.insert(0, _finite)  # the others check their inputs themselves
        place += chain or run or 1
    return steps or [_finite]


def _run_length(stages: Sequence[tuple[Operation, str, Shape]]) -> int:
    """How many operations at the beginning compute real numbers of real numbers, and not only another shape."""
    run = list(itertools.takewhile(lambda stage: isinstance(stage[0], SUPPORTED) and stage[1] == "real", stages))
    return len(run) if any(not isinstance(operation, Reshape) for operation, _, _ in run) else 0


def _real(operations: Sequence[Operation], shape: Shape, *, first: bool) -> Step:
    program = real_program(operations, shape)

    def run(x: Array) -> Array:
        out, finite = program(x)
        if first and not finite:
            raise _not_finite()
        return out

    return run


def _finite(values: Array) -> Array:
    if not np.isfinite(values).all():
        raise _not_finite()
    return values


def _not_finite() -> ValueError:
    return ValueError("inputs must be finite numbers in float32, got NaN or infinite ones")


def _chain_length(operations: Sequence[Operation]) -> int:
    """How many operations at the beginning are [Sign], then dense layers of bits with a threshold or a last scale."""
    start = place = 1 if operations and isinstance(operations[0], Sign) else 0
    while place + 1 < len(operations):
        layer, behind = operations[place], operations[place + 1]
        if not (isinstance(layer, Dense) and layer.integer and isinstance(behind, Threshold | Scale)):
            break
        place += 2
        if isinstance(behind, Scale):
            break
    return place if place > start else 0


def _dense_chain(operations: Sequence[Operation]) -> Step:
    layers = [one for one in operations if isinstance(one, Dense)]
    thresholds = [one for one in operations if isinstance(one, Threshold)]
    sizes = [layers[0].weights.shape[1], *(layer.weights.shape[0] for layer in layers)]
    weights = np.concatenate([words_of(layer.weights.array[0]).T.ravel() for layer in layers])
    limits = [(n - one.levels) // 2 for n, one in zip(sizes, thresholds, strict=False)]
    # A level below every sum is always reached, one above every sum never: as unsigned numbers, after a flip.
    most = np.concatenate([np.zeros(0, np.int64), *limits])
    flips = [one.flipped ^ (limit < 0) for one, limit in zip(thresholds, limits, strict=True)]
    most = np.where(most < 0, np.iinfo(np.int64).max, most).astype(np.uint64)
    flipped = np.zeros(((max(sizes) + 63) // 64, len(thresholds)), np.uint64)
    for column, flip in enumerate(flips):
        words = words_of(flip)
        flipped[: len(words), column] = words
    last = operations[-1]
    units = sizes[-1]
    if isinstance(last, Scale):
        factor, offset = (np.broadcast_to(v, units).astype(np.float32) for v in (last.factor, last.offset))
        hidden = np.array(sizes[:-1])

        def sums(values: Array) -> Array:
            out = np.empty((len(values), units), np.float32)
            if not kernels.dense_sums(
                np.ascontiguousarray(values, np.float32), hidden, weights, most, flipped, factor, offset, out
            ):
                raise _not_finite()
            return out

        return sums
    all_sizes = np.array(sizes)

    def signs(values: Array) -> Array:
        out = np.empty((len(values), units), np.int8)
        if not kernels.dense_signs(np.ascontiguousarray(values, np.float32), all_sizes, weights, most, flipped, out):
            raise _not_finite()
        return out

    return signs


def _step(operation: Operation, shape: Shape) -> Step:
    """The function of batches of samples of this shape, for bits (int8 ±1) or ints (int32)."""
    match operation:
        case Dense():
            weights = np.ascontiguousarray(operation.weights.values().T)
            return lambda x: x.astype(np.float32) @ weights
        case Convolution():
            return _convolution(operation, shape)
        case Threshold():
            levels, flipped = (_per_unit(v, shape) for v in (operation.levels, operation.flipped))
            return lambda x: np.where((x >= levels) ^ flipped, np.int8(1), np.int8(-1))
        case Scale():
            factor, offset = (_per_unit(v, shape) for v in (operation.factor, operation.offset))
            return lambda x: factor * x.astype(np.float32) + offset
        case Sign():
            return lambda x: np.where(x >= 0, np.int8(1), np.int8(-1))
        case Spins():
            return lambda x: x.astype(np.float32)
        case MaxPool():
            return _max_pool(operation, shape)
        case Reshape():
            after = operation.shape_after(shape)
            return lambda x: x.reshape(len(x), *after)
    raise TypeError(f"{operation} is not an operation")


def _per_unit(values: Array, shape: Shape) -> Array:
    return values.reshape(-1, *(1,) * (len(shape) - 1))


def _patches(images: Array, rows: Array, columns: Array, added: float) -> Array:
    """(N, C, height, width) → (N, C, …positions, …window), with the number `added` at index −1."""
    if (rows < 0).any() or (columns < 0).any():
        images = np.pad(images, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=added)
    found: Array = images[:, :, rows[:, None, :, None], columns[None, :, None, :]]
    return found


def _by_parts(work: Step, images: Array, *, numbers: int) -> Array:
    """`work` on a few images at a time, so that their patches of so many numbers per image fit into memory."""
    size = max(1, _AT_ONCE // max(1, numbers))
    parts = [work(images[begin : begin + size]) for begin in range(0, len(images) or 1, size)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _convolution(operation: Convolution, shape: Shape) -> Step:
    rows, columns = two_dimensional(operation.window, shape[1:])
    channels, image = shape[0], (shape[1:] if len(shape) == 3 else (1, *shape[1:]))
    after = operation.shape_after(shape)
    groups, units, positions = operation.groups, after[0], (len(rows), len(columns))
    window = (rows.shape[1], columns.shape[1])
    signs = operation.weights.array[0].reshape(groups, units // groups, channels // groups, *window)
    words = np.ascontiguousarray(words_of(signs.transpose(0, 1, 3, 4, 2)).transpose(0, 2, 3, 4, 1))

    def integers(x: Array) -> Array:
        out = np.empty((len(x), units, *positions), np.int32)
        images = np.ascontiguousarray(x.reshape(len(x), channels, *image))
        kernels.convolution_sums(images, words, rows, columns, out)
        return out.reshape(len(x), *after)

    return integers


def _max_pool(operation: MaxPool, shape: Shape) -> Step:
    rows, columns = two_dimensional(operation.window, shape[1:])
    image, after = (shape[1:] if len(shape) == 3 else (1, *shape[1:])), operation.shape_after(shape)

    def part(x: Array) -> Array:
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        patches = _patches(x.reshape(len(x), shape[0], *image), rows, columns, least)
        largest: Array = patches.max((-2, -1))
        return largest.reshape(len(x), *after)

    return lambda x: _by_parts(part, x, numbers=shape[0] * rows.size * columns.size)
