"""All figures of an experiment as files, and the curves of its methods."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qpsbgd_paper.report import drawings
from qpsbgd_paper.report.rendering import fit, legend_columns, on_white, svg, tidy
from qpsbgd_paper.report.scales import exits, finite, may_be_log, y_range
from qpsbgd_paper.report.styles import Style, grouped, line_labels, line_styles
from qpsbgd_paper.report.summaries import Summary, check, curves_of, file_name

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'qpsbgd[paper]'") from error


KINDS = ("svg", "png", "pdf")

_WIDTHS = (6.4, 7.2, 7.2)
_HEIGHTS = (3.6, 3.0, 2.4)
_BAND_POINTS = 20
"""Points of a band of deviations, fewer than a curve has: it is pale, and most of a figure's bytes."""
_TICKS = 0.85
"""Room for ticks, labels and titles in a panel's width or height, in inches."""


def figures(summary: Summary, kinds: Sequence[str] = ("svg", "png")) -> dict[str, bytes]:
    """Every series and every figure of an experiment in every one of these `KINDS`, by file name.

    The first series is `<experiment>.svg`, others `<experiment>-<series>.svg`, a figure `<experiment>-<name>.svg`.
    Bytes are the same at every call.

    Raises:
        ValueError: The summary is damaged, a figure cannot be drawn, two would have one name, or a kind is unknown.
    """
    check(summary)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ValueError(f"figures are drawn as {', '.join(KINDS)}, not as {', '.join(map(repr, unknown))}")
    experiment = summary["experiment"]
    found: dict[str, Callable[[], Figure]] = {}
    for number, series in enumerate(summary.get("series", ())):
        name = file_name(experiment) if number == 0 else file_name(experiment, series["key"])
        found[name] = partial(drawn_series, summary, series)
    own = {}
    for figure in summary.get("figures", ()):
        name = file_name(experiment, figure["name"])
        if name in found:
            raise ValueError(f"{experiment} has two figures named {name!r}; give them different names")
        found[name] = partial(drawings.drawn, figure)
        own[name] = name
    return {
        f"{name}.{kind}": svg(draw, name=own.get(name, "")).encode() if kind == "svg" else on_white(draw, kind)
        for name, draw in found.items()
        for kind in kinds
    }


def series_svg(summary: Summary, series: Mapping[str, Any]) -> str:
    """One panel per case, as an `<svg>` element with a transparent background."""
    return svg(lambda: drawn_series(summary, series))


def shared_range(summary: Summary, series: Mapping[str, Any]) -> tuple[float, float, bool]:
    """Lowest and highest value to show in every panel of a series, so that panels can be compared; whether as logs."""
    curves = [curve for case in summary["cases"] for curve in curves_of(case, series["key"]).values()]
    return y_range([curve["mean"] for curve in curves], may_be_log=may_be_log(series["label"]))


