"""Inference over real numbers, in plain numpy: the steps of `real_inputs.cpp`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PANEL = 16
"""Units whose weights stand side by side."""


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
    """One step, a row of `real_steps`'s steps; a sample's values stand as (height, length, channels) in slots.

    Attributes:
        kind: A `Kind`.
        source: Slot.
        other: Slot of the second summand of an addition.
        target: Slot.
        height: Of the source; like the next two.
        length: Of the source.
        channels: Of the source.
        rows: Of the target; like the next two.
        columns: Of the target.
        units: Of the target.
        high: Of the window.
        wide: Of the window.
        groups: Parts of the channels that are not connected; 1 but for sums.
        direct: Of sums: whether position k sees pixel k alone. Of means: whether zeros that are added count.
        taps: Where indices (rows, high) and then (columns, wide) of the source's pixels begin, −1 for zeros.
        weights: Where panels (groups, ⌈units / 16⌉, window · channels, 16) begin; per channel (window, channels).
        words: Where words (⌈channels / 64⌉, units) of the weights' signs begin, for few rows; −1 for none.
        epilogue: Where the least and the largest result, factors and offsets begin, the latter for whole panels.
    """

    kind: int
    source: int
    target: int
    height: int
    length: int
    channels: int
    rows: int
    columns: int
    units: int
    other: int = 0
    high: int = 1
    wide: int = 1
    groups: int = 1
    direct: int = 0
    taps: int = 0
    weights: int = 0
    words: int = -1
    epilogue: int = 0

    def row(self) -> list[int]:
        """The numbers in the order of the compiled kernel."""
        return [getattr(self, name) for name in _FIELDS]

    @classmethod
    def of(cls, row: Array) -> RealStep:
        """The inverse of `row`."""
        return cls(**dict(zip(_FIELDS, row.tolist(), strict=True)))


_FIELDS = (
    *("kind", "source", "other", "target", "height", "length", "channels", "rows", "columns", "units"),
    *("high", "wide", "groups", "direct", "taps", "weights", "words", "epilogue"),
)
"""In the order of the compiled kernel."""


def real_steps(
    steps: Array, slots: Array, taps: Array, numbers: Array, words: Array, inputs: Array, out: Array
) -> bool:
    """Write what the steps compute of every sample; whether all inputs are finite.

    Args:
        steps: Rows of `RealStep`, int64.
        slots: Numbers per sample in every slot, int64; 0 is the input, 1 the output.
        taps: Indices of pixels, int64.
        numbers: Weights, bounds, factors and offsets, float32.
        words: Signs, uint64; they are those of the weights, and not looked at here.
        inputs: Samples (B, …), float32.
        out: Results (B, …), float32.
    """
    values = {0: inputs}
    for row in steps:
        step = RealStep.of(row)
        images = values[step.source].reshape(len(inputs), step.height, step.length, step.channels)
        result = _result(step, images, values, taps, numbers)
        values[step.target] = result.astype(np.float32).reshape(len(inputs), -1)
    out[:] = values[1]
    return bool(np.isfinite(inputs).all())


def _result(step: RealStep, images: Array, values: dict[int, Array], taps: Array, numbers: Array) -> Array:
    match step.kind:
        case Kind.TRANSPOSE:
            return images.swapaxes(1, 2)
        case Kind.SCALE:
            return _epilogue(step, images, numbers)
        case Kind.ADD:
            return _epilogue(step, images + values[step.other].reshape(images.shape), numbers)
    patches, inside = _patches(step, images, taps)
    if step.kind == Kind.LARGEST:
        return _epilogue(step, np.where(inside, patches, -np.inf).max((3, 4)), numbers)
    if step.kind == Kind.MEAN:
        counts = step.high * step.wide if step.direct else inside.sum((3, 4))
        return _epilogue(step, patches.sum((3, 4)) / counts, numbers)
    count = step.high * step.wide * step.channels
    if step.kind == Kind.PER_CHANNEL:
        weights = numbers[step.weights : step.weights + count].reshape(step.high, step.wide, step.channels)
        return _epilogue(step, (patches * weights).sum((3, 4)), numbers)
    per_group, units = step.channels // step.groups, step.units // step.groups
    n, panels = count // step.groups, -(-units // PANEL)
    panel_weights = numbers[step.weights :][: step.groups * panels * n * PANEL].reshape(step.groups, panels, n, PANEL)
    grouped = patches.reshape(*patches.shape[:5], step.groups, per_group).transpose(0, 1, 2, 5, 3, 4, 6)
    sums = np.einsum("bijgn,gpnu->bijgpu", grouped.reshape(*grouped.shape[:4], n), panel_weights)
    flat = sums.reshape(*sums.shape[:4], panels * PANEL)[..., :units]
    return _epilogue(step, flat.reshape(*flat.shape[:3], step.units), numbers)


def _patches(step: RealStep, images: Array, taps: Array) -> tuple[Array, Array]:
    """(B, rows, columns, high, wide, channels), zero where nothing is seen, and where something is."""
    if step.kind == Kind.SUMS and step.direct:
        seen = images.reshape(len(images), step.rows, step.columns, 1, 1, step.channels)
        return seen, np.ones((1, 1, 1, 1, 1, 1), bool)
    down, across = step.rows * step.high, step.columns * step.wide
    rows = taps[step.taps : step.taps + down].reshape(step.rows, 1, step.high, 1)
    columns = taps[step.taps + down : step.taps + down + across].reshape(1, step.columns, 1, step.wide)
    inside = ((rows >= 0) & (columns >= 0))[None, ..., None]
    return np.where(inside, images[:, rows, columns], np.float32(0)), inside


def _epilogue(step: RealStep, sums: Array, numbers: Array) -> Array:
    """Scaled sums within the bounds."""
    units = step.units // step.groups
    padded = -(-units // PANEL) * PANEL
    low, high = numbers[step.epilogue : step.epilogue + 2]
    pairs = numbers[step.epilogue + 2 :][: 2 * step.groups * padded].reshape(2, step.groups, padded)[..., :units]
    factors, offsets = pairs.reshape(2, step.units)
    clipped: Array = np.clip(factors * sums + offsets, low, high)
    return clipped
