"""A matplotlib figure as the bytes of an SVG or PNG file, the same at every call."""

import io
import textwrap
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

INK = "#3c434a"
"""Text and axes; figures are white, on dark pages too."""

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "qpsbgd",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "text.parse_math": False,  # names of methods are never formulas
    "axes.formatter.use_mathtext": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
_NO_METADATA: dict[str, dict[str, Any]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": {"Software": None},
}
_DPI = {"svg": 120, "png": 160}  # in an SVG, of the pictures inside


def image(draw: Callable[[], Figure], kind: str) -> bytes:
    """The figure that `draw` returns, drawn with our settings, as "svg" or "png"."""
    data = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        try:
            draw().savefig(data, format=kind, dpi=_DPI[kind], metadata=_NO_METADATA[kind])
        except (ArithmeticError, IndexError, TypeError) as error:
            raise ValueError(f"a figure cannot be drawn: {error!r}") from error
    return data.getvalue()


def tidy(axes: Axes, *, log: str = "") -> None:
    """Axes of a finished drawing with a light grid and few ticks, logarithmic where named in `log`: "x", "y", "xy"."""
    for name, axis, ticks in (("x", axes.xaxis, 4), ("y", axes.yaxis, 5)):
        if name not in log:
            axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
            continue
        axes.set(**{f"{name}scale": "log"})
        low, high = axis.get_view_interval()
        if high < 50 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # powers of ten alone would be one or two
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def wrap(text: str, inches: float) -> str:
    """The text in lines no wider than that, at the size of titles."""
    return textwrap.fill(text, max(int(inches / 0.085), 8))
