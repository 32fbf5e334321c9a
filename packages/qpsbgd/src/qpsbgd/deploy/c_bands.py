"""Images by bands of rows: steps that follow each other compute some rows of the last one's result, then the next rows.

What stands between these steps then needs memory for the rows of one band. Rows at which windows of two bands meet are
computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import qpsbgd_runtime.operations as ops
from qpsbgd.deploy.c_passes import WholeSum
from qpsbgd_runtime.image_operations import Convolution, MaxPool, Window
from qpsbgd_runtime.operations import SMALL, Operation, Shape
from qpsbgd_runtime.stages import Stage, last_uses
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Threshold

_MOST_STEPS = 10
"""Operations in a row: more of them compute many rows twice."""

Span = tuple[int, int]
"""The first row, and the one behind the last."""


class Bands(NamedTuple):
    """The operations from one number to another, both included, by bands of so many rows of the result."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, eq=False)
class Rows(Operation):
    """Some rows of an image (channels, rows, columns)."""

    span: Span

    takes = ("real", *SMALL)

    def _shape(self, shape: Shape) -> Shape:
        return (shape[0], self.span[1] - self.span[0], shape[2])


@dataclass(frozen=True, eq=False)
class Joined(Operation):
    """The image of several bands of rows."""

    takes = SMALL
    count = None

    def _shape(self, *shapes: Any, **_: Any) -> Shape:
        return (shapes[0][0], sum(shape[1] for shape in shapes), shapes[0][2])


def candidates(stages: Sequence[Stage], number: int) -> Iterator[Bands]:
    """Bands of operations with the one that has this number among them, from the fewest bands on."""
    last_use = last_uses([stage.operation for stage in stages])
    parts = []
    for first in range(max(1, number - _MOST_STEPS + 1), number + 1):
        for last in range(max(first + 1, number), min(first + _MOST_STEPS, len(stages)) + 1):
            part = stages[first - 1 : last]
            source = part[0].sources[0]
            alone = all(last_use[value] <= last for value in range(first, last))
            entered = all({*stage.sources} <= {source, *range(first, last)} for stage in part)
            ends = part[0].before[0].kind != "ints" and part[-1].after.kind in SMALL
            if alone and entered and ends and all(map(_by_rows, part)):
                parts.append((first, last, part[-1].after.shape[1]))
    parts.sort(key=lambda part: part[1] - part[0])
    for bands in (2, 3, 4, 6, 8, 12, 16):
        yield from (Bands(first, last, -(-height // bands)) for first, last, height in parts if height >= bands)


def _by_rows(stage: Stage) -> bool:
    """Whether rows of an image need some rows of what goes in."""
    operation, (value, *_) = stage.operation, stage.before
    if len(value.shape) != 3 or (value.kind == "real" and stage.sources != (0,)):
        return False
    window = operation.window_for(value.shape) if isinstance(operation, Convolution | MaxPool) else None
    if window is not None:
        return window.mode == "zeros" and value.kind != "real"
    whole = isinstance(operation, WholeSum) and operation.pool is None
    return whole or isinstance(operation, Threshold | Requantize | Quantize | ops.Sign)


def split_into_bands(operations: Sequence[Operation], stages: Sequence[Stage], bands: Bands) -> Sequence[Operation]:
    """The operations with some of them by bands; none where a band would see nothing of its image."""
    first, last, height = bands
    source, image = stages[first - 1].sources[0], stages[last - 1].after.shape[1]
    changed, numbers = list(operations[: first - 1]), {number: number for number in range(first)}
    results = []
    for begin in range(0, image, height):
        spans = _row_spans(stages, bands, (begin, min(begin + height, image)))
        if any(span[0] >= span[1] for span in spans.values()):
            return ()
        have = {source: (0, stages[first - 1].before[0].shape[1])}
        places = {source: numbers[source]}
        for number in range(first, last + 1):
            stage, inputs = stages[number - 1], list[int]()
            for value in stage.sources:
                wanted, window = _input_rows(stage, spans[number])
                if wanted != have[value]:
                    at = have[value][0]
                    changed.append(
                        Rows(stage.operation.name, (wanted[0] - at, wanted[1] - at), inputs=(places[value],))
                    )
                    inputs.append(len(changed))
                else:
                    inputs.append(places[value])
            name = f"{stage.operation.name}, rows {spans[number][0]} to {spans[number][1] - 1}"
            operation = stage.operation
            if window is not None:
                assert isinstance(operation, Convolution | MaxPool)
                operation = replace(operation, window=window)
            changed.append(replace(operation, name=name, inputs=tuple(inputs)))
            have[number], places[number] = spans[number], len(changed)
        results.append(len(changed))
    changed.append(Joined(stages[last - 1].operation.name, inputs=tuple(results)))
    numbers[last] = len(changed)
    for number in range(last + 1, len(operations) + 1):
        sources = tuple(numbers[value] for value in stages[number - 1].sources)
        changed.append(replace(operations[number - 1], inputs=sources))
        numbers[number] = len(changed)
    return changed


def _row_spans(stages: Sequence[Stage], bands: Bands, span: Span) -> dict[int, Span]:
    """Rows of every result of these operations, for some rows of the last one."""
    spans = {bands.last: span}
    for number in range(bands.last, bands.first - 1, -1):
        for value in stages[number - 1].sources:
            if value >= bands.first:
                seen, known = _input_rows(stages[number - 1], spans[number])[0], spans.get(value)
                spans[value] = (min(seen[0], known[0]), max(seen[1], known[1])) if known else seen
    return spans


def _input_rows(stage: Stage, span: Span) -> tuple[Span, Window | None]:
    """The rows that some rows of an operation's result need, and its window with what is added to them."""
    window = stage.operation.window_for(stage.before[0].shape)
    if window is None:
        return span, None
    height = stage.before[0].shape[1]
    (size, *_), (stride, *_), ((above, _), *sides), (gap, *_) = (
        window.size,
        window.stride,
        window.sides,
        window.dilation,
    )
    begin, end = span[0] * stride - above, (span[1] - 1) * stride - above + gap * (size - 1) + 1
    rows = (max(0, begin), min(height, end))
    return rows, replace(window, sides=((max(0, -begin), max(0, end - height)), *sides))
