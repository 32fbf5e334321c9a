"""A step of a program over real numbers, as the compiled kernel `real_steps` reads it."""

from __future__ import annotations

import enum
from dataclasses import astuple, dataclass, field

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
    """One row of the steps that the kernel takes; a sample's values stand as (height, length, channels) in slots.

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
    other: int = field(default=0, kw_only=True)
    target: int
    height: int
    length: int
    channels: int
    rows: int
    columns: int
    units: int
    high: int = 1
    wide: int = 1
    groups: int = 1
    direct: int = 0
    taps: int = 0
    weights: int = 0
    words: int = -1
    epilogue: int = 0

    def row(self) -> list[int]:
        """The numbers in the order of the fields, which is the kernel's."""
        return list(astuple(self))
