"""How much of an axis is worth showing, and which lines leave it."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

LOG_FROM = 30.0
"""A positive axis that spans more than this factor is logarithmic."""

_GENEROUS = 1.5
"""Lines that leave the typical range by more than this many times its span are cut off."""


class Exit(NamedTuple):
    """Where a line first leaves the scale, whether upwards, and its most extreme value beyond."""

    x: float
    upwards: bool
    extreme: float


def finite(values: Iterable[float | None]) -> list[float]:
    """Numbers with NaN for what is missing or infinite."""
    return [float(v) if v is not None and math.isfinite(v) else math.nan for v in values]


def y_range(means: Sequence[Sequence[float | None]], *, may_be_log: bool) -> tuple[float, float, bool]:
    """Lowest and highest value to show of some lines, and whether the axis is logarithmic.

    The axis covers the lines' ranges, except what leaves the typical range (the medians of the lower and upper ends)
    by more than one and a half times its span, so that a line that explodes does not flatten the others. The first line
    is shown whole.
    """
    lines = [np.array(finite(mean)) for mean in means]
    lines = [line[~np.isnan(line)] for line in lines]
    lines = [line for line in lines if len(line)]
    if not lines:
        return 0.0, 1.0, False
    low, high = _robust(lines)
    positive = min(float(line.min()) for line in lines) > 0
    if may_be_log and positive and high > LOG_FROM * max(low, 1e-300):
        low, high = (float(10**end) for end in _robust([np.log10(line) for line in lines]))
        factor = max(high / low, 1.01) ** 0.05
        return low / factor, high * factor, True
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return low - margin, high + margin, False


def exits(x: Sequence[float], mean: Sequence[float | None], *, low: float, high: float) -> list[Exit]:
    """Where a line leaves the scale from `low` to `high`: at most once upwards and once downwards."""
    found = []
    values = np.array(finite(mean))
    for upwards, outside in ((True, values > high), (False, values < low)):
        if outside.any():
            first = int(np.argmax(outside))
            extreme = values[outside].max() if upwards else values[outside].min()
            found.append(Exit(_crossing(x, values, first, high if upwards else low), upwards, float(extreme)))
    return found


def _crossing(x: Sequence[float], values: np.ndarray[Any, np.dtype[np.float64]], first: int, edge: float) -> float:
    """Where the line from the point before `first` to it reaches the edge."""
    if first == 0 or math.isnan(values[first - 1]):
        return float(x[first])
    share = (edge - values[first - 1]) / (values[first] - values[first - 1])
    return float(x[first - 1] + share * (x[first] - x[first - 1]))


def may_be_log(label: str) -> bool:
    """Whether a series of that name is a loss or the like rather than an accuracy."""
    return "accuracy" not in label.lower()


def _robust(lines: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> tuple[float, float]:
    lows = np.array([line.min() for line in lines])
    highs = np.array([line.max() for line in lines])
    bottom, top = float(np.median(lows)), float(np.median(highs))
    span = _GENEROUS * (top - bottom)
    if span == 0:
        return float(lows.min()), float(highs.max())
    # The first line is ours: it is shown whole.
    low = min(max(float(lows.min()), bottom - span), float(lows[0]))
    return low, max(min(float(highs.max()), top + span), float(highs[0]))
