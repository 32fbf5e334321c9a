"""Results as tables and sentences, for terminal, markdown and HTML: pure functions of an experiment's summary."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpsbgd_paper.report.scales import finite
from qpsbgd_paper.report.styles import grouped, line_labels
from qpsbgd_paper.report.summaries import Summary

SOURCES: Mapping[str, str] = {"paper": "the paper", "beyond": "the paper, elsewhere", "aim": "our aim"}
"""Who says so, in words."""

NOTHING = "–"
IN_VIEW = "Chosen with results in view"


class Table(NamedTuple):
    """A table of strings: `best` holds (row, column) of cells to mark, `quoted` the columns of the paper's figures."""

    title: str
    head: list[str]
    body: list[list[str]]
    best: frozenset[tuple[int, int]] = frozenset()
    quoted: frozenset[int] = frozenset()


class Finding(NamedTuple):
    """A claim as readers see it: what, who says so, whether it holds here, and by which figures."""

    text: str
    source: str
    verdict: str
    detail: str


def tables(summary: Summary) -> list[Table]:
    """The first metric's tables, then what the experiment itself put into tables."""
    metrics = summary.get("metrics", ())
    main = metric_tables(summary, metrics[0]) if metrics else []
    return main + [
        Table(
            table["title"],
            [str(cell) for cell in table["head"]],
            [[str(cell) for cell in row] for row in table["body"]],
        )
        for table in summary.get("tables", ())
    ]


def other_tables(summary: Summary) -> list[Table]:
    """The tables of all metrics but the first."""
    return [table for metric in summary.get("metrics", ())[1:] for table in metric_tables(summary, metric)]


def metric_tables(summary: Summary, metric: Mapping[str, Any]) -> list[Table]:
    """Methods as rows, cases as columns, `mean ± deviation` over seeds; one table per setting.

    The paper's figures stand in a column `paper` beside ours where there are any; they belong to the first metric.
    The best mean of every column is marked, as are those that look the same when rounded.
    """
    first = metric["key"] == summary["metrics"][0]["key"]
    found = []
    for setting, cases in grouped(summary).items():
        title = f"{metric['label']} ({setting})" if setting else str(metric["label"])
        head = ["method"]
        columns: list[dict[str, str]] = []
        best, quoted = set(), set()
        labels = _labels_of(cases)
        for short, case in cases:
            rows = {row["line"]: row for row in case["rows"]}
            values = {line: row["values"].get(metric["key"], ()) for line, row in rows.items()}
            decimals = decimals_for(values.values())
            head.append(short)
            columns.append({line: mean_and_deviation(numbers, decimals) for line, numbers in values.items()})
            winners = _winners(values, higher=metric.get("higher", True), decimals=decimals)
            best |= {(number, len(columns)) for number, line in enumerate(labels) if line in winners}
            if first and any(row.get("reported") is not None for row in rows.values()):
                quoted.add(len(head))
                head.append("paper")
                columns.append(_reported({line: row.get("reported") for line, row in rows.items()}))
        body = [[label, *(column.get(line, NOTHING) for column in columns)] for line, label in labels.items()]
        found.append(Table(title, head, body, frozenset(best), frozenset(quoted)))
    return found


def options_tables(summary: Summary) -> list[Table]:
    """The options that every method ran with, methods as rows and cases as columns; one table per setting."""
    found = []
    for setting, cases in grouped(summary).items():
        body = []
        for line, label in _labels_of(cases).items():
            rows = [next((row for row in case["rows"] if row["line"] == line), None) for _, case in cases]
            body.append([label, *(NOTHING if row is None else _chosen_text(row) for row in rows)])
        if body:
            title = f"options ({setting})" if setting else "options"
            found.append(Table(title, ["method", *(short for short, _ in cases)], body))
    return found


def findings(summary: Summary) -> list[Finding]:
    """All claims about an experiment with their verdicts; methods by their labels."""
    labels = line_labels(summary)
    found = []
    for claim in summary.get("claims", ()):
        text, detail, rival = str(claim["text"]), str(claim.get("detail", "")), claim.get("rival")
        cases = [case for case in claim.get("cases", ()) if case not in text]
        if len(cases) == 1:
            text = f"{text} ({cases[0]})"
        if rival in labels:
            detail = detail.replace(f"({rival})", f"({labels[rival]})")
        source = SOURCES.get(claim.get("source", "paper"), str(claim.get("source")))
        found.append(Finding(text, source, str(claim["verdict"]), detail))
    return found


