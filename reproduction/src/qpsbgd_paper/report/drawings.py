"""Figures that are not curves of methods: drawn from the mappings under "figures" of an experiment's summary.

A figure has `name` (part of its file's name), `title`, `caption`, `kind` and `panels`, each with a `title`; optional
are `columns` (panels per row), `height` (of a row, in inches) and `shows_data` (true where parts of a data set are
seen, which the repository does not hold). What else a panel has depends on the kind:

    lines       x_label, y_label, optional log ("x", "y" or "xy"), x_limits and y_limits (low, high), and `lines`: x, y,
                optional error (a band, or bars at points), label, style ("line", "dashes", "points", or "bar", a thick
                stroke with ends that marks a distance), mark ("o" or "x", of points), colour and width
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
colour of the text. Lines may also have a colour of `styles` by itself, such as "#d6274a". Labels that several panels
share stand in the legend once, and a y_label that is the same in all panels of a row stands at the first. Graphs and
lines of points with more than 500 parts become pictures inside the SVG, which would be large otherwise; its text stays
text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qpsbgd_paper.report.rendering import fit, ink, legend_columns, svg, tidy
from qpsbgd_paper.report.scales import finite
from qpsbgd_paper.report.styles import PALETTE, RED

try:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'qpsbgd[paper]'") from error

Drawing = Mapping[str, Any]
"""A figure, or a panel of one, as the module's docstring has it."""

_FAINT = "#8b929a"
_WIDTH = 7.2
_TICKS = 0.75
"""Room for ticks, labels and titles in a panel's width or height, in inches."""

_MANY_PARTS = 500
_BLUE = "#2463ad"
_DIVERGING = LinearSegmentedColormap.from_list("diverging", [_BLUE, "#c3c8ce", RED])
_RISING = LinearSegmentedColormap.from_list("rising", ["#edf1f5", "#86b3e3", _BLUE, "#0b2f5e"])
_COLOURS = {"diverging": _DIVERGING, "rising": _RISING}


def figure_svg(figure: Drawing, *, name: str = "") -> str:
    """The figure as an `<svg>` element with a transparent background, its ids beginning with `name`."""
    return svg(lambda: drawn(figure), name=name or str(figure.get("name", "")))


def drawn(figure: Drawing) -> Figure:
    """The figure as matplotlib has it.

    Raises:
        ValueError: The figure is not as the module's docstring has it.
    """
    kind, panels = figure.get("kind"), figure.get("panels", ())
    if kind not in _KINDS or not panels:
        raise ValueError(f"a figure needs panels and a kind out of {', '.join(_KINDS)}, got {len(panels)} and {kind!r}")
    number = 0
    try:
        columns = min(figure.get("columns") or _columns(kind, len(panels)), len(panels))
        rows = -(-len(panels) // columns)
        width, height = _WIDTH / columns - _TICKS, figure.get("height") or _row_height(kind, columns)
        titles, size = fit([str(panel.get("title", "")) for panel in panels], width, size=11 if columns < 3 else 10)
        more_lines = sum(max(t.count("\n") for t in titles[row * columns :][:columns]) for row in range(rows))
        made = Figure(figsize=(_WIDTH, rows * height + 0.18 * more_lines), layout="constrained")
        grid = made.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            _KINDS[kind](axes, panel, figure)
            axes.set_title(titles[number], fontsize=size, loc="left")
            same = number % columns and panel.get("y_label") == panels[number - 1].get("y_label")
            (text,), y_size = fit(["" if same else axes.get_ylabel()], height - _TICKS, size=11)
            axes.set_ylabel(text, fontsize=y_size)
            (text,), x_size = fit([axes.get_xlabel()], width, size=11)
            axes.set_xlabel(text, fontsize=x_size)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"panel {number} of figure {figure.get('name')!r} cannot be drawn: {error!r}") from error
    if kind == "matrices":
        _colour_bar(made, [axes for axes in grid.flat if axes.get_visible()], figure)
    else:
        _legend(made, list(grid.flat))
    return made


def _columns(kind: str, panels: int) -> int:
    return 2 if panels == 4 or (kind == "graphs" and panels > 1) else 3


