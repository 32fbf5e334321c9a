"""A step of a program over real numbers, as the compiled kernel `real_steps` reads it."""

import enum
from dataclasses import astuple, dataclass, field

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
