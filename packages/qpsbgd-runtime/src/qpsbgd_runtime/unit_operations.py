"""Operations that treat each unit's numbers by figures of its own: scales, thresholds, integers of 8 bits."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qpsbgd_runtime.operations import Array, Kind, Operation, Shape, Step
from qpsbgd_runtime.rules import Rules, are_whole, is_end, is_list

_UNITS = "units along the first or the last dimension"


class Lines(NamedTuple):
    """⌊(factor · sum + offset) / 2^shift⌋ within bounds, per unit, but for exceptions (k, 3): units, sums, results."""

    factors: Array
    offsets: Array
    shift: int
    lows: Array
    highs: Array
    exceptions: Array

    def step(self, shape: Shape, *, axis: int | None, dtype: str) -> Step:
        """What numpy computes of sums whose units are along an axis."""
        factors, offsets, lows, highs = (
            per_unit(values, axis, shape) for values in (self.factors, self.offsets, self.lows, self.highs)
        )
        place = 1 if axis == 0 else -1

        def run(sums: Array) -> Array:
            results: Array = (factors * sums.astype(np.int64) + offsets >> self.shift).clip(lows, highs).astype(dtype)
            for unit, at, result in self.exceptions:
                of_unit = (slice(None),) * (place % sums.ndim) + (unit,)
                results[of_unit][sums[of_unit] == at] = result
            return results

        return run


@dataclass(frozen=True, eq=False)
class Threshold(Operation):
    """+1 where a unit's sum is at least its level, −1 elsewhere; the other way round where `flipped`."""

    levels: Array  # one integer per unit (m,)
    flipped: Array  # one boolean per unit (m,)
    axis: int | None = 0  # where the units are: see `Scale`

    takes = ("ints",)
    gives = "bits"

    def _rules(self) -> Rules:
        yield is_end(self.axis), _UNITS
        right = is_list(self.levels, "i4") and is_list(self.flipped, "?") and len(self.levels) == len(self.flipped)
        yield right, "as many whole levels of 32 bits as directions"

    def _shape(self, shape: Shape) -> Shape:
        return _with_units(self, shape, {len(self.levels), len(self.flipped)})

    @property
    def lines(self) -> Lines:
        """2 · (sum − level) + 1 within ±1."""
        turns, bound = np.where(self.flipped, -1, 1), np.ones(len(self.levels), np.int32)
        offsets = turns * (1 - 2 * self.levels.astype(np.int64))
        return Lines(2 * turns, offsets, 0, -bound, bound, np.zeros((0, 3), np.int64))

    def _step(self, shape: Shape) -> Step:
        """The step for sums that are also needed elsewhere; others are part of a compiled layer."""
        return self.lines.step(shape, axis=self.axis, dtype="int8")


@dataclass(frozen=True)
class Steps:
    """Integers from `low` to `high`, which count 2^exponent: the results of a `QuantActivation`."""

    low: int
    high: int
    exponent: int

    @property
    def kind(self) -> Kind:
        """The smallest kind of values."""
        return "int8" if self.low < 0 else "uint8"

    @property
    def scale(self) -> float:
        """2^exponent."""
        return math.ldexp(1.0, self.exponent)


def _are_steps(steps: Any) -> bool:
    if not isinstance(steps, Steps) or not are_whole((steps.low, steps.high, steps.exponent), least=-128):
        return False
    most = 127 if steps.low < 0 else 255
    return steps.low <= 0 < steps.high <= most and abs(steps.exponent) <= 120


@dataclass(frozen=True, eq=False)
class Quantize(Operation):
    """x / 2^exponent, rounded to the nearest integer, ties to even ones, within low and high."""

    steps: Steps

    @property
    def gives(self) -> Kind:
        """Numbers of 8 bits."""
        return self.steps.kind

    def _rules(self) -> Rules:
        yield _are_steps(self.steps), "integers of 8 bits that count a power of two"

    def _step(self, shape: Shape) -> Step:
        steps, scale = self.steps, np.float32(self.steps.scale)
        return lambda x: np.rint(x / scale).clip(steps.low, steps.high).astype(steps.kind)


