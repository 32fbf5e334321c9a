"""A matplotlib figure as SVG that reads on light and dark pages, as PNG and as PDF; the same bytes at every call."""

import base64
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qpsbgd_paper.report.styles import INK

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path
    from matplotlib.ticker import FuncFormatter, NullFormatter
    from PIL import Image
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'qpsbgd[paper]'") from error

_DARK_INK = "#3c434a"
_DPI = 160
_DPI_INSIDE = 120  # of pictures inside an SVG
_NOTHING: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}
"""Metadata that would differ from call to call, or between versions, by format."""

Points = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_LARGE = 40_000
_FAR = 1e5
"""In points: where a line that explodes is cut off, far outside of every picture."""

_TOLERANCE = 2.0
"""How far a path may move, in tenths of a point."""


def svg(draw: Callable[[], Figure], *, name: str = "") -> str:
    """The figure that `draw` makes, as an `<svg>` element with a transparent background.

    Args:
        draw: Called with our settings of matplotlib in force.
        name: Begins all ids, so that several figures can stand on one page.
    """
    with matplotlib.rc_context(_style(INK)):
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        draw().savefig(text, format="svg", transparent=True, dpi=_DPI_INSIDE, metadata=nothing)
    found = lightened(text.getvalue())
    if not name:
        return found
    prefix = re.sub(r"\W+", "-", name)
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", found)


def on_white(draw: Callable[[], Figure], kind: str) -> bytes:
    """The figure that `draw` makes, on white, as "png" or "pdf"."""
    with matplotlib.rc_context(_style(_DARK_INK)):
        figure = draw()
        FigureCanvasAgg(figure)
        data = io.BytesIO()
        figure.savefig(data, format=kind, dpi=_DPI, facecolor="white", metadata=_NOTHING[kind])
    return data.getvalue()


def ink() -> str:
    """The colour of text and axes in the figure that is being drawn."""
    return str(matplotlib.rcParams["text.color"])


def tidy(axes: Axes, *, log: str = "") -> None:
    """Axes with a light grid and no frame; those named in `log` ("x", "y" or "xy") logarithmic, with plain numbers."""
    for name in log:
        axes.set(**{f"{name}scale": "log"})
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)


def fit(texts: Sequence[str], inches: float, *, size: float) -> tuple[list[str], float]:
    """Texts no wider than that, and their font size: a little smaller where that is enough, else wrapped."""
    small = max(0.85 * size, 8.0)
    widest = max((_width(text, size) for text in texts), default=0.0)
    if widest * small / size <= inches:
        return list(texts), min(size, size * inches / max(widest, 1e-9))
    return [_wrapped(text, inches, small) for text in texts], small


def legend_columns(labels: Sequence[str], inches: float, *, size: float, most: int) -> int:
    """How many columns of a legend fit beside each other."""
    widths = [_width(label, size) + 5 * size / 72 for label in labels]  # with line and gaps
    for columns in range(min(most, len(labels)), 1, -1):
        rows = -(-len(labels) // columns)
        if sum(max(widths[start : start + rows]) for start in range(0, len(labels), rows)) <= inches:
            return columns
    return 1


def _width(text: str, size: float) -> float:
    """The width of a line of text in inches, in the font that matplotlib measures with: wider than most."""
    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0]) / 72


def _wrapped(text: str, inches: float, size: float) -> str:
    lines: list[str] = []
    for word in text.split():
        if lines and _width(f"{lines[-1]} {word}", size) <= inches:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def _style(colour: str) -> dict[Any, Any]:
    """Settings of matplotlib; names of methods are never formulas."""
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    fixed = {
        "svg.fonttype": "none",
        "svg.hashsalt": "qpsbgd",
        "pdf.fonttype": 42,
        "font.family": "sans-serif",
        "font.size": 11,
    }
    return {**fixed, "text.parse_math": False, "axes.formatter.use_mathtext": False, **dict.fromkeys(names, colour)}


def lightened(text: str) -> str:
    """The `<svg>` element of an SVG file of matplotlib's, which shows the same in a third of the bytes."""
    found = text[text.index("<svg") :]
    found = re.sub(r"<!--.*?-->", "", found, flags=re.DOTALL)
    found = re.sub(r"(?<=data:image/png;base64,)[\w+/=\s]+", lambda match: _with_few_colours(match[0]), found)
    found = re.sub(r'(?<= d=")[^"]*', lambda match: _light_path(match[0]), found)
    # Of tags alone: in a text, "lr 0.001" must not become "lr 0.00".
    found = re.sub(r"<[^>]*>", lambda match: re.sub(r"(\d\.\d\d)\d+", r"\1", match[0]), found)
    # Groups have names that nothing refers to, and every text names the same fonts.
    found = re.sub(r'<g id="[^"]*"', "<g", found)
    found = re.sub(r" font-family: [^;\"]*;", "", found)
    found = found.replace("<svg ", '<svg font-family="sans-serif" ', 1)
    found = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", found)
    return re.sub(r"\n\s*", "\n", found)


def _light_path(path: str) -> str:
    """A path of straight lines in relative steps of tenths of a point, without points that lie on the way."""
    if re.search(r"[^MLz\d.\s-]", path):
        return re.sub(r"\s+", " ", re.sub(r"(\d\.\d)\d+", r"\1", path)).strip()
    return "".join(_steps(part) for part in re.findall(r"M[^M]*", path))


def _steps(path: str) -> str:
    numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]
    near = np.clip(numbers, -_FAR, _FAR)
    points: Points = np.rint(10 * near).astype(np.int64).reshape(-1, 2)
    points = points[_kept(points)]
    moves = np.diff(points, axis=0)
    steps = "".join(f"l{_tenths(x)} {_tenths(y)}" for x, y in moves.tolist() if x or y)
    return f"M{_tenths(points[0, 0])} {_tenths(points[0, 1])}{steps or 'l0 0'}{'z' if 'z' in path else ''}"


def _kept(points: Points) -> list[int]:
    """Points to keep so that no other is further from the path than the tolerance (Douglas and Peucker)."""
    kept, open_parts = {0, len(points) - 1}, [(0, len(points) - 1)]
    while open_parts:
        first, last = open_parts.pop()
        if last - first < 2:
            continue
        along = points[last] - points[first]
        away = points[first + 1 : last] - points[first]
        length = float(np.hypot(*along))
        if length:
            share = np.clip(away @ along / length**2, 0, 1)
            away = away - share[:, None] * along
        distance = np.hypot(away[:, 0], away[:, 1])
        furthest = int(np.argmax(distance))
        if distance[furthest] > _TOLERANCE:
            middle = first + 1 + furthest
            kept.add(middle)
            open_parts += [(first, middle), (middle, last)]
    return sorted(kept)


def _tenths(number: int) -> str:
    return f"{number / 10:g}"


def _with_few_colours(picture: str) -> str:
    """A large picture, in base64, with a palette of 256 colours."""
    if len(picture) < _LARGE:
        return picture
    data = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        few = image.convert("RGBA").quantize(256, method=Image.Quantize.FASTOCTREE)
        few.save(data, format="png", optimize=True)
    return base64.b64encode(data.getvalue()).decode()
