"""Figures made from the results themselves: the curves of all methods, and the verdicts on the paper's claims."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from qpsbgd_paper.report.drawings import WIDTH, plot_panels
from qpsbgd_paper.report.rendering import INK
from qpsbgd_paper.report.styles import line_looks
from qpsbgd_paper.report.summaries import Summary, by_setting, line_labels, rows_of

LOG_FROM = 10.0  # a positive axis that spans more than this factor is logarithmic, accuracies aside
UNLIKE = 3.0  # panels share a scale unless one needs this many times another's
NOISY = 5.0  # curves whose ups and downs add up to more than this many times their range are smoothed
FEWEST_POINTS = 3  # a curve of fewer points says less than the table beside it

VERDICTS: Mapping[str, str] = {
    "yes": "#3d8b4f",
    "no": "#d6274a",
    "cannot tell": "#c9a227",
    "not run on hardware": "#8a8f98",
}
"""Colours of verdicts, in the order of legends."""

Curve = Mapping[str, Any]


def curve_panels(summary: Summary, series: Mapping[str, Any]) -> list[tuple[str, dict[str, Curve]]]:
    """Title and curves by line of all cases that have curves of at least `FEWEST_POINTS` points."""
    panels = []
    for setting, cases in by_setting(summary).items():
        for short, case in cases:
            curves = {
                row["line"]: row["curves"][series["key"]] for row in case["rows"] if series["key"] in row["curves"]
            }
            if any(len(curve["x"]) >= FEWEST_POINTS for curve in curves.values()):
                panels.append((f"{short} ({setting})" if setting not in ("", short) else short, curves))
    return panels


def plot_curves(summary: Summary, series: Mapping[str, Any]) -> Figure:
    """One panel per case, on one scale where they are alike, and a line per method: the mean of the seeds.

    The scale shows what most lines need. Where noise would hide the lines behind each other, they are running means,
    and the axis says so.
    """
    panels, label = curve_panels(summary, series), str(series["label"])
    means = [{line: _finite(curve["mean"]) for line, curve in curves.items()} for _, curves in panels]
    if window := _window([mean for panel in means for mean in panel.values()]):
        means = [{line: _running_mean(mean, window) for line, mean in panel.items()} for panel in means]
        label += f", mean of {window} points"
    may_be_log = "accuracy" not in label.lower()
    ranges = [y_range(list(panel.values()), may_be_log=may_be_log) for panel in means]
    spans = [high - low for low, high, _ in ranges]
    if max(spans) < UNLIKE * min(spans):
        ranges = [y_range([mean for panel in means for mean in panel.values()], may_be_log=may_be_log)] * len(panels)
    looks, labels = line_looks(rows_of(summary)), line_labels(summary)
    drawn = [
        {
            "title": title,
            "x_label": series.get("x_label", "step"),
            "y_label": label,
            "log": "y" if log else "",
            "y_limits": [low, high],
            "lines": [
                {"x": curves[line]["x"], "y": mean, "label": labels[line], **looks[line]}
                for line, mean in panel.items()
            ],
        }
        for (title, curves), panel, (low, high, log) in zip(panels, means, ranges, strict=True)
    ]
    return plot_panels({"name": series["key"], "kind": "lines", "panels": drawn})


def y_range(means: Sequence[np.ndarray[Any, Any]], *, may_be_log: bool) -> tuple[float, float, bool]:
    """Lowest and highest value to show of some lines, and whether as logarithms.

    Three quarters of the lines are shown whole, and all that leave their range by less than a quarter of it.
    """
    ends = [(np.nanmin(mean), np.nanmax(mean)) for mean in means if not np.isnan(mean).all()]
    if not ends:
        return 0.0, 1.0, False
    lows, highs = np.array(ends).T
    low, high = np.percentile(lows, 25), np.percentile(highs, 75)
    if log := bool(may_be_log and lows.min() > 0 and high > LOG_FROM * low):
        lows, highs, low, high = (np.log10(values) for values in (lows, highs, low, high))
    span = high - low
    low, high = max(lows.min(), low - span / 4), min(highs.max(), high + span / 4)
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    low, high = float(low - margin), float(high + margin)
    return (10**low, 10**high, True) if log else (low, high, False)


def _window(means: Sequence[np.ndarray[Any, Any]]) -> int:
    """How many points a running mean of noisy curves should have; 0 where they are smooth."""
    ups_and_downs = [np.abs(np.diff(mean)).sum() / (np.ptp(mean) or 1.0) for mean in means]
    return max(map(len, means)) // 8 if np.median(ups_and_downs) > NOISY else 0


def _running_mean(mean: np.ndarray[Any, Any], window: int) -> np.ndarray[Any, Any]:
    """The mean of the points around each, of fewer at the ends."""
    around = np.ones(window)
    return np.asarray(np.convolve(mean, around, "same") / np.convolve(np.ones_like(mean), around, "same"))


def _finite(values: Sequence[float | None]) -> np.ndarray[Any, Any]:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def plot_verdicts(summaries: Sequence[Summary]) -> Figure:
    """A square per claim of the paper, coloured by its verdict, a row per experiment."""
    rows = {
        s["experiment"]: [c["verdict"] for c in s.get("claims", ()) if c.get("source", "paper") == "paper"]
        for s in summaries
    }
    rows = {name: sorted(verdicts, key=_rank) for name, verdicts in rows.items() if verdicts}
    figure = Figure(figsize=(WIDTH, 0.24 * len(rows) + 0.5), layout="constrained")
    axes = figure.subplots()
    for verdict, colour in VERDICTS.items():
        places = [
            (x, y) for y, verdicts in enumerate(rows.values()) for x, each in enumerate(verdicts) if each == verdict
        ]
        x, y = np.array(places).reshape(-1, 2).T
        axes.scatter(x, y, s=110, marker="s", color=colour, label=verdict.replace("cannot tell", "inconclusive"))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(-0.7, max(19, *(len(verdicts) for verdicts in rows.values()))))
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(VERDICTS), handletextpad=0.3)
    return figure


def _rank(verdict: str) -> int:
    return list(VERDICTS).index(verdict) if verdict in VERDICTS else len(VERDICTS)
