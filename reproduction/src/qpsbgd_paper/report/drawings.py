"""Figures that studies describe: drawn from the mappings under "figures" of an experiment's results.

A figure has `name` (part of its file's name), `title`, `caption`, `kind` and `panels`, each with a `title`; optional
are `columns` (panels per row), `height` (of a row, in inches) and `shows_data` (true where parts of a data set are
seen, which the repository does not hold). What else a panel has depends on the kind:

    lines       x_label, y_label, optional log ("x", "y" or "xy"), x_limits and y_limits (low, high), and `lines`: x, y,
                optional error (a band, or bars at points), label, style ("points", "bar", a thick stroke with ends that
                marks a distance, or one of `STROKES`), mark ("o" or "x", of points), colour and width
    histograms  x_label, y_label, edges (k + 1), counts (k), optional log ("y"), colour, and mark: {x, label}, a
                vertical line
    matrices    values (rows of numbers, None for an empty cell), optional text (rows of texts), and of the figure
                optional limits (low, high), colours ("diverging" or "rising"), ticks (a list of labels for both axes)
                and colour_label; values beyond the limits have the colour of the limit
    images      values (rows of numbers, 0 for the background), and optional `lines` over the image as above, in pixels
                from its upper left corner
    graphs      nodes (x, y), edges (pairs of positions in nodes), optional colours (one per node), edge_colours (one
                per edge), labels (a text per node) and size (of a node, in points)

A colour is a number: the n-th of `styles.PALETTE`, from the start again after the last; −1 is a faint grey, −2 the
colour of the text. Lines may also have a colour by itself, such as "#d6274a". Labels that several panels share stand in
the legend once. Graphs and lines of points with more than 500 parts become pictures inside the SVG, which would be
large otherwise; its text stays text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qpsbgd_paper.report.rendering import INK, tidy, wrap
from qpsbgd_paper.report.styles import PALETTE, RED, legend_columns

Drawing = Mapping[str, Any]  # a figure, or a panel of one, as the module's docstring has it

WIDTH = 7.2  # of a figure, in inches

_BLUE, _FAINT = "#2463ad", "#8b929a"
_MANY_PARTS = 500

STROKES = {"line": "-", "dashes": "--", "dash-dots": "-.", "dots": ":"}
"""Styles of lines."""

_COLOURS = {
    "diverging": LinearSegmentedColormap.from_list("diverging", [_BLUE, "#f1f3f4", RED]),
    "rising": LinearSegmentedColormap.from_list("rising", ["#edf1f5", "#86b3e3", _BLUE, "#0b2f5e"]),
}


def plot_panels(figure: Drawing) -> Figure:
    """The figure, one panel beside the other."""
    kind, panels = figure["kind"], figure["panels"]
    try:
        columns = min(figure.get("columns") or (2 if len(panels) in (2, 4) else 3), len(panels))
        rows = -(-len(panels) // columns)
        height = figure.get("height") or _ROW_HEIGHTS[kind] * WIDTH / columns + 0.5
        plot = Figure(figsize=(WIDTH, rows * height), layout="constrained")
        grid = plot.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _KINDS[kind](axes, panel, figure)
            axes.set_title(wrap(str(panel.get("title", "")), WIDTH / columns - 0.5))
            axes.set_xlabel(wrap(str(panel.get("x_label", "")), WIDTH / columns - 0.5))
            axes.set_ylabel(wrap(str(panel.get("y_label", "")), height - 0.6))
        if kind == "matrices":
            _colour_bar(plot, [axes for axes in grid.flat if axes.get_visible()], figure)
        _legend(plot, list(grid.flat))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"figure {figure['name']!r} cannot be drawn: {error!r}") from error
    return plot


def _lines(axes: Axes, panel: Drawing, _: Drawing) -> None:
    _strokes(axes, panel["lines"])
    log = panel.get("log", "")
    tidy(axes, log=log)
    axes.margins(x=0.02)
    for name in ("xlim", "ylim"):
        limits = panel.get(f"{name[0]}_limits")
        if limits is not None:
            axes.set(**{name: tuple(limits)})


def _images(axes: Axes, panel: Drawing, _: Drawing) -> None:
    axes.imshow(np.array(panel["values"], dtype=float), cmap=_COLOURS["rising"], interpolation="none", aspect="equal")
    limits = axes.axis()
    _strokes(axes, panel.get("lines", ()))
    axes.axis(limits)
    axes.axis("off")


def _strokes(axes: Axes, lines: Sequence[Drawing]) -> None:
    for order, line in enumerate(lines):
        x, y = np.array(line["x"], dtype=float), np.array(line["y"], dtype=float)
        error = None if line.get("error") is None else np.array(line["error"], dtype=float)
        colour, style = _colour(line.get("colour", order)), line.get("style", "line")
        look: dict[str, Any] = {"color": colour, "label": line.get("label")}
        if style == "points":
            look |= {"fmt": line.get("mark", "o"), "markersize": 2 * line.get("width", 2.0), "capsize": 2.5}
            points = axes.errorbar(x, y, yerr=error, elinewidth=1.0, zorder=3, **look)
            points[0].set_rasterized(len(x) > _MANY_PARTS)
            continue
        if style == "bar":
            look |= {"linewidth": line.get("width", 2.4), "marker": "_", "markersize": 8, "clip_on": False, "zorder": 4}
        else:
            look |= {"linestyle": STROKES[style], "linewidth": line.get("width", 1.6)}
        axes.plot(x, y, **look)
        if error is not None:
            axes.fill_between(x, y - error, y + error, color=colour, alpha=0.15, linewidth=0, zorder=1)


def _histograms(axes: Axes, panel: Drawing, _: Drawing) -> None:
    log = panel.get("log", "")
    look: dict[str, Any] = {"color": _colour(panel.get("colour", 1)), "baseline": 0.5 if log else 0}
    axes.stairs(np.array(panel["counts"], dtype=float), np.array(panel["edges"], dtype=float), fill=True, **look)
    if panel.get("mark") is not None:
        axes.axvline(panel["mark"]["x"], color=RED, linewidth=1.6, linestyle="--", label=panel["mark"].get("label"))
    tidy(axes, log=log)
    axes.margins(x=0.04)
    if log:
        axes.set_ylim(bottom=0.5)


def _matrices(axes: Axes, panel: Drawing, figure: Drawing) -> None:
    values = np.array(panel["values"], dtype=float)
    low, high = _limits(figure)
    colours = _COLOURS[figure.get("colours", "diverging")]
    # Not "nearest", which would store every cell as many points.
    axes.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=low, vmax=high, interpolation="none", aspect="equal")
    axes.spines[:].set(linewidth=0.6, alpha=0.5)
    axes.tick_params(length=2, labelsize=9)
    for axis, size in ((axes.xaxis, values.shape[1]), (axes.yaxis, values.shape[0])):
        if figure.get("ticks") is not None:
            axis.set_ticks(range(size), figure["ticks"][:size])
        else:
            axis.set_major_locator(MaxNLocator(5, integer=True))
    cell = 72 * axes.get_window_extent().width / axes.figure.dpi / values.shape[1]
    for (row, column), value in np.ndenumerate(values):
        if panel.get("text"):
            share = np.clip((value - low) / (high - low), 0, 1)
            dark = not np.isnan(value) and np.dot(colours(share)[:3], (0.3, 0.59, 0.11)) < 0.6
            look = {"ha": "center", "va": "center", "fontsize": min(8.0, 0.6 * cell)}
            axes.text(column, row, panel["text"][row][column], color="white" if dark else INK, **look)


def _graphs(axes: Axes, panel: Drawing, _: Drawing) -> None:
    nodes = np.array(panel["nodes"], dtype=float).reshape(-1, 2)
    edges = np.array(panel.get("edges", ()), dtype=int).reshape(-1, 2)
    colours = np.array(panel.get("colours") or [-2] * len(nodes))
    edge_colours = np.array(panel.get("edge_colours") or [-2] * len(edges))
    if len(colours) != len(nodes) or len(edge_colours) != len(edges):
        numbers = f"{len(nodes)} and {len(edges)} have {len(colours)} and {len(edge_colours)}"
        raise ValueError(f"every node and every edge needs one colour, but {numbers}")
    size, many = float(panel.get("size", 8.0)), len(nodes) + len(edges) > _MANY_PARTS
    # Faint parts first: they are the surroundings.
    for faint in (True, False):
        chosen = (edge_colours == -1) == faint
        plain = 0.4 if faint else float(np.clip(40 / max(chosen.sum(), 1), 0.6, 1.6))
        widths = [plain if colour < 0 else size / 5 for colour in edge_colours[chosen]]
        look: dict[str, Any] = {"alpha": 0.35 if faint else 0.9, "zorder": 1 if faint else 3, "rasterized": many}
        paints = [_colour(colour) for colour in edge_colours[chosen]]
        axes.add_collection(LineCollection(list(nodes[edges[chosen]]), linewidths=widths, colors=paints, **look))
        chosen = (colours == -1) == faint
        look |= {"s": (size / 3) ** 2 if faint else size**2, "c": [_colour(colour) for colour in colours[chosen]]}
        look |= {"alpha": 0.5 if faint else 1.0, "zorder": 2 if faint else 4, "linewidths": 0, "clip_on": False}
        axes.scatter(*nodes[chosen].T, **look)
    for (x, y), label in zip(nodes, panel.get("labels", ()), strict=False):
        axes.text(x, y, label, ha="center", va="center_baseline", fontsize=0.62 * size, color="white", zorder=5)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.05)
    axes.axis("off")


_KINDS = {"lines": _lines, "histograms": _histograms, "matrices": _matrices, "images": _images, "graphs": _graphs}
_ROW_HEIGHTS = {"lines": 0.8, "histograms": 0.72, "matrices": 0.9, "images": 0.9, "graphs": 0.95}
"""By the width of a panel."""


def _colour_bar(plot: Figure, shown: Sequence[Axes], figure: Drawing) -> None:
    low, high = _limits(figure)
    values = np.concatenate([np.array(panel["values"], dtype=float).ravel() for panel in figure["panels"]])
    below, above = bool((values < low).any()), bool((values > high).any())
    extend = "both" if below and above else "min" if below else "max" if above else "neither"
    bar = plot.colorbar(shown[0].images[0], ax=list(shown), extend=extend, shrink=0.8, aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9, length=2)
    bar.set_label(figure.get("colour_label", ""))


def _limits(figure: Drawing) -> tuple[float, float]:
    if figure.get("limits") is not None:
        low, high = figure["limits"]
        return float(low), float(high)
    values = np.concatenate([np.array(panel["values"], dtype=float).ravel() for panel in figure["panels"]])
    most = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    return (-most, most) if figure.get("colours", "diverging") == "diverging" else (0.0, most)


def _legend(plot: Figure, grid: Sequence[Axes]) -> None:
    handles: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        columns = legend_columns(handles)
        plot.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)
        plot.set_figheight(plot.get_figheight() + 0.2 * -(-len(handles) // columns))


def _colour(number: int | str) -> str:
    if isinstance(number, str):
        return number
    return {-1: _FAINT, -2: INK}.get(int(number)) or PALETTE[int(number) % len(PALETTE)]
