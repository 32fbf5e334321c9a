"""How a method looks in every figure, what it is called, and which cases belong together."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from qpsbgd_paper.report.summaries import Summary, rows_of

INK = "#808790"
"""A grey with contrast on white and on black."""

RED = "#d6274a"
"""Ours. Warm colours are forms of QP-SBGD, cool ones are baselines; all have contrast on white and on black."""


@dataclass(frozen=True)
class Style:
    """Colour, dashes in units of pixels ("" for a solid line) and width of a line."""

    colour: str
    dash: str = ""
    width: float = 1.6


KNOWN: Mapping[str, Style] = {
    "qpsbgd": Style(RED, width=2.6),
    "qpsbgd-ridge": Style("#b8479b", width=2.6),
    "qpsbgd-printed": Style("#e06682", "6 3", 1.8),
    "qpsbgd-annealed": Style("#9a5b3c", "9 2 2 2", 1.8),
    "qpsbgd-virtual": Style("#d07d14", "4 2", 1.8),
    "bc-sgd": Style("#1b68c4"),
    "bc-sign": Style("#17a589"),
    "bc-adam": Style("#b07fdc"),
    "proxquant": Style("#6b7077", "2 2", 1.8),
    "frozen": Style("#8a8f98", "1 3", 2.2),
    "random": Style("#7f7a6c", "5 2 1 2", 1.6),
    "constant": Style("#93876f", "8 3", 1.6),
}
"""Methods that look the same in every figure; no other method has their colours."""

WARM = ("#a8871c", "#5f9a2c", "#c76f4a", "#cc6fb0", "#6e4a1f")
COOL = ("#3f9bd1", "#5a63c8", "#0f8a9d", "#4d7f72", "#8f7fa8", "#7a86c9", "#2f9e6e")
"""Spare colours, for further forms of QP-SBGD and for further baselines."""

PALETTE = (
    *(RED, KNOWN["qpsbgd-virtual"].colour, "#5f9a2c", "#b8479b", "#a8871c", "#3f9bd1", "#5a63c8", "#c76f4a"),
    *("#4d7f72", "#cc6fb0", "#0f8a9d", "#7d8f2a", "#8f7fa8", "#3d8b4f", "#c2607f", "#a8745c"),
)
"""Colours of what is not a method, such as the spins of a QUBO: none is that of a baseline, and the second is that of
the virtual chip, whose reads many figures show."""


def line_styles(summary: Summary) -> dict[str, Style]:
    """The look of every line of an experiment, by its name; well-known methods look the same in all experiments.

    Other lines take the first spare colour of their kind that no line in the same case has, in the order of the rows.
    Where all lines are ours, as in a comparison of options, none stands out.
    """
    return styles_of(line_kinds(summary), beside=lambda line: _beside(summary, line))


def styles_of(kinds: Mapping[str, str], *, beside: Callable[[str], Collection[str]] | None = None) -> dict[str, Style]:
    """The look of lines, by name, from their kinds: "ours", "paper" (the method as printed) or "baseline".

    Args:
        kinds: In the order of the legend.
        beside: The lines from whose colours a line's must differ; all by default.
    """
    methods = {line: kind for line, kind in kinds.items() if kind != "control"}
    alike = len(methods) > 1 and set(methods.values()) == {"ours"} and not set(methods) & set(KNOWN)
    found = {line: KNOWN[line] for line in kinds if line in KNOWN}
    if not alike and "qpsbgd" not in kinds:
        ours = [line for line, kind in kinds.items() if kind == "ours" and line not in found]
        found |= dict.fromkeys(ours[:1], KNOWN["qpsbgd"])
    for line, kind in kinds.items():
        if line in found:
            continue
        spare = (RED, *WARM) if alike else COOL if kind == "baseline" else WARM
        taken = {found[other].colour for other in (beside(line) if beside else kinds) if other in found}
        colour = next((colour for colour in spare if colour not in taken), spare[len(found) % len(spare)])
        found[line] = Style(colour, "6 3" if kind == "paper" else "", 1.6 if kind == "baseline" else 1.8)
    return {line: found[line] for line in kinds}


def line_kinds(summary: Summary) -> dict[str, str]:
    """The kinds of all lines, by name."""
    return {row["line"]: row.get("kind", "baseline") for row in rows_of(summary)}


def _beside(summary: Summary, line: str) -> set[str]:
    """All lines that share a case with this one."""
    together = [{row["line"] for row in case["rows"]} for case in summary["cases"]]
    return set().union(*(lines for lines in together if line in lines))


def line_labels(summary: Summary) -> dict[str, str]:
    """The labels of all lines, by name, in the order of the rows; where two are the same, with the names added."""
    labels: dict[str, str] = {}
    for row in rows_of(summary):
        labels.setdefault(row["line"], row["label"])
    times = Counter(labels.values())
    return {line: label if times[label] == 1 else f"{label} ({line})" for line, label in labels.items()}


def grouped(summary: Summary) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """The cases by the setting they share: (label, case) of all, with short labels where several share one.

    Where no setting is shared, all cases are one group without a name. Cases that have no line in common with each
    other are groups of their own.
    """
    cases = list(summary.get("cases", ()))
    names = [row["line"] for case in cases for row in case["rows"]]
    if len(cases) > 1 and len(names) == len(set(names)):
        return {case["label"]: [(case["label"], case)] for case in cases}
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for case in cases:
        groups.setdefault(case.get("group", case["label"]), []).append((case.get("short", case["label"]), case))
    if len(groups) == len(cases):
        return {"": [(case["label"], case) for case in cases]}
    return groups
