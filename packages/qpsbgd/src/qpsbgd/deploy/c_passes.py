"""What is done to a network before it becomes C, so that small integers stand in the place of larger ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import qpsbgd_runtime.operations as ops
from qpsbgd_runtime.image_operations import AveragePool, MaxPool
from qpsbgd_runtime.operations import Array, Kind, Operation, Shape
from qpsbgd_runtime.stages import Stage, last_uses, needed, walk
from qpsbgd_runtime.tensor_operations import Combine, Concatenate
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Scale, Steps, Threshold

EXACT = 2**24
"""Integers up to which float32 has all."""
_LARGEST = {"int8": 128, "uint8": 255}


@dataclass(frozen=True, eq=False)
class MixedPool(MaxPool):
    """The largest value of each window, or the smallest for units (m,) that are `falling`."""

    falling: Array


@dataclass(frozen=True, eq=False)
class WholeSum(Operation):
    """Σ factor · values / divisor, or its mean over a pool's windows, rounded to steps: ties to even numbers.

    Several such sums of values of one image follow one another, channel by channel; then there is no pool.

    Attributes:
        factors: For every sum one integer per value; values go in sum by sum.
        divisor: A power of two.
        pool: The average pool, if there is one.
        steps: What the results count.
        bounds: The least and the largest result.
    """

    factors: tuple[tuple[int, ...], ...]
    divisor: int
    pool: AveragePool | None
    steps: Steps
    bounds: tuple[int, int]

    takes = ("int8", "uint8")
    count = None

    @property
    def gives(self) -> Kind:
        """Numbers of 8 bits."""
        return self.steps.kind

    def _shape(self, *shapes: Any, **_: Any) -> Shape:
        if self.pool is not None:
            return self.pool.shape_after(shapes[0])
        firsts = np.cumsum([0, *map(len, self.factors[:-1])])
        return (sum(shapes[first][0] for first in firsts), *shapes[0][1:])


def in_small_numbers(operations: Sequence[Operation], shape: Shape) -> tuple[Operation, ...]:
    """The network with pools after what is done to sums, and with sums of integers where float32 is as exact."""
    changed = _pools_behind(operations)
    stages = walk(changed, shape)
    if any(isinstance(stage.operation, ops.Dense) and len(stage.before[0].shape) > 1 for stage in stages):
        return tuple(changed)  # features come last there, channels first elsewhere
    for number, stage in enumerate(stages, 1):
        if isinstance(stage.operation, Quantize):
            _sum_whole(changed, stages, number)
    return needed(changed, len(changed))


def _pools_behind(operations: Sequence[Operation]) -> list[Operation]:
    """Thresholds and lines are done to sums before their largest ones are found: they rise or fall with sums."""
    changed, last = list(operations), last_uses(operations)
    for at, (layer, pool, after) in enumerate(zip(changed, changed[1:], changed[2:], strict=False)):
        straight = last[at + 1] == at + 2 and last[at + 2] == at + 3 and not {*after.inputs} - {at + 2}
        sums = isinstance(layer, ops.Weighted) and layer.integer and not {*pool.inputs} - {at + 1}
        if straight and sums and isinstance(pool, MaxPool) and isinstance(after, Threshold | Requantize):
            falling = after.flipped if isinstance(after, Threshold) else after.factors < 0
            changed[at + 1] = replace(after, inputs=())
            changed[at + 2] = MixedPool(pool.name, pool.window, falling)
    return changed


class _Terms(NamedTuple):
    """Values of 8 bits with what each counts, and the average pool after their sum."""

    values: list[tuple[int, float]]
    pool: AveragePool | None = None


def _sum_whole(operations: list[Operation], stages: Sequence[Stage], number: int) -> None:
    """Put a sum of integers in the place of a Quantize, if it rounds one that float32 has exactly."""
    quantize = operations[number - 1]
    assert isinstance(quantize, Quantize)
    steps = quantize.steps
    (source,) = stages[number - 1].sources
    before = operations[source - 1] if source else None
    target = number
    if isinstance(before, ops.Reshape) and source == number - 1 and last_uses(operations)[source] == number:
        (source,), target = stages[source - 1].sources, source
    low, high = steps.low, steps.high
    while source and isinstance(clip := operations[source - 1], ops.Clip):
        low, high = (int(np.rint(end / steps.scale).clip(low, high)) for end in (clip.low, clip.high))
        (source,) = stages[source - 1].sources
    joined = operations[source - 1] if source else None
    sources: tuple[int, ...] = (source,)
    if isinstance(joined, Concatenate) and joined.dimension(stages[source - 1].after.shape) == 0:
        sources = stages[source - 1].sources
    sums = [_terms(operations, stages, source) for source in sources]
    pool = sums[0] and sums[0].pool
    if any(terms is None or (terms.pool and len(sums) > 1) for terms in sums):
        return
    parts = [terms.values for terms in sums if terms]
    values = [value for part in parts for value, _ in part]
    if any(isinstance(operations[value - 1], ops.Reshape) for value in values):
        return  # flattened images keep their order of channels and pixels, which that of vectors is not
    least = min(steps.scale, *(abs(step) for part in parts for _, step in part))
    factors = tuple(tuple(round(step / least) for _, step in part) for part in parts)
    window = math.prod(pool.window_for(stages[values[0] - 1].after.shape).size) if pool else 1
    most = max(
        sum(abs(step / least) * _LARGEST[stages[value - 1].after.kind] for value, step in part) for part in parts
    )
    divisor = round(steps.scale / least)
    if max(most, divisor) * window >= EXACT:
        return
    if before is not None and target != number:
        operations[number - 1] = replace(before, inputs=())
    operations[target - 1] = WholeSum(quantize.name, factors, divisor, pool, steps, (low, high), inputs=tuple(values))


def _terms(operations: Sequence[Operation], stages: Sequence[Stage], number: int) -> _Terms | None:
    """A value as a sum of values of 8 bits, each times a power of two; None for others."""
    operation, sources = (operations[number - 1], stages[number - 1].sources) if number else (None, ())
    parts = [_terms(operations, stages, source) for source in sources] if _adds(operation, stages, number) else []
    if isinstance(operation, Scale):
        factor = float(operation.factor[0])
        if len(operation.factor) > 1 or operation.offset.any() or abs(math.frexp(factor)[0]) != 0.5:
            return None
        if stages[number - 1].before[0].kind in _LARGEST:
            return _Terms([(sources[0], factor)])
        part = _terms(operations, stages, sources[0])
        return part and _Terms([(value, step * factor) for value, step in part.values], part.pool)
    if isinstance(operation, AveragePool):
        part = _terms(operations, stages, sources[0])
        return None if part is None or part.pool else _Terms(part.values, operation)
    if not parts or any(part is None or part.pool for part in parts):
        return None
    signs = (1, -1 if isinstance(operation, Combine) and operation.how == "subtract" else 1)
    return _Terms(
        [(value, sign * step) for sign, part in zip(signs, parts, strict=True) if part for value, step in part.values]
    )


def _adds(operation: Operation | None, stages: Sequence[Stage], number: int) -> bool:
    """Whether an operation adds or subtracts two values of one shape."""
    if not isinstance(operation, Combine) or operation.constant is not None or operation.how == "multiply":
        return False
    first, second = stages[number - 1].before
    return first.shape == second.shape
