"""How a method looks in every figure, which cases belong together, and how much of an axis is worth showing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Summary = Mapping[str, Any]
"""An experiment's results as its JSON file holds them."""

INK = "#808790"
"""A grey with contrast on white and on black."""

RED = "#d6274a"
"""Ours. Warm colours are forms of QP-SBGD, cool ones are baselines; all have contrast on white and on black."""

PALETTE = (
    *(RED, "#1b68c4", "#17a589", "#d07d14", "#b07fdc", "#5f9a2c", "#b8479b", "#3f9bd1"),
    *("#9a5b3c", "#5a63c8", "#a8871c", "#0f8a9d", "#e06682", "#4d7f72", "#7d8f2a", "#c76f4a"),
)
"""Colours of things that are no methods, such as the spins of a QUBO; the same contrast."""

LOG_FROM = 30.0
"""A positive axis that spans more than this factor is logarithmic."""

_GENEROUS = 1.5
"""Lines that leave the typical range by more than this many times its span are cut off."""


@dataclass(frozen=True)
class Style:
    """Colour, dashes in units of pixels ("" for a solid line) and width of a line."""

    colour: str
    dash: str = ""
    width: float = 1.6


_KNOWN = {
    "qpsbgd": Style(RED, width=2.6),
    "qpsbgd-printed": Style("#e06682", "6 3", 1.8),
    "qpsbgd-annealed": Style("#d07d14", "9 2 2 2", 1.8),
    "qpsbgd-virtual": Style("#d07d14", "4 2", 1.8),
    "bc-sgd": Style("#1b68c4"),
    "bc-sign": Style("#17a589"),
    "bc-adam": Style("#b07fdc"),
    "proxquant": Style("#6b7077", "2 2", 1.8),
}
_SPARE = {
    "ours": ("#d07d14", "#b8479b", "#9a5b3c", "#e0607e", "#a8871c"),
    "paper": ("#e06682", "#c76f4a", "#cc6fb0"),
    "baseline": ("#3f9bd1", "#5f9a2c", "#5a63c8", "#0f8a9d", "#7d8f2a", "#8f7fa8", "#4d7f72"),
}
_EQUALS = (RED, "#d07d14", "#17a589", "#1b68c4", "#b07fdc", "#6b7077", "#9a5b3c", "#5f9a2c")


def line_styles(summary: Summary) -> dict[str, Style]:
    """The look of every line of an experiment, by its name; well-known methods look the same in all experiments.

    Others take the first colour of their kind that no line in the same case has, in the order of the rows. Where all
    lines are ours, as in a comparison of options, none stands out.
    """
    kinds = _kinds(summary)
    equals = len(kinds) > 1 and set(kinds.values()) == {"ours"} and not set(kinds) & set(_KNOWN)
    styles = {line: _KNOWN[line] for line in kinds if line in _KNOWN}
    if not equals and "qpsbgd" not in kinds:
        ours = [line for line, kind in kinds.items() if kind == "ours" and line not in styles]
        styles |= dict.fromkeys(ours[:1], _KNOWN["qpsbgd"])
    for line, kind in kinds.items():
        if line in styles:
            continue
        spare = _EQUALS if equals else _SPARE.get(kind, _SPARE["baseline"])
        taken = {styles[other].colour for other in _beside(summary, line) if other in styles}
        colour = next((colour for colour in spare if colour not in taken), spare[len(styles) % len(spare)])
        styles[line] = Style(colour, "6 3" if kind == "paper" else "", 1.6 if kind == "baseline" else 1.8)
    return {line: styles[line] for line in kinds}


def _kinds(summary: Summary) -> dict[str, str]:
    return {row["line"]: row.get("kind", "baseline") for case in summary.get("cases", ()) for row in case["rows"]}


def _beside(summary: Summary, line: str) -> set[str]:
    """All lines that share a case with that one."""
    together = [{row["line"] for row in case["rows"]} for case in summary["cases"]]
    return set().union(*(lines for lines in together if line in lines))


def line_labels(summary: Summary) -> dict[str, str]:
    """The labels of all lines, by name, in the order of the rows."""
    labels: dict[str, str] = {}
    for case in summary.get("cases", ()):
        for row in case["rows"]:
            labels.setdefault(row["line"], row["label"])
    return labels


def grouped(summary: Summary) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """The cases by setting: (short label, case) of all whose labels share the text after the first ", ".

    Labels that are all different there, or have no such text, make one group without a name. Cases that have no line in
    common with each other are groups of their own.
    """
    cases = list(summary.get("cases", ()))
    names = [row["line"] for case in cases for row in case["rows"]]
    if len(cases) > 1 and len(names) == len(set(names)):
        return {case["label"]: [(case["label"], case)] for case in cases}
    parts = [case["label"].partition(", ") for case in cases]
    settings = {setting for _, _, setting in parts}
    if len(cases) < 2 or "" in settings or len(settings) == len(cases):
        return {"": [(case["label"], case) for case in cases]}
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for (short, _, setting), case in zip(parts, cases, strict=True):
        groups.setdefault(setting, []).append((short, case))
    return groups


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
