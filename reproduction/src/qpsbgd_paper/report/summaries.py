"""Results of experiments as their JSON files hold them."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qpsbgd_paper.framework.checksums import without_checksum

Summary = Mapping[str, Any]
"""An experiment's results, as `Comparison.summary` and `Study.summary` make them.

A figure that is null is not finite: the run diverged.
"""


def file_name(*parts: str) -> str:
    """The parts joined by hyphens: a name for a file, without an ending, in no other folder."""
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", part):
            raise ValueError(
                f"{part[:80]!r} cannot be part of a file name: it takes 1 to 64 of A–Z a–z 0–9 . _ - and begins with a "
                "letter or digit"
            )
    return "-".join(parts)


def read_summary(path: Path) -> dict[str, Any]:
    """The results in a JSON file; ValueError for one that is damaged, or not a result of `qpsbgd run`."""
    try:
        content = without_checksum(path.read_bytes())
        if missing := {"experiment", "title"} - content.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        figures = (figure["name"] for figure in content.get("figures", ()))
        file_name(content["experiment"], *(series["key"] for series in content.get("series", ())), *figures)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a result of `qpsbgd run`: {error}; the same `qpsbgd run` makes it again from finished runs"
        ) from error
    return content


def rows_of(summary: Summary) -> list[Mapping[str, Any]]:
    """The rows of all cases, one after the other."""
    return [row for case in summary.get("cases", ()) for row in case["rows"]]


def line_labels(summary: Summary) -> dict[str, str]:
    """The labels of all lines, by name, in the order of the rows; where two are the same, with the names added."""
    labels = {row["line"]: re.sub(r"^BC\b", "BinaryConnect", row["label"]) for row in reversed(rows_of(summary))}
    labels = {row["line"]: labels[row["line"]] for row in rows_of(summary)}
    times = Counter(labels.values())
    return {line: label if times[label] == 1 else f"{label} ({line})" for line, label in labels.items()}


def by_setting(summary: Summary) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """The cases by the setting they share: (label, case) of all, with short labels where several share one.

    Where no setting is shared, all cases are one group without a name. Cases that have no line in common with each
    other are groups of their own.
    """
    cases = list(summary.get("cases", ()))
    lines = [row["line"] for row in rows_of(summary)]
    if len(cases) > 1 and len(lines) == len(set(lines)):
        return {case["label"]: [(case["label"], case)] for case in cases}
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for case in cases:
        groups.setdefault(case.get("group", case["label"]), []).append((case.get("short", case["label"]), case))
    if len(groups) == len(cases):
        return {"": [(case["label"], case) for case in cases]}
    return groups
