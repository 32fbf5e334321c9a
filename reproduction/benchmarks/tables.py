"""What the documents' tables and figures are made with: measured results by name, rows as markdown, titled axes."""

import json
from pathlib import Path

import numpy as np

from qpsbgd_paper.report.rendering import tidy
from qpsbgd_paper.report.tables import pipes

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "reproduction" / "results"


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def cross_table(corner, cells, order=None):
    """A table of cells by row and column, as they come or in this order; a dash where there is none.

    A row is named by one text or, as the corner is, by a tuple of several.
    """
    rows, columns = (dict.fromkeys(names) for names in zip(*cells, strict=True))
    columns = [name for name in order or columns if name in columns]
    body = ([*_names(row), *(cells.get((row, name), "–") for name in columns)] for row in rows)
    return pipes([*_names(corner), *columns], body)


def _names(row):
    return row if isinstance(row, tuple) else (row,)


def group_by(rows, *keys):
    """The rows by the values of these keys, in their order; by the value itself where there is one key."""
    groups = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        groups.setdefault(key if len(keys) > 1 else key[0], []).append(row)
    return groups


def spread(values, unit=1, digits=3):
    """Mean ± standard deviation in parts of a unit, the mean alone of a single value, a dash of none."""
    if not len(values):
        return "–"
    around = f" ± {unit * np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{unit * np.mean(values):.{digits}f}{around}"


def label_axes(axes, title, x_label=None, y_label=None, *, log="", size=9):
    """Axes of a panel: tidy, the title on the left, small labels and numbers."""
    tidy(axes, log=log)
    axes.set_title(title, fontsize=size)
    if x_label:
        axes.set_xlabel(x_label, fontsize=size)
    if y_label:
        axes.set_ylabel(y_label, fontsize=size)