def _lines(axes: Axes, panel: Drawing, _: Drawing) -> None:
    _strokes(axes, panel["lines"])
    log = panel.get("log", "")
    tidy(axes, log=log)
    _ticks(axes, log)
    axes.margins(x=0.02)
    axes.set(xlabel=panel.get("x_label", ""), ylabel=panel.get("y_label", ""))
    for name in ("xlim", "ylim"):
        limits = panel.get(f"{name[0]}_limits")
        if limits is not None:
            axes.set(**{name: tuple(limits)})


def _images(axes: Axes, panel: Drawing, _: Drawing) -> None:
    axes.imshow(np.array(panel["values"], dtype=float), cmap=_RISING, interpolation="none", aspect="equal")
    limits = axes.axis()
    _strokes(axes, panel.get("lines", ()))
    axes.axis(limits)
    axes.axis("off")


def _strokes(axes: Axes, lines: Sequence[Drawing]) -> None:
    for order, line in enumerate(lines):
        x, y = np.array(finite(line["x"])), np.array(finite(line["y"]))
        error = np.array(finite(line["error"])) if line.get("error") is not None else None
        colour, style, label = _colour(line.get("colour", order)), line.get("style", "line"), line.get("label")
        if style == "points":
            marks = {
                "fmt": {"o": "o", "x": "x"}[line.get("mark", "o")],
                "markersize": 2 * line.get("width", 2.0),
                "capsize": 2.5,
                "elinewidth": 1.0,
            }
            shown = axes.errorbar(x, y, yerr=error, color=colour, label=label, zorder=3, **marks)
            shown[0].set_rasterized(len(x) > _MANY_PARTS)
            continue
        if style not in ("line", "dashes", "bar"):
            raise ValueError(f'style must be "line", "dashes", "points" or "bar", got {style!r}')
        look: dict[str, Any] = {"linestyle": "--" if style == "dashes" else "-", "linewidth": line.get("width", 1.6)}
        if style == "bar":
            look = {"linewidth": line.get("width", 2.4), "marker": "_", "markersize": 8, "markeredgewidth": 1.2}
            look |= {"solid_capstyle": "butt", "clip_on": False}
        axes.plot(x, y, color=colour, label=label, zorder=4 if style == "bar" else 2, **look)
        if error is not None:
            axes.fill_between(x, y - error, y + error, color=colour, alpha=0.15, linewidth=0, zorder=1)


def _histograms(axes: Axes, panel: Drawing, _: Drawing) -> None:
    edges, counts = np.array(panel["edges"], dtype=float), np.array(panel["counts"], dtype=float)
    log = panel.get("log", "")
    axes.stairs(counts, edges, fill=True, color=_colour(panel.get("colour", 1)), baseline=0.5 if log else 0)
    mark = panel.get("mark")
    if mark is not None:
        axes.axvline(mark["x"], color=RED, linewidth=1.6, linestyle="--", label=mark.get("label"))
    tidy(axes, log=log)
    _ticks(axes, log)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    axes.margins(x=0.04)
    axes.set(xlabel=panel.get("x_label", ""), ylabel=panel.get("y_label", ""))
    if log:
        axes.set_ylim(bottom=0.5)


def _matrices(axes: Axes, panel: Drawing, figure: Drawing) -> None:
    values = np.array([finite(row) for row in panel["values"]])
    low, high = _limits(figure)
    colours = _COLOURS[figure.get("colours", "diverging")]
    # Not "nearest", which would store every cell as many points.
    axes.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=low, vmax=high, interpolation="none", aspect="equal")
    axes.spines[:].set(linewidth=0.6, alpha=0.5)
    axes.tick_params(length=2, labelsize=9)
    ticks = figure.get("ticks")
    if ticks is not None:
        axes.set_xticks(range(values.shape[1]), ticks[: values.shape[1]])
        axes.set_yticks(range(values.shape[0]), ticks[: values.shape[0]])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    size = min(8.0, 1.3 * 72 * axes.get_window_extent().width / axes.figure.dpi / (2.2 * values.shape[1]))
    for row, texts in enumerate(panel.get("text", ())):
        for column, text in enumerate(texts):
            share = np.clip((values[row, column] - low) / (high - low), 0, 1)
            dark = np.dot(colours(share)[:3], (0.3, 0.59, 0.11)) < 0.6
            colour = ink() if np.isnan(values[row, column]) else "white" if dark else "#1d2329"
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