def judged_by(summaries: Iterable[Summary]) -> list[str]:
    """The tests that decided on claims, each once, as sentences."""
    tests = dict.fromkeys(str(summary["test"]).rstrip(".") for summary in summaries if summary.get("test"))
    return [f"The test: {test}." for test in tests]


def joined(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def capitalised(text: str) -> str:
    """The text with a capital at its beginning, and nothing else changed."""
    return text[:1].upper() + text[1:]


def claim_sentences(summary: Summary) -> list[str]:
    """Claims with verdicts and figures, each a sentence for a terminal or a list."""
    return [
        f"{finding.text} ({finding.source}): {finding.verdict}" + (f" – {finding.detail}" if finding.detail else "")
        for finding in findings(summary)
    ]


def duration(seconds: float) -> str:
    """`27 s`, `4 min` or `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def mean_and_deviation(values: Sequence[float | None], decimals: int | None = 3) -> str:
    """`0.952 ± 0.008`, the sample standard deviation over seeds; the number alone where there is one seed.

    A figure that is missing or not finite is a run that diverged: then how many did is said instead.
    """
    if not len(values):
        return NOTHING
    numbers = finite(values)
    diverged = sum(math.isnan(number) for number in numbers)
    if diverged:
        return "diverged" if diverged == len(numbers) else f"{diverged} of {len(numbers)} diverged"
    mean = number_text(float(np.mean(numbers)), decimals)
    return mean if len(numbers) == 1 else f"{mean} ± {number_text(float(np.std(numbers, ddof=1)), decimals)}"


def decimals_for(columns: Iterable[Sequence[float | None]]) -> int | None:
    """Decimals for all cells of a column, by the size of its typical figure; None for three significant digits."""
    numbers = [abs(number) for values in columns for number in finite(values) if not math.isnan(number)]
    typical = float(np.median(numbers)) if numbers else 0.0
    if 0 < typical < 0.005:
        return None
    return 1 if typical >= 100 else 2 if typical >= 10 else 3 if typical >= 0.05 or typical == 0 else 4


def number_text(value: float, decimals: int | None) -> str:
    """A number with that many decimals; three significant digits where they are None or the number is huge."""
    if decimals is None or abs(value) >= 1e5:
        return f"{value:.3g}"
    return f"{value:.{decimals}f}"


def _chosen_text(row: Mapping[str, Any]) -> str:
    """The options of a line, and by which learning rates its grid was extended."""
    chosen = options_text(row.get("options") or {}) or "defaults"
    added = row["grid"][1] if row.get("grid") else ()
    if not added:
        return chosen
    edge = ", still at its edge" if row["options"] == added[-1] else ""
    return f"{chosen} (grid extended by lr {', '.join(_option(point['lr']) for point in added)}{edge})"


def options_text(options: Mapping[str, Any]) -> str:
    """`lr 0.03, momentum 0.9, solver exact`."""
    return ", ".join(f"{name} {_option(value)}" for name, value in options.items())


def _option(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        rest = {name: entry for name, entry in value.items() if name != "name"}
        text = f"({options_text(rest)})" if rest else ""
        return f"{value['name']} {text}".strip() if "name" in value else text
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reported(given: Mapping[str, float | str | None]) -> dict[str, str]:
    """The paper's figures, all with as many decimals as the longest."""
    numbers = [value for value in given.values() if isinstance(value, int | float)]
    decimals = max((len(f"{number:g}".partition(".")[2]) for number in numbers), default=0)
    return {
        line: NOTHING if value is None else value if isinstance(value, str) else f"{value:.{decimals}f}"
        for line, value in given.items()
    }


def _labels_of(cases: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    return line_labels({"cases": [case for _, case in cases]})


def _winners(values: Mapping[str, Sequence[float | None]], *, higher: bool, decimals: int | None) -> set[str]:
    """The lines with the best mean, compared as printed; none where all are the same."""
    means = {line: float(np.mean(finite(numbers))) for line, numbers in values.items() if len(numbers)}
    shown = {line: float(number_text(mean, decimals)) for line, mean in means.items() if not math.isnan(mean)}
    if len(means) < 2 or not shown or (len(set(shown.values())) == 1 and len(shown) == len(means)):
        return set()
    best = max(shown.values()) if higher else min(shown.values())
    return {line for line, mean in shown.items() if mean == best}
