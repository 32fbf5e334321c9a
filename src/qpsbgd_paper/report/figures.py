"""All figures of an experiment as files, and the curves of its methods."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qpsbgd_paper.report import drawings
from qpsbgd_paper.report.rendering import ink, png, svg, tidy
from qpsbgd_paper.report.styles import Style, Summary, finite, grouped, line_labels, line_styles, may_be_log, y_range

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'qpsbgd[paper]'") from error


def figures(summary: Summary) -> dict[str, bytes]:
    """Every series and every figure of an experiment as SVG and PNG, by file name.

    The first series is `<experiment>.svg`, any further `<experiment>-<series>.svg`, a figure `<experiment>-<name>.svg`.
    Bytes are the same at every call.

    Raises:
        ValueError: A figure cannot be drawn, or two would have one name.
    """
    found = {}
    for number, series in enumerate(summary.get("series", ())):
        name = summary["experiment"] if number == 0 else f"{summary['experiment']}-{series['key']}"
        found[f"{name}.svg"] = series_svg(summary, series).encode()
        found[f"{name}.png"] = series_png(summary, series)
    for figure in summary.get("figures", ()):
        name = drawings.figure_name(summary, figure)
        if f"{name}.svg" in found:
            raise ValueError(f"{summary['experiment']} has two figures of the name {name!r}; give them different ones")
        found[f"{name}.svg"] = drawings.figure_svg(figure, name=name).encode()
        found[f"{name}.png"] = drawings.figure_png(figure)
    return found


def series_svg(summary: Summary, series: Mapping[str, Any]) -> str:
    """One panel per case, as an `<svg>` element with a transparent background."""
    return svg(lambda: _drawn(summary, series))


def series_png(summary: Summary, series: Mapping[str, Any]) -> bytes:
    """One panel per case, on white."""
    return png(lambda: _drawn(summary, series))


def _drawn(summary: Summary, series: Mapping[str, Any]) -> Figure:
    styles, labels = line_styles(summary), line_labels(summary)
    groups = grouped(summary)
    panels = [(_title(short, setting), case) for setting, cases in groups.items() for short, case in cases]
    own_legends = len(panels) > 1 and sum(len(case["rows"]) for _, case in panels) == len(labels)
    columns = 2 if own_legends else _columns([len(cases) for cases in groups.values()])
    rows = max(1, -(-len(panels) // columns))
    height = rows * (3.6, 3.0, 2.4)[columns - 1] + 0.24 * -(-len(labels) // (2 * columns if own_legends else 2))
    figure = Figure(figsize=(7.2 if columns > 1 else 6.4, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for number, (axes, (title, case)) in enumerate(zip(grid.flat, panels, strict=False)):
        curves = {row["line"]: row["curves"][series["key"]] for row in case["rows"] if series["key"] in row["curves"]}
        for line, curve in curves.items():
            _plot(axes, curve["x"], curve["mean"], curve["deviation"], style=styles[line], label=labels[line])
        means = [curve["mean"] for curve in curves.values()]
        low, high, log = y_range(means, may_be_log=may_be_log(series["label"]))
        y_label = series["label"] if columns == 1 else ""
        x_label = series.get("x_label", "step") if number + columns >= len(panels) else ""
        _finish(axes, x_label=x_label, y_label=y_label, y_limits=(low, high), log=log)
        axes.set_title(textwrap.fill(title, (60, 38, 21)[columns - 1]), fontsize=11, loc="left")
        if own_legends:
            tight = {"handlelength": 1.2, "columnspacing": 0.8}
            axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2, frameon=False, fontsize=10, **tight)
    if columns > 1:
        figure.supylabel(series["label"], fontsize=12, color=ink())
    if labels and not own_legends:
        handles = [_handle(styles[line], label) for line, label in labels.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=11)
    return figure


def _title(short: str, setting: str) -> str:
    return f"{short} ({setting})" if setting not in ("", short) else short


def _columns(sizes: Sequence[int]) -> int:
    """At most three panels a row, a row for every setting where that fits."""
    if len(sizes) == 1:
        return {0: 1, 4: 2}.get(sizes[0], min(sizes[0], 3))
    return min(max(sizes), 3)


def _plot(
    axes: Axes, x: Sequence[float], mean: Sequence[float], spread: Sequence[float], *, style: Style, label: str
) -> None:
    middle, around = np.array(finite(mean)), np.array(finite(spread))
    order = 2 + style.width / 10
    axes.add_line(_handle(style, label, np.array(x, dtype=float), middle, order))
    axes.fill_between(x, middle - around, middle + around, color=style.colour, alpha=0.09, linewidth=0, zorder=1)
    axes.autoscale_view()


def _handle(style: Style, label: str, x: Any = (), y: Any = (), zorder: float = 2.0) -> Line2D:
    dashes = [float(part) / style.width for part in style.dash.split()]
    line = Line2D(x, y, color=style.colour, linewidth=style.width, label=label, zorder=zorder)
    if dashes:
        line.set_linestyle((0, tuple(dashes)))
    return line


def _finish(axes: Axes, *, x_label: str, y_label: str, y_limits: tuple[float, float], log: bool) -> None:
    tidy(axes, log="y" if log else "")
    if not log:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_ylim(*y_limits)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    axes.set(xlabel=x_label, ylabel=y_label)
