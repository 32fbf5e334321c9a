"""Figures as SVG text that reads well on light and dark pages."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

try:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'qpsbgd[experiments]'") from error

INK = "#808790"
"""A grey with contrast on white and on black."""

COLOURS = ("#d1495b", "#3a86c8", "#e09f3e", "#4f9d69", "#8e6bbf", "#7a8288")
"""Distinct also for colour-blind readers; the first is ours."""


@dataclass(frozen=True)
class Curve:
    """A mean with a band of ± `spread` around it, over `x`."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    spread: Sequence[float]
    dashed: bool = False


def curves_svg(
    curves: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    y_limits: tuple[float, float],
) -> str:
    """All curves in one figure, as an `<svg>` element."""
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "qpsbgd",
        "font.family": "sans-serif",
        "font.size": 11,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        for curve, colour in zip(curves, COLOURS, strict=False):
            mean, spread = np.array(curve.mean), np.array(curve.spread)
            first = curve is curves[0]
            axes.plot(
                curve.x,
                mean,
                color=colour,
                label=curve.label,
                linewidth=2.4 if first else 1.5,
                linestyle="--" if curve.dashed else "-",
                zorder=3 if first else 2,
            )
            axes.fill_between(curve.x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(*y_limits)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=10)
        text = io.StringIO()
        figure.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
