"""Operations over real numbers as one program for the compiled kernel `real_steps`.

A sample's values stand there as (positions, channels), so that all channels of a pixel lie side by side. A scale and a
clip after a layer become part of its step. Weights ±1 are unpacked into numbers when the program is made.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace

import numpy as np

import qpsbgd_runtime.operations as ops
from qpsbgd_runtime.image_operations import AveragePool, Convolution, MaxPool, Window
from qpsbgd_runtime.kernels import kernels
from qpsbgd_runtime.operations import Array, Shape, words_of
from qpsbgd_runtime.stages import Stage
from qpsbgd_runtime.tensor_operations import Combine, Mean
from qpsbgd_runtime.unit_operations import Scale

PANEL = 16  # units whose weights stand side by side


class Kind(enum.IntEnum):
    """What a step computes."""

    SUMS = 0
    PER_CHANNEL = 1
    LARGEST = 2
    MEAN = 3
    SCALE = 4
    ADD = 5
    TRANSPOSE = 6


@dataclass
class RealStep:
    """One row of the steps that the kernel takes; a sample's values stand as (height, length, channels) in slots."""

    kind: int  # a `Kind`
    source: int  # slot
    other: int = field(default=0, kw_only=True)  # slot of the second summand of an addition
    target: int  # slot
    height: int  # of the source; like the next two
    length: int  # of the source
    channels: int  # of the source
    rows: int  # of the target; like the next two
    columns: int  # of the target
    units: int  # of the target
    high: int = 1  # of the window
    wide: int = 1  # of the window
    groups: int = 1  # parts of the channels that are not connected; 1 but for sums
    direct: int = 0  # of sums: whether position k sees pixel k alone. Of means: whether zeros that are added count
    taps: int = 0  # where indices (rows, high) and then (columns, wide) of the source's pixels begin, −1 for zeros
    weights: int = 0  # where panels (groups, ⌈units / 16⌉, window · channels, 16) begin; per channel (window, channels)
    words: int = -1  # where words (⌈channels / 64⌉, units) of the weights' signs begin, for few rows; −1 for none
    epilogue: int = 0  # where the least and the largest result, factors and offsets begin, the latter for whole panels

    def row(self) -> list[int]:
        """The numbers in the order of the fields, which is the kernel's."""
        return list(astuple(self))


_MANY_UNITS = 64  # units from which it pays to look up signs for a few rows: tables are made once for all units


def supports(stage: Stage) -> bool:
    """Whether a program can compute the stage."""
    operation, shapes = stage.operation, [value.shape for value in stage.before]
    if any(value.kind != "real" or not value.shape for value in (*stage.before, stage.after)):
        return False
    match operation:
        case Combine(how=how, constant=constant):
            return how == "add" and constant is None and shapes[0] == shapes[1]
        case Mean():
            return len(shapes[0]) > 1 and operation.places(shapes[0]) == tuple(range(1, len(shapes[0])))
    return isinstance(operation, ops.Weighted | Scale | ops.Clip | MaxPool | AveragePool | ops.Reshape)


def run_length(stages: Sequence[Stage], last: Sequence[int], number: int) -> int:
    """How many stages at the beginning make one program: with one input, and one value that others take.

    `last` has the number of the last operation that takes each value, and `number` is that of the first stage's.
    """
    entry, count, longest, needed = set(stages[0].sources), 0, 0, 0
    computes = False
    while count < len(stages) and supports(stages[count]):
        inside = range(number, number + count)
        if not {source for source in stages[count].sources if source not in inside} <= entry or len(entry) > 1:
            break
        computes |= not isinstance(stages[count].operation, ops.Reshape)
        if count:
            needed = max(needed, last[number + count - 1])
        count += 1
        if computes and needed <= number + count - 1:
            longest = count
    return longest


