"""Operations that treat each unit's numbers by figures of its own: scales, thresholds, whole numbers of 8 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qpsbgd_runtime.operations import Array, Kind, Operation, Shape


@dataclass(frozen=True, eq=False)
class Threshold(Operation):
    """+1 where a unit's sum is at least its level, −1 elsewhere; the other way round where `flipped`.

    Attributes:
        levels: One whole number per unit (m,).
        flipped: One boolean per unit (m,).
        axis: Where the units are: see `Scale`.
    """

    levels: Array
    flipped: Array
    axis: int | None = 0

    takes = ("ints",)
    gives = "bits"

    def _shape(self, shape: Shape) -> Shape:
        return _with_units(self, shape, {len(self.levels), len(self.flipped)})


@dataclass(frozen=True)
class Steps:
    """Whole numbers from `low` to `high`, which count 2^exponent: the results of a `QuantActivation`."""

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


@dataclass(frozen=True, eq=False)
class Quantize(Operation):
    """x / 2^exponent, rounded to the nearest whole number, ties to even ones, within low and high."""

    steps: Steps

    @property
    def gives(self) -> Kind:
        """Numbers of 8 bits."""
        return self.steps.kind


@dataclass(frozen=True, eq=False)
class Requantize(Operation):
    """⌊(factor · sum + offset) / 2^shift⌋ within low and high, per unit: what quantises a layer's sums.

    Attributes:
        factors: One whole number per unit (m,); no sum times it, plus the offset, needs more than 63 bits.
        offsets: Likewise.
        shift: Of the results.
        lows: The least result of each unit (m,).
        highs: The largest (m,).
        exceptions: (unit, sum, result) where float32 rounds to something else, in torch, than the line does.
        steps: What the results count.
        axis: Where the units are: see `Scale`.
    """

    factors: Array
    offsets: Array
    shift: int
    lows: Array
    highs: Array
    exceptions: tuple[tuple[int, int, int], ...]
    steps: Steps
    axis: int | None = 0

    takes = ("ints",)

    @property
    def gives(self) -> Kind:
        """Numbers of 8 bits."""
        return self.steps.kind

    def _shape(self, shape: Shape) -> Shape:
        return _with_units(self, shape, {len(v) for v in (self.factors, self.offsets, self.lows, self.highs)})


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """factor · x + offset, per unit.

    Attributes:
        factor: One number per unit (m,), or one for all (1,), in float32.
        offset: Likewise.
        axis: Where the units are: 0 for channels, −1 for features; None where a dense layer and a batch norm behind it
            have become one, which is right for samples of one dimension only.
    """

    factor: Array
    offset: Array
    axis: int | None = 0

    takes = ("real", "int8", "uint8", "ints")
    gives = "real"

    def _shape(self, shape: Shape) -> Shape:
        return _with_units(self, shape, {len(self.factor), len(self.offset)} - {1})


UNIT_OPERATIONS = (Threshold, Quantize, Requantize, Scale)
"""All operations of this file."""


def _with_units(operation: Threshold | Scale | Requantize, shape: Shape, counts: set[int]) -> Shape:
    """The shape, which must have so many units; raises otherwise."""
    known = operation.axis is not None or len(shape) == 1
    if counts and not (shape and known and counts == {shape[operation.axis or 0]}):
        raise ValueError(f"{max(counts)} units")
    return shape


def per_unit(values: Array, axis: int | None, shape: Shape) -> Array:
    """Numbers of units, (m,) or (1,), so that they broadcast against samples of a shape."""
    return values if axis == -1 else values.reshape(-1, *(1,) * (len(shape) - 1))