def drawn_series(summary: Summary, series: Mapping[str, Any]) -> Figure:
    """One panel per case. Lines that leave the scale have an arrow there, with their most extreme value."""
    styles, labels = line_styles(summary), line_labels(summary)
    groups = grouped(summary)
    panels = [(_title(short, setting), case) for setting, cases in groups.items() for short, case in cases]
    own_legends = len(panels) > 1 and sum(len(case["rows"]) for _, case in panels) == len(labels)
    columns = 2 if own_legends else _columns([len(cases) for cases in groups.values()])
    rows = max(1, -(-len(panels) // columns))
    width, height = _WIDTHS[columns - 1], _HEIGHTS[columns - 1]
    beside = legend_columns(list(labels.values()), width, size=11, most=2)
    entries = max((len(case["rows"]) for _, case in panels), default=0) if own_legends else len(labels)
    figure = Figure(figsize=(width, rows * height + 0.24 * -(-entries // beside)), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    titles, title_size = fit([title for title, _ in panels], width / columns - _TICKS, size=11)
    (y_label,), y_size = fit([str(series["label"])], height - _TICKS, size=11)
    low, high, log = shared_range(summary, series)
    for number, (axes, (_, case)) in enumerate(zip(grid.flat, panels, strict=False)):
        curves = curves_of(case, series["key"])
        for line, curve in curves.items():
            _plot(axes, curve, style=styles[line], label=labels[line])
        _finish(axes, y_limits=(low, high), log=log, ticks=4 if columns > 1 else 8)
        _mark_exits(axes, curves, styles)
        axes.set_title(titles[number], fontsize=title_size, loc="left")
        axes.set_xlabel(series.get("x_label", "step") if number + columns >= len(panels) else "")
        axes.set_ylabel("" if number % columns else y_label, fontsize=y_size)
        if own_legends:
            names = [labels[row["line"]] for row in case["rows"]]
            tight = {"handlelength": 1.2, "columnspacing": 0.8, "frameon": False, "fontsize": 10}
            tight["ncols"] = legend_columns(names, width / columns, size=10, most=2)
            axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), **tight)
    if labels and not own_legends:
        handles = [_handle(styles[line], label) for line, label in labels.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=beside, frameon=False, fontsize=11)
    return figure


def _title(short: str, setting: str) -> str:
    return f"{short} ({setting})" if setting not in ("", short) else short


def _columns(sizes: Sequence[int]) -> int:
    """At most three panels per row, and a row for every setting where that fits."""
    if len(sizes) == 1:
        return {0: 1, 4: 2}.get(sizes[0], min(sizes[0], 3))
    return min(max(sizes), 3)


def _plot(axes: Axes, curve: Mapping[str, Any], *, style: Style, label: str) -> None:
    x, middle = np.array(curve["x"], dtype=float), np.array(finite(curve["mean"]))
    around = np.nan_to_num(finite(curve["deviation"]))
    line = _handle(style, label, x, middle, 2 + style.width / 10)
    if len(x) == 1:
        line.set(marker="o", markersize=5)
    axes.add_line(line)
    at = np.linspace(0, len(x) - 1, min(len(x), _BAND_POINTS)).round().astype(int)
    low, high = (middle - around)[at], (middle + around)[at]
    axes.fill_between(x[at], low, high, color=style.colour, alpha=0.09, linewidth=0, zorder=1)
    axes.autoscale_view()


def _handle(style: Style, label: str, x: Any = (), y: Any = (), zorder: float = 2.0) -> Line2D:
    dashes = [float(part) / style.width for part in style.dash.split()]
    line = Line2D(x, y, color=style.colour, linewidth=style.width, label=label, zorder=zorder)
    if dashes:
        line.set_linestyle((0, tuple(dashes)))
    return line


def _finish(axes: Axes, *, y_limits: tuple[float, float], log: bool, ticks: int) -> None:
    tidy(axes, log="y" if log else "")
    if not log:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_ylim(*y_limits)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def _mark_exits(axes: Axes, curves: Mapping[str, Mapping[str, Any]], styles: Mapping[str, Style]) -> None:
    """An arrow where a line first leaves the scale, and how far it goes; below each other, so that none is hidden."""
    low, high = axes.get_ylim()
    middle = sum(axes.get_xlim()) / 2
    edge = axes.get_xaxis_transform()
    count = {True: 0, False: 0}
    for line, curve in curves.items():
        for at, upwards, extreme in exits(curve["x"], curve["mean"], low=low, high=high):
            place, colour, right = (at, float(upwards)), styles[line].colour, at < middle
            axes.plot(*place, "^" if upwards else "v", color=colour, markersize=6, clip_on=False, transform=edge)
            axes.annotate(
                f"to {extreme:.2g}",
                place,
                xycoords=edge,
                xytext=(7 if right else -7, (-1 if upwards else 1) * (3 + 10 * count[upwards])),
                textcoords="offset points",
                ha="left" if right else "right",
                va="top" if upwards else "bottom",
                fontsize=9,
                color=colour,
            )
            count[upwards] += 1