@dataclass
class _Epilogue:
    """What is done to a step's sums: factor · sum + offset per unit, then bounds."""

    factors: Array  # one per unit
    offsets: Array  # one per unit
    axis: int  # the dimension of the units, 0 or −1
    low: float = -math.inf  # the least result
    high: float = math.inf  # the largest

    @classmethod
    def none(cls, units: int, axis: int) -> _Epilogue:
        """Sums as they are."""
        return cls(np.ones(units), np.zeros(units), axis)

    @property
    def clipped(self) -> bool:
        """Whether there are bounds."""
        return self.low > -math.inf or self.high < math.inf

    def numbers(self, groups: int) -> Array:
        """Bounds, factors and offsets as the kernel reads them."""
        units = len(self.factors) // groups
        pairs = np.zeros((2, groups, -(-units // PANEL) * PANEL), np.float32)
        pairs[..., :units] = np.stack([self.factors, self.offsets]).reshape(2, groups, units)
        return np.concatenate([np.array([self.low, self.high], np.float32), pairs.ravel()])


@dataclass(frozen=True)
class _Value:
    """What a step writes."""

    number: int  # of the value, in the order in which they are made
    shape: Shape  # as the operations see it
    turned: tuple[int, int] | None = None  # (channels, positions) if they stand as (positions, channels), else None
    shared: bool = False  # whether several operations take it

    @property
    def image(self) -> tuple[int, int]:
        """Height and width."""
        height, width = (1, 1, *self.shape[1:])[-2:]
        return height, width


class _Program:
    """Steps that are added one after the other."""

    def __init__(self, shape: Shape) -> None:
        self.input = _Value(0, shape)
        self._steps: list[RealStep] = []
        self._epilogues: dict[int, _Epilogue] = {}  # by value
        self._sizes = [math.prod(shape)]
        self._numbers: list[Array] = []
        self._taps: list[Array] = []
        self._words: list[Array] = []

    def add(self, stage: Stage, value: _Value, other: _Value | None = None) -> _Value:
        """The value that a stage makes of one or two others."""
        operation, after = stage.operation, stage.after.shape
        match operation:
            case ops.Dense():
                return self._dense(operation, value, after)
            case Convolution():
                return self._convolution(operation, value, after)
            case ops.Clip():
                return self._clip(operation, value)
            case Scale():
                return self._scale(operation, value)
            case MaxPool():
                return self._pool(Kind.LARGEST, operation.window, value, after)
            case AveragePool():
                window = operation.window_for(value.shape)
                return self._pool(Kind.MEAN, window, value, after, direct=operation.counts_padding)
            case Mean():
                rank = len(value.shape) - 1
                whole = AveragePool(operation.name, None, True, rank).window_for(value.shape)
                pooled = self._pool(Kind.MEAN, whole, value, (value.shape[0], *(1,) * rank))
                return replace(pooled, shape=after)
            case Combine():
                assert other is not None
                if value.turned != other.turned:
                    value, other = self._plain(value), self._plain(other)
                return self._copy(value, other)
            case ops.Reshape():
                return replace(self._plain(value) if len(after) > 1 else value, shape=after)
        raise TypeError(f"{operation} is not a step over real numbers")

    def _append(
        self, step: RealStep, shape: Shape, epilogue: _Epilogue | None = None, *, turned: bool = True
    ) -> _Value:
        number = len(self._sizes)
        self._sizes.append(math.prod(shape))
        step.target = number
        self._steps.append(step)
        if epilogue is not None:
            self._epilogues[number] = epilogue
        positions = math.prod(shape[1:])
        return _Value(number, shape, (shape[0], positions) if turned and min(shape[0], positions) > 1 else None)

    def _step(self, kind: Kind, value: _Value, after: Shape) -> RealStep:
        (height, length), (rows, columns) = value.image, _Value(0, after).image
        return RealStep(kind, value.number, 0, height, length, value.shape[0], rows, columns, after[0])

    def _plain(self, value: _Value) -> _Value:
        """The value in the order of the operations."""
        if value.turned is None:
            return value
        channels, positions = value.turned
        return self._transpose(value, positions, channels, turned=False)

    def _pixels(self, value: _Value) -> _Value:
        """The value as (positions, channels)."""
        channels, positions = value.shape[0], math.prod(value.shape[1:])
        if value.turned == (channels, positions) or min(channels, positions) == 1:
            return value
        return self._transpose(self._plain(value), channels, positions)

    def _transpose(self, value: _Value, height: int, length: int, *, turned: bool = True) -> _Value:
        step = RealStep(Kind.TRANSPOSE, value.number, 0, height, length, 1, length, height, 1)
        return self._append(step, value.shape, turned=turned)

    def _dense(self, operation: ops.Dense, value: _Value, after: Shape) -> _Value:
        weights, planes, factor = operation.weights.values(), operation.weights.array, np.ones(1)
        (units, inputs), order = weights.shape, np.arange(weights.shape[1])
        if len(value.shape) > 1:
            value = self._plain(value)
        elif value.turned:  # the weights are put into the order of the values
            order = order.reshape(value.turned).T.ravel()
        rows = math.prod(value.shape[:-1])
        step = RealStep(Kind.SUMS, value.number, 0, 1, rows, inputs, 1, rows, units, direct=1)
        if operation.weights.binary and len(planes) == 1 and units >= _MANY_UNITS:
            factor = np.asarray(operation.weights.coefficients[0], np.float64)
            weights = np.where(planes[0], np.float32(1), np.float32(-1))
            step.words = sum(map(len, self._words))
            self._words.append(words_of(planes[0][:, order]).T.ravel())
        step.weights = self._panels(weights[:, order], groups=1)
        return self._append(step, after, _Epilogue(np.full(units, factor), np.zeros(units), axis=-1), turned=False)

    def _panels(self, weights: Array, *, groups: int) -> int:
        """Where weights (units, n) begin among the numbers, as panels (groups, panels, n, PANEL)."""
        units, n = len(weights) // groups, weights.shape[1]
        padded = np.zeros((groups, -(-units // PANEL) * PANEL, n), np.float32)
        padded[:, :units] = weights.reshape(groups, units, n)
        return self._store(padded.reshape(groups, -1, PANEL, n).transpose(0, 1, 3, 2))

    def _store(self, values: Array) -> int:
        begin = sum(map(len, self._numbers))
        self._numbers.append(np.ascontiguousarray(values, np.float32).ravel())
        return begin

    def _window(self, step: RealStep, window: Window, image: Shape) -> tuple[Array, Array]:
        rows, columns = window.rows_and_columns(image)
        step.high, step.wide, step.taps = rows.shape[1], columns.shape[1], sum(map(len, self._taps))
        self._taps += [rows.ravel().astype(np.int64), columns.ravel().astype(np.int64)]
        return rows, columns

    def _convolution(self, operation: Convolution, value: _Value, after: Shape) -> _Value:
        value = self._pixels(value)
        step = self._step(Kind.SUMS, value, after)
        rows, columns = self._window(step, operation.window, value.shape[1:])
        groups, units = operation.groups, after[0]
        weights = operation.weights.values().reshape(units, value.shape[0] // groups, step.high, step.wide)
        if groups == value.shape[0] == units:
            step.kind = Kind.PER_CHANNEL
            step.weights = self._store(weights[:, 0].transpose(1, 2, 0))
        else:
            step.groups = groups
            step.weights = self._panels(weights.transpose(0, 2, 3, 1).reshape(units, -1), groups=groups)
            step.direct = int(
                groups == step.high == step.wide == 1
                and np.array_equal(rows.ravel(), np.arange(step.height))
                and np.array_equal(columns.ravel(), np.arange(step.length))
            )
        return self._append(step, after, _Epilogue.none(units, axis=0))

    def _pool(self, kind: Kind, window: Window, value: _Value, after: Shape, *, direct: bool = False) -> _Value:
        value = self._pixels(value)
        step = self._step(kind, value, after)
        self._window(step, window, value.shape[1:])
        step.direct = int(direct)
        return self._append(step, after, _Epilogue.none(after[0], axis=0))

    def _clip(self, operation: ops.Clip, value: _Value) -> _Value:
        if value.shared or value.number not in self._epilogues:
            value = self._copy(value)
        epilogue = self._epilogues[value.number]
        bounds = np.array([epilogue.low, epilogue.high]).clip(operation.low, operation.high)
        epilogue.low, epilogue.high = bounds.tolist()
        return value

    def _scale(self, operation: Scale, value: _Value) -> _Value:
        factor, offset = operation.factor.astype(np.float64), operation.offset.astype(np.float64)
        axis = 0 if operation.axis is None else operation.axis
        units, epilogue = value.shape[axis], self._epilogues.get(value.number)
        alike = len(factor) == len(offset) == 1
        if epilogue is not None and not alike:
            alike = len(epilogue.factors) == units and (epilogue.axis == axis or len(value.shape) == 1)
        if value.shared or epilogue is None or epilogue.clipped or not alike:
            value = self._copy(self._pixels(value) if axis == 0 else self._plain(value))
            epilogue = self._epilogues[value.number]
        epilogue.factors, epilogue.offsets = factor * epilogue.factors, factor * epilogue.offsets + offset
        return value

    def _copy(self, value: _Value, other: _Value | None = None) -> _Value:
        """The same value, or its sum with another, from a step of its own, whose results may be scaled and clipped."""
        axis = 0 if value.turned or len(value.shape) == 1 else -1
        channels = value.turned[0] if value.turned else value.shape[-1]
        if not value.turned and math.prod(value.shape[1:]) == 1:
            axis, channels = 0, value.shape[0]
        positions = math.prod(value.shape) // channels
        step = RealStep(Kind.SCALE, value.number, 0, 1, positions, channels, 1, positions, channels)
        if other is not None:
            step.kind, step.other = Kind.ADD, other.number
        copy = self._append(step, value.shape, _Epilogue.none(channels, axis))
        return replace(copy, turned=value.turned)

    def compile(self, value: _Value) -> Callable[[Array], tuple[Array, bool]]:
        """The function of batches of inputs that gives this value, and whether all inputs are finite."""
        value = self._plain(value)
        if value.number == 0:
            value = self._copy(value)
        for step in self._steps:
            if step.kind != Kind.TRANSPOSE:
                step.epilogue = self._store(self._epilogues[step.target].numbers(step.groups))
        slots, sizes = self._slots(value.number)
        for step in self._steps:
            step.source, step.other, step.target = slots[step.source], slots[step.other], slots[step.target]
        steps = np.array([step.row() for step in self._steps], np.int64)
        numbers = np.concatenate(self._numbers)
        taps = np.concatenate([np.zeros(0, np.int64), *self._taps])
        words = np.concatenate([np.zeros(0, np.uint64), *self._words])
        shape, (inputs, outputs) = value.shape, sizes[:2].tolist()
        none = np.empty((0, inputs), np.float32), np.empty((0, outputs), np.float32)
        compute = kernels.prepare_real_steps(steps, sizes, taps, numbers, words, *none)

        def run(x: Array) -> tuple[Array, bool]:
            out = np.empty((len(x), outputs), np.float32)
            rows = np.ascontiguousarray(x, np.float32).reshape(len(x), inputs)
            finite = compute(rows, out)
            return out.reshape(len(x), *shape), finite

        return run

    def _slots(self, last: int) -> tuple[dict[int, int], Array]:
        """The slot of every value, and the slots' sizes; a slot is used again when its value is not needed any more."""
        ends = {step.target: place for place, step in enumerate(self._steps)}
        for place, step in enumerate(self._steps):
            ends[step.source] = ends[step.other] = place
        slots, sizes, free = {0: 0, last: 1}, [self._sizes[0], self._sizes[last]], set[int]()
        for place, step in enumerate(self._steps):
            if step.target != last:
                slot = max(free, key=sizes.__getitem__, default=len(sizes))
                free.discard(slot)
                sizes += [0] * (slot == len(sizes))
                slots[step.target], sizes[slot] = slot, max(sizes[slot], self._sizes[step.target])
            over = {slots[number] for number, end in ends.items() if end == place and number in slots}
            free |= over - {0, 1}
        return slots, np.array(sizes, np.int64)


def real_program(stages: Sequence[Stage], number: int) -> Callable[[Array], tuple[Array, bool]]:
    """Stages of one program, the first of this number, as a function: the last value, and if all is finite."""
    program = _Program(stages[0].before[0].shape)
    uses = Counter(source for stage in stages for source in stage.sources)
    values = {stages[0].sources[0]: replace(program.input, shared=True)}
    for place, stage in enumerate(stages, number):
        value = program.add(stage, *(values[source] for source in stage.sources))
        alias = isinstance(stage.operation, ops.Reshape) and values[stage.sources[0]].shared
        values[place] = replace(value, shared=uses[place] > 1 or alias)
    return program.compile(values[number + len(stages) - 1])
