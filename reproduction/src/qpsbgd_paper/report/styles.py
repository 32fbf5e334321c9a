"""Colours and line styles by which methods can be told apart, the same in every figure."""

from collections.abc import Iterable, Mapping
from typing import Any

RED = "#d6274a"
"""QP-SBGD. Warm colours are its forms, cool ones are baselines."""

COLOURS: Mapping[str, str] = {
    "qpsbgd": RED,
    "qpsbgd-ridge": "#b8479b",
    "qpsbgd-printed": "#e8743b",
    "qpsbgd-annealed": "#9a5b3c",
    "qpsbgd-virtual": "#d9a514",
    "bc-sgd": "#1b68c4",
    "bc-sign": "#17a589",
    "bc-adam": "#8e6fd8",
    "proxquant": "#6b7077",
    "frozen": "#9aa0a6",
    "random": "#a39c86",
    "constant": "#b3a59b",
}
"""Methods that look the same in every figure."""

WARM = ("#a8871c", "#5f9a2c", "#cc6fb0", "#6e4a1f", "#f2a65a", "#5b2c6f", "#d98880", "#9bb04a")
COOL = ("#3f9bd1", "#5a63c8", "#0f8a9d", "#4d7f72", "#8f7fa8", "#7a86c9", "#2f9e6e")
"""Spare colours, for further forms of QP-SBGD and for further baselines."""

PALETTE = (RED, "#d9a514", "#5f9a2c", "#b8479b", "#3f9bd1", "#5a63c8", "#c76f4a", "#4d7f72", "#a8871c", "#0f8a9d")
"""Colours of what is not a method, such as the spins of a QUBO."""

_STROKES: Mapping[str, dict[str, Any]] = {
    "ours": {"width": 2.4},
    "paper": {"width": 1.9, "style": "dashes"},
    "variant": {"width": 1.7, "style": "dash-dots"},
    "baseline": {"width": 1.3},
    "control": {"width": 1.3, "style": "dots"},
}


def line_looks(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The colour and stroke of every line among the rows, by its name, as `drawings` has them."""
    looks: dict[str, dict[str, Any]] = {}
    for row in rows:
        line, kind = row["line"], row.get("kind", "baseline")
        if line not in looks:
            taken = {look["colour"] for look in looks.values()}
            spare = COOL if kind in ("baseline", "control") else WARM
            free = [colour for colour in spare if colour not in taken] or [spare[len(looks) % len(spare)]]
            looks[line] = {"colour": COLOURS.get(line, free[0]), **_STROKES.get(kind, _STROKES["baseline"])}
    return looks


def legend_columns(labels: Iterable[str]) -> int:
    """How many columns of a legend in the small font of legends fit below a figure."""
    return max(1, min(3, int(7.2 / (0.5 + 0.058 * max(map(len, labels), default=1)))))
