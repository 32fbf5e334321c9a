"""Reads the curves off the two figures that are stored in the authors' notebooks.

    python benchmarks/tools/drawn_curves.py FOLDER

FOLDER is a checkout of github.com/mk2510/QPSBGD at commit 0889d1b. Writes
src/qpsbgd_paper/experiments/drawn_curves.json: one value per iteration, null where another curve hides it.
"""

import base64
import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

OUT = Path(__file__).parents[2] / "src" / "qpsbgd_paper" / "experiments" / "drawn_curves.json"
COLOURS = {
    "bc-sgd": (0, 0, 255),
    "bc-sign": (0, 128, 0),
    "qpsbgd-printed": (255, 0, 0),
    "qpsbgd-virtual": (255, 165, 0),
}
FIGURES = {
    "figure3": ("10LayerMLP/10layers.ipynb", 18, {"x": (0, 20), "y": (1.0, 0.8)}, 64, ("qpsbgd-virtual",)),
    "released-acc": ("2LayerDWave/2layers.ipynb", 15, {"x": (0, 5), "y": (0.8, 0.6)}, 20, ()),
}
"""Notebook, cell, the values at the first two ticks of either axis, iterations, and the methods that are not drawn."""

CLEAR, CLOSE = 140.0, 40.0
"""How far a pixel's colour may be from the curve's, and from the column's nearest one."""


def picture(folder, notebook, cell):
    """The stored image of a cell, (height, width, 3)."""
    outputs = json.loads((folder / notebook).read_text(encoding="utf-8"))["cells"][cell]["outputs"]
    data = next(each["data"]["image/png"] for each in outputs if "image/png" in each.get("data", {}))
    return np.asarray(Image.open(io.BytesIO(base64.b64decode("".join(data)))).convert("RGB")).astype(float)


def ticks(pixels):
    """The frame (left, right, top, bottom), and the columns and rows of the ticks outside of it."""
    dark = pixels.sum(2) < 100
    columns = np.where(dark.sum(0) > pixels.shape[0] // 2)[0]
    rows = np.where(dark[:, columns[0] : columns[-1]].mean(1) > 0.95)[0]
    left, right, bottom = columns[0], columns[-1], rows[-1]
    top = np.where(dark[:, left])[0].min()
    x = [c for c in range(left + 1, right) if dark[bottom + 1 : bottom + 4, c].all()]
    y = [r for r in range(top + 1, bottom) if dark[r, left - 3 : left].all()]
    return (left, right, top, bottom), x, y


def curve(pixels, colour, columns, inside):
    """The row of the curve at every column, None where it cannot be seen."""
    found = []
    for column in columns:
        near = round(column)
        part = pixels[inside, near - 1 : near + 2].mean(1)
        away = np.abs(part - colour).sum(1)
        clear = away < min(CLEAR, away.min() + CLOSE)
        found.append(inside.start + float(np.where(clear)[0].mean()) if clear.any() else None)
    return found


def main(folder):
    drawn = {}
    for name, (notebook, cell, values, iterations, absent) in FIGURES.items():
        pixels = picture(folder, notebook, cell)
        (_, _, top, bottom), x, y = ticks(pixels)
        step = (x[-1] - x[0]) / ((len(x) - 1) * (values["x"][1] - values["x"][0]))
        slope = (len(y) - 1) * (values["y"][1] - values["y"][0]) / (y[-1] - y[0])
        columns = [x[0] + step * k for k in range(iterations)]
        drawn[name] = {
            line: [
                None if row is None else round(values["y"][0] + slope * (row - y[0]), 4)
                for row in curve(pixels, colour, columns, slice(top + 1, bottom))
            ]
            for line, colour in COLOURS.items()
            if line not in absent
        }
    OUT.write_text(json.dumps(drawn) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
