"""An SVG file of matplotlib's without what a browser does not need: a third of the size, and no visible difference."""

import base64
import io
import re

import numpy as np

try:
    from PIL import Image
except ImportError as error:
    raise ImportError("figures need matplotlib: pip install 'qpsbgd[paper]'") from error

Points = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_LARGE = 40_000
_FAR = 1e5
"""In points: where a line that explodes is cut off, far outside of every picture."""

_TOLERANCE = 2.0
"""How far a path may move, in tenths of a point."""


def lightened(text: str) -> str:
    """The `<svg>` element of an SVG file that shows the same in fewer bytes."""
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