def _graphs(axes: Axes, panel: Drawing, _: Drawing) -> None:
    nodes, edges = np.array(panel["nodes"], dtype=float).reshape(-1, 2), panel.get("edges", ())
    colours = panel.get("colours") or [-2] * len(nodes)
    edge_colours = panel.get("edge_colours") or [-2] * len(edges)
    if len(colours) != len(nodes) or len(edge_colours) != len(edges):
        numbers = f"{len(nodes)} and {len(edges)} have {len(colours)} and {len(edge_colours)}"
        raise ValueError(f"every node and every edge needs one colour, but {numbers}")
    size = float(panel.get("size", 8.0))
    picture = len(nodes) + len(edges) > _MANY_PARTS
    # Faint parts first: they are the surroundings.
    for faint in (True, False):
        strokes = [edge for edge, colour in zip(edges, edge_colours, strict=True) if (colour == -1) == faint]
        if strokes:
            paints = [colour for colour in edge_colours if (colour == -1) == faint]
            plain = 0.4 if faint else float(np.clip(40 / len(strokes), 0.6, 1.6))
            widths = [plain if colour < 0 else size / 5 for colour in paints]
            lines = LineCollection([nodes[list(edge)] for edge in strokes], linewidths=widths)
            lines.set(colors=[_colour(colour) for colour in paints], alpha=0.35 if faint else 0.9)
            lines.set(zorder=1 if faint else 3, rasterized=picture)
            axes.add_collection(lines)
        chosen = [number for number, colour in enumerate(colours) if (colour == -1) == faint]
        paints = [_colour(colours[number]) for number in chosen]
        area, alpha = ((size / 3) ** 2, 0.5) if faint else (size**2, 1.0)
        dots = axes.scatter(
            nodes[chosen, 0], nodes[chosen, 1], s=area, c=paints, alpha=alpha, linewidths=0, zorder=2 if faint else 4
        )
        dots.set(rasterized=picture, clip_on=False)
    for (x, y), label in zip(nodes, panel.get("labels", ()), strict=False):
        axes.text(x, y, label, ha="center", va="center_baseline", fontsize=0.62 * size, color="white", zorder=5)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.05)
    axes.axis("off")


_KINDS = {"lines": _lines, "histograms": _histograms, "matrices": _matrices, "images": _images, "graphs": _graphs}


def _row_height(kind: str, columns: int) -> float:
    """In inches: matrices are squares beside their colour bar, and images nearly are."""
    if kind in ("matrices", "images"):
        return (_WIDTH - 0.9) / columns + 0.25
    return (0.95 if kind == "graphs" else 0.72 if columns > 1 else 0.5) * _WIDTH / columns + 0.4


def _colour_bar(made: Figure, shown: Sequence[Axes], figure: Drawing) -> None:
    low, high = _limits(figure)
    values = [value for panel in figure["panels"] for row in panel["values"] for value in row if value is not None]
    below, above = min(values, default=low) < low, max(values, default=high) > high
    extend = "both" if below and above else "min" if below else "max" if above else "neither"
    bar = made.colorbar(shown[0].images[0], ax=list(shown), extend=extend, shrink=0.8, aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9, length=2)
    bar.set_label(figure.get("colour_label", ""), fontsize=10)


def _limits(figure: Drawing) -> tuple[float, float]:
    if figure.get("limits") is not None:
        low, high = figure["limits"]
        return float(low), float(high)
    values = [abs(value) for panel in figure["panels"] for row in panel["values"] for value in row if value is not None]
    most = max(values, default=0.0) or 1.0
    return (-most, most) if figure.get("colours", "diverging") == "diverging" else (0.0, most)


def _legend(made: Figure, grid: Sequence[Axes]) -> None:
    found: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        columns = legend_columns(list(found), _WIDTH, size=10, most=3)
        look = {"ncols": columns, "frameon": False, "fontsize": 10}
        made.legend(list(found.values()), list(found), loc="outside lower center", **look)
        made.set_figheight(made.get_figheight() + 0.22 * -(-len(found) // columns))


def _ticks(axes: Axes, log: str) -> None:
    for name, axis, count in (("x", axes.xaxis, 4), ("y", axes.yaxis, 5)):
        low, high = axis.get_view_interval()
        if name not in log:
            axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
        elif high < 50 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # powers of ten alone would be one or two


def _colour(number: int | str) -> str:
    if isinstance(number, str):
        return number
    return {-1: _FAINT, -2: ink()}.get(number) or PALETTE[number % len(PALETTE)]