@dataclass(frozen=True, eq=False)
class Requantize(Operation):
    """⌊(factor · sum + offset) / 2^shift⌋ within low and high, per unit: what quantises a layer's sums."""

    factors: Array  # integers (m,); no sum times it, plus the offset, needs more than 63 bits
    offsets: Array  # likewise
    shift: int  # of the results
    lows: Array  # the least result of each unit (m,)
    highs: Array  # the largest (m,)
    exceptions: tuple[tuple[int, int, int], ...]  # (unit, sum, result) where torch's float32 rounds otherwise
    steps: Steps  # what the results count
    axis: int | None = 0  # where the units are: see `Scale`

    takes = ("ints",)

    @property
    def gives(self) -> Kind:
        """Numbers of 8 bits."""
        return self.steps.kind

    def _rules(self) -> Rules:
        yield is_end(self.axis), _UNITS
        lines, bounds = (self.factors, self.offsets), (self.lows, self.highs)
        whole = all(is_list(part, "i4", "i8") for part in lines) and all(is_list(part, "i4") for part in bounds)
        alike = whole and all(len(part) == len(self.factors) for part in (*lines, *bounds))
        yield alike, "as many whole factors as offsets and bounds, these of 32 bits"
        yield type(self.shift) is int and 0 <= self.shift <= 61, "a shift of 0 to 61 bits"
        steps, lows, highs = self.steps, self.lows, self.highs
        inside = _are_steps(steps) and not (lows < steps.low).any() and not (highs > steps.high).any()
        yield inside, "results within their steps"
        yield not (lows > highs).any(), "bounds in order"
        for place in self.exceptions if isinstance(self.exceptions, tuple) else ("",):
            right = are_whole(place, least=-(2**31)) and len(place) == 3 and 0 <= place[0] < len(self.factors)
            yield right and steps.low <= place[2] <= steps.high, "exceptions of units, sums and results"

    def _shape(self, shape: Shape) -> Shape:
        return _with_units(self, shape, {len(v) for v in (self.factors, self.offsets, self.lows, self.highs)})

    @property
    def lines(self) -> Lines:
        """The same, in the types of the kernel."""
        factors, offsets = (values.astype(np.int64) for values in (self.factors, self.offsets))
        exceptions = np.array(self.exceptions, np.int64).reshape(-1, 3)
        return Lines(factors, offsets, self.shift, self.lows, self.highs, exceptions)

    def _step(self, shape: Shape) -> Step:
        """The step for sums that are also needed elsewhere; others are part of a compiled layer."""
        return self.lines.step(shape, axis=self.axis, dtype=self.gives)


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """factor · x + offset, per unit."""

    factor: Array  # one number per unit (m,), or one for all (1,), in float32
    offset: Array  # likewise
    axis: int | None = 0  # of the units, 0 or −1; None behind a dense layer with a batch norm, of flat samples

    takes = ("real", "int8", "uint8", "ints")
    gives = "real"

    def _rules(self) -> Rules:
        yield is_end(self.axis), _UNITS
        finite = all(is_list(v, "f4") and np.isfinite(v).all() for v in (self.factor, self.offset))
        yield finite, "finite factors in float32"

    def _shape(self, shape: Shape) -> Shape:
        return _with_units(self, shape, {len(self.factor), len(self.offset)} - {1})

    def _step(self, shape: Shape) -> Step:
        """In float32; after layers of real numbers, scales are part of a compiled program."""
        factor, offset = (per_unit(values, self.axis, shape) for values in (self.factor, self.offset))
        return lambda x: factor * x.astype(np.float32, copy=False) + offset


def _with_units(operation: Threshold | Scale | Requantize, shape: Shape, counts: set[int]) -> Shape:
    """The shape, which must have this many units; raises otherwise."""
    known = operation.axis is not None or len(shape) == 1
    if counts and not (shape and known and counts == {shape[operation.axis or 0]}):
        raise ValueError(f"{max(counts)} units")
    return shape


def per_unit(values: Array, axis: int | None, shape: Shape) -> Array:
    """Numbers of units, (m,) or (1,), so that they broadcast against samples of a shape."""
    return values if axis == -1 else values.reshape(-1, *(1,) * (len(shape) - 1))
