"""Inference with numpy and compiled kernels alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

import qpsbgd_runtime.operations as ops
from qpsbgd_runtime.image_operations import Convolution
from qpsbgd_runtime.integer_steps import integer_layer, layer_length, narrow_convolution
from qpsbgd_runtime.kernels import kernels
from qpsbgd_runtime.operations import Array, Operation, Shape, Step, words_of
from qpsbgd_runtime.real_steps import real_program, run_length
from qpsbgd_runtime.stages import Stage, last_uses, natural_shape, walk
from qpsbgd_runtime.unit_operations import Scale, Threshold


@final
class PackedModel:
    """A trained network that runs without torch.

    Layers with inputs ±1 use XOR and population counts; consecutive operations over real numbers are one compiled
    program in float32. The kernels run on one core and release the GIL.

    Attributes:
        operations: The operations, in order.
        input_shape: Shape of one sample, as given or known from the first layer; None for a network that begins with a
            convolution.
    """

    def __init__(self, operations: Sequence[Operation], input_shape: Shape | None = None) -> None:
        self.operations = tuple(operations)
        self.input_shape = natural_shape(self.operations) if input_shape is None else input_shape
        self._plan: _Plan | None = None

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
        if plan is None or plan.shape != values.shape[1:]:
            plan = self._plan = self._plan_for(values.shape)
        if plan.checks_inputs and not np.isfinite(values).all():
            raise _not_finite()
        results = {0: values}
        for step, sources, number, dead in plan.steps:
            results[number] = step(*[results[source] for source in sources])
            for source in dead:
                del results[source]
        return results.popitem()[1]

    def _plan_for(self, shape: Shape) -> _Plan:
        if len(shape) < 2:
            expected = "" if self.input_shape is None else f" of samples of shape {self.input_shape}"
            raise ValueError(f"inputs must be a batch{expected}, got shape {shape}; for one sample pass x[None]")
        try:
            return _plan(self.operations, shape[1:])
        except ValueError as error:
            if self.input_shape in (None, shape[1:]):
                raise
            alone = "; for one sample pass x[None]" if shape == self.input_shape else ""
            expected = f"inputs must be a batch of samples of shape {self.input_shape}, got shape {shape}{alone}"
            raise ValueError(f"{expected}: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedModel, (self.operations, self.input_shape)

    def __repr__(self) -> str:
        return f"PackedModel({', '.join(map(str, self.operations))})"


def _as_float32(values: Array) -> Array:
    if values.dtype.kind not in "biuf":
        raise TypeError(f"inputs must be real numbers, got an array of {values.dtype}")
    with np.errstate(over="ignore"):  # infinite numbers are refused later
        return np.ascontiguousarray(values, np.float32)


class _PlannedStep(NamedTuple):
    """A function of the values with the numbers `sources`; those of `dead` are not needed after it."""

    step: Step
    sources: tuple[int, ...]
    number: int
    dead: tuple[int, ...]


class _Plan(NamedTuple):
    """What is done with batches of samples of a shape."""

    shape: Shape
    checks_inputs: bool
    steps: list[_PlannedStep]


def _plan(operations: Sequence[Operation], shape: Shape) -> _Plan:
    """Functions of batches; a run over real numbers, a chain of dense layers of bits or a layer of ints is one each."""
    stages, last = walk(operations, shape), last_uses(operations)
    steps: list[_PlannedStep] = []
    place = 0
    while place < len(stages):
        sources, value = stages[place].sources, stages[place].before[0]
        straight = _straight(stages[place:], last, place + 1)
        of_bits = isinstance(operations[place], ops.Sign) or value.kind == "bits"
        length = _chain_length(straight, flat=len(value.shape) == 1) if of_bits else 0
        layer, run = layer_length(straight, value.kind), run_length(stages[place:], last, place + 1)
        if length:
            step = _dense_chain(straight[:length])
        elif layer:
            step, length = integer_layer(straight[:layer], value), layer
        elif run:
            step, length = _real(stages[place : place + run], place + 1), run
            sources = sources[:1]  # x + x takes its value twice
        else:
            operation, length = operations[place], 1
            if isinstance(operation, Convolution):
                step = narrow_convolution(operation, value)
            else:
                step = operation.step(value.shape)
        place += length
        # Whatever is taken here for the last time; and a result that nobody takes.
        dead = tuple(source for source in {*sources, place} if last[source] <= place)
        steps.append(_PlannedStep(step, sources, place, dead))
    chained = bool(steps) and steps[0].number > 1 and isinstance(operations[0], ops.Sign)
    checked = bool(steps) and (chained or run_length(stages, last, 1) > 0)
    return _Plan(shape, not checked, steps)  # such a chain and a program check their inputs themselves


def _real(stages: Sequence[Stage], number: int) -> Step:
    """A run of operations over real numbers as one function."""
    program = real_program(stages, number)

    def run(x: Array) -> Array:
        out, finite = program(x)
        if number == 1 and not finite:
            raise _not_finite()
        return out

    return run


def _straight(stages: Sequence[Stage], last: Sequence[int], number: int) -> list[Operation]:
    """The first operations of which each is the only one that takes what the one before it gives."""
    count = 1
    while count < len(stages) and stages[count].sources == (number,) and last[number] == number + 1:
        count, number = count + 1, number + 1
    return [stage.operation for stage in stages[:count]]


def _not_finite() -> ValueError:
    return ValueError("inputs must be finite numbers in float32, got NaN or infinite ones")


def _chain_length(operations: Sequence[Operation], *, flat: bool) -> int:
    """How many operations at the beginning are [Sign], then dense layers of bits, all but the last with a threshold."""
    place = 1 if operations and isinstance(operations[0], ops.Sign) else 0
    while place + 1 < len(operations):
        layer, behind = operations[place], operations[place + 1]
        if not (isinstance(layer, ops.Dense) and layer.integer and isinstance(behind, Threshold | Scale)):
            break
        if not flat and behind.axis != -1:
            break
        place += 2
        if isinstance(behind, Scale):
            return place
    return 0


def _dense_chain(operations: Sequence[Operation]) -> Step:
    """Rows through the layers, 64 bits at a time, until the last one's sums are scaled."""
    layers = [operation for operation in operations if isinstance(operation, ops.Dense)]
    thresholds = [operation for operation in operations if isinstance(operation, Threshold)]
    sizes = [layers[0].weights.shape[1], *(layer.weights.shape[0] for layer in layers)]
    weights = np.concatenate([words_of(layer.weights.array[0]).T.ravel() for layer in layers])
    limits = [(n - operation.levels.astype(np.int64)) // 2 for n, operation in zip(sizes, thresholds, strict=False)]
    # A level below every sum is always reached, one above every sum never: as unsigned numbers, after a flip.
    most = np.concatenate([np.zeros(0, np.int64), *limits])
    flips = [operation.flipped ^ (limit < 0) for operation, limit in zip(thresholds, limits, strict=True)]
    most = np.where(most < 0, np.iinfo(np.int64).max, most).astype(np.uint64)
    flipped = np.zeros(((max(sizes) + 63) // 64, len(thresholds)), np.uint64)
    for column, flip in enumerate(flips):
        words = words_of(flip)
        flipped[: len(words), column] = words
    last, units = operations[-1], sizes[-1]
    assert isinstance(last, Scale)
    ends = (np.broadcast_to(v, units).astype(np.float32) for v in (last.factor, last.offset))
    none = np.empty((0, sizes[0]), np.float32), np.empty((0, units), np.float32)
    compute = kernels.prepare_dense_sums(none[0], np.array(sizes[:-1]), weights, most, flipped, *ends, none[1])

    def run(values: Array) -> Array:
        rows = np.ascontiguousarray(values, np.float32).reshape(-1, sizes[0])
        out = np.empty((len(rows), units), np.float32)
        if not compute(rows, out):
            raise _not_finite()
        return out.reshape(*values.shape[:-1], units)

    return run
