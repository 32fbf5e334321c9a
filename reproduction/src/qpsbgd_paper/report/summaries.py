"""Results of experiments as their JSON files hold them."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from qpsbgd_qubo.files.atomic import without_checksum

Summary = Mapping[str, Any]
"""An experiment's results, as `SummaryFile` has them. A figure that is null is not finite: the run diverged."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # of Windows, in every folder


def file_name(*parts: str) -> str:
    """The parts joined by hyphens: a name for a file, without an ending."""
    for part in parts:
        if not _NAME.fullmatch(part) or _DEVICES.fullmatch(part):
            shown = repr(part if len(part) <= 80 else f"{part[:80]}…")
            raise ValueError(
                f"{shown} cannot be part of a file name: it takes 1 to 64 of A–Z a–z 0–9 . _ - and begins with a "
                "letter or digit, and is none of Windows' devices"
            )
    return "-".join(parts)


Name = Annotated[str, AfterValidator(lambda name: file_name(name))]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Numbers = list[Number | None]


class Metric(TypedDict):
    """A figure that every run has; the first of an experiment is its main one."""

    key: str
    label: str
    higher: bool


class Series(TypedDict, total=False):
    """What the curves of an experiment show."""

    key: Required[Name]
    label: Required[str]
    x_label: str


class Curve(TypedDict):
    """Mean and standard deviation over seeds."""

    x: list[Number]
    mean: Numbers
    deviation: Numbers


def _rectangular(curve: Curve) -> Curve:
    if not len(curve["x"]) == len(curve["mean"]) == len(curve["deviation"]):
        raise ValueError("x, mean and deviation of a curve must have the same length")
    return curve


class Row(TypedDict, total=False):
    """A method in a case: its options, its figure in every seed by metric, its curves by series."""

    line: Required[str]
    label: Required[str]
    kind: str
    options: dict[str, Any] | None
    grid: Annotated[list[list[dict[str, Any]]], Field(min_length=2, max_length=2)]
    reported: Number | str | None
    values: Required[dict[str, Numbers]]
    curves: Required[dict[str, Annotated[Curve, AfterValidator(_rectangular)]]]


class Case(TypedDict, total=False):
    """One problem on which methods are compared; `group` names a setting that several cases share."""

    label: Required[str]
    group: str
    short: str
    rows: Required[list[Row]]


class Claim(TypedDict, total=False):
    """A statement of the paper ("paper", or "beyond" its settings) or an aim of ours ("aim"), and what was measured."""

    text: Required[str]
    source: str
    verdict: Required[str]
    detail: str
    number: str
    rival: str | None
    cases: list[str]


class TableOfTexts(TypedDict):
    """A table that the experiment itself made."""

    title: str
    head: list[str]
    body: list[list[str]]


class Figure(TypedDict, total=False):
    """A figure that `drawings.plot_panels` draws, which explains its panels."""

    name: Required[Name]
    title: Required[str]
    caption: str
    kind: Required[Literal["lines", "histograms", "matrices", "images", "graphs"]]
    panels: Required[Annotated[list[dict[str, Any]], Field(min_length=1)]]
    shows_data: bool


class CliqueEmbedding(TypedDict):
    """A number that a newcomer wants, large, and the sentence below it."""

    value: str
    note: str


SummaryFile = TypedDict(
    "SummaryFile",
    {
        "experiment": Required[Name],
        "title": Required[str],
        "about": str,
        "paper": str,
        "command": str,
        "seeds": int,
        "chosen by": str,
        "chosen in view": str,
        "undecided": str,
        "test": str,
        "made with": dict[str, str] | None,
        "seconds of training": Annotated[float, Field(ge=0, le=1e12)],
        "headline": str,
        "tiles": list[CliqueEmbedding],
        "metrics": list[Metric],
        "series": list[Series],
        "cases": list[Case],
        "claims": list[Claim],
        "tables": list[TableOfTexts],
        "figures": list[Figure],
    },
    total=False,
)
"""All that a report shows of an experiment; a file may hold more."""

_FORMAT = TypeAdapter(SummaryFile)


def read_summary(path: Path) -> dict[str, Any]:
    """The results in a JSON file."""
    try:
        content = without_checksum(path.read_bytes())
        check(content)
    except ValueError as error:
        raise ValueError(
            f"{path} is not a result of `qpsbgd run`: {error}; the same `qpsbgd run` makes it again from finished runs"
        ) from error
    return content


def check(summary: Summary) -> None:
    """Raise ValueError, in one line, unless the summary is as `SummaryFile` has it."""
    try:
        _FORMAT.validate_python(summary, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the content"
        raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error


def rows_of(summary: Summary) -> list[Mapping[str, Any]]:
    """The rows of all cases, one after the other."""
    return [row for case in summary.get("cases", ()) for row in case["rows"]]


def line_labels(summary: Summary) -> dict[str, str]:
    """The labels of all lines, by name, in the order of the rows; where two are the same, with the names added.

    "BC", as the paper has it, is written out.
    """
    labels = {row["line"]: re.sub(r"^BC\b", "BinaryConnect", row["label"]) for row in reversed(rows_of(summary))}
    labels = {row["line"]: labels[row["line"]] for row in rows_of(summary)}
    times = Counter(labels.values())
    return {line: label if times[label] == 1 else f"{label} ({line})" for line, label in labels.items()}


def grouped(summary: Summary) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
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
