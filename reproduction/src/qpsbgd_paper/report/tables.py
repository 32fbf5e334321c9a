"""Results as tables of texts, for the terminal, markdown and HTML: pure functions of an experiment's results."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_paper.report.summaries import Summary, by_setting, line_labels
from qpsbgd_qubo.files.visible import visible

SOURCES: Mapping[str, str] = {"paper": "the paper", "beyond": "the paper, elsewhere", "aim": "our aim"}
"""Who says so, in words."""

NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """A table of texts; `best` holds (row, column) of cells to mark."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()


def table_of(title: str, rows: Iterable[Mapping[str, str]]) -> Table:
    """The table with these rows, mappings from the names of columns to cells; a dash where a row has no cell."""
    rows = list(rows)
    head = list(dict.fromkeys(name for row in rows for name in row))
    return Table(title, head, [[row.get(name, NOTHING) for name in head] for row in rows])


def pipes(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table of cells that are markdown already."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def escape(text: str) -> str:
    """Text that markdown shows as it is, in a table cell too."""
    text = visible(text)
    for character in "\\`*_[]|<":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def main_tables(summary: Summary) -> list[Table]:
    """The first metric's tables, then what the experiment itself put into tables."""
    main = [table for metric in summary.get("metrics", ())[:1] for table in metric_tables(summary, metric)]
    return main + [Table(table["title"], table["head"], table["body"]) for table in summary.get("tables", ())]


def other_tables(summary: Summary) -> list[Table]:
    """The tables of all metrics but the first."""
    return [table for metric in summary.get("metrics", ())[1:] for table in metric_tables(summary, metric)]


def metric_tables(summary: Summary, metric: Mapping[str, Any]) -> list[Table]:
    """Methods as rows, cases as columns, `mean ± deviation` over seeds; one table per setting.

    The paper's figures stand in a column beside ours where there are any; they belong to the first metric. The best
    mean of every column is marked, as are those that look the same when rounded.
    """
    first = metric["key"] == summary["metrics"][0]["key"]
    tables = []
    for setting, cases in by_setting(summary).items():
        labels = line_labels({"cases": [case for _, case in cases]})
        rows = {line: {"method": label} for line, label in labels.items()}
        best = set()
        for short, case in cases:
            values = {row["line"]: row["values"].get(metric["key"], ()) for row in case["rows"]}
            decimals = decimals_for(values.values())
            for row in case["rows"]:
                rows[row["line"]][short] = mean_and_deviation(values[row["line"]], decimals)
                if first and row.get("reported") is not None:
                    paper = "in the paper" if len(cases) == 1 else f"in the paper, {short}"
                    rows[row["line"]][paper] = str(row["reported"])
            best |= {(line, short) for line in _winners(values, higher=metric["higher"], decimals=decimals)}
        table = table_of(_title(metric["label"], setting), rows.values())
        places = frozenset(
            (number, column)
            for number, line in enumerate(rows)
            for column, name in enumerate(table.head)
            if (line, name) in best
        )
        tables.append(Table(table.title, table.head, table.rows, places))
    return tables


def options_tables(summary: Summary) -> list[Table]:
    """The options that every method ran with, methods as rows and cases as columns; one table per setting."""
    return [
        table_of(
            _title("Options", setting),
            (
                {"method": label}
                | {short: _chosen_text(row) for short, case in cases for row in case["rows"] if row["line"] == line}
                for line, label in line_labels({"cases": [case for _, case in cases]}).items()
            ),
        )
        for setting, cases in by_setting(summary).items()
        if cases
    ]


def claims_table(summary: Summary, *, sources: Sequence[str] = ()) -> Table:
    """All claims, or those of these sources: who says so, the paper's number, what was measured, the verdict."""
    labels = line_labels(summary)
    rows = []
    for claim in summary.get("claims", ()):
        text, here, source = claim["text"], claim.get("detail", ""), claim.get("source", "paper")
        cases = [case for case in claim.get("cases", ()) if case not in text]
        if sources and source not in sources:
            continue
        for line, label in labels.items():
            here = here.replace(f"({line})", f"({label})")
        row = {"claim": f"{text} ({cases[0]})" if len(cases) == 1 else text, "verdict": claim["verdict"]}
        row |= {"the paper": claim.get("number") or NOTHING, "here": here or NOTHING}
        rows.append(row if len(sources) == 1 else row | {"says": SOURCES.get(source, source)})
    numbered = any(row["the paper"] != NOTHING for row in rows)
    return table_of("", rows if numbered else [{k: row[k] for k in row if k != "the paper"} for row in rows])


def claims_sentence(summaries: Iterable[Summary]) -> str:
    """`Of 30 statements of the paper, …`; empty without any. Those beyond its form or setting are not counted."""
    claims = [claim for summary in summaries for claim in summary.get("claims", ())]
    tally = Counter(claim["verdict"] for claim in claims if claim.get("source", "paper") == "paper")
    words = {
        "yes": "hold here",
        "no": "do not",
        "cannot tell": "cannot be told apart from the controls or from noise",
        "not run on hardware": "are about an annealer and have not been run on hardware",
    }
    parts = [f"{tally[verdict]} {text}" for verdict, text in words.items() if tally[verdict]]
    if not parts:
        return ""
    listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"Of {tally.total()} statements of the paper, each judged on its own form and setting, {listed}."


def tests_of(summaries: Iterable[Summary]) -> list[str]:
    """The tests that decided on claims, each once, as sentences."""
    tests = dict.fromkeys(str(summary["test"]).rstrip(".") for summary in summaries if summary.get("test"))
    return [f"The test: {test}." for test in tests]


def duration(seconds: float) -> str:
    """`27 s`, `4 min` or `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def mean_and_deviation(values: Sequence[float | None], decimals: int | None = 3) -> str:
    """`0.952 ± 0.008`, the sample standard deviation over seeds; or how many runs diverged."""
    if not len(values):
        return NOTHING
    numbers = _finite(values)
    diverged = len(values) - len(numbers)
    if diverged:
        return "diverged" if not numbers else f"{diverged} of {len(values)} diverged"
    mean = number_text(float(np.mean(numbers)), decimals)
    return mean if len(numbers) == 1 else f"{mean} ± {number_text(float(np.std(numbers, ddof=1)), decimals)}"


def decimals_for(columns: Iterable[Sequence[float | None]]) -> int | None:
    """Decimals for all cells of a column, by the size of its typical figure; None for three significant digits."""
    numbers = [abs(number) for values in columns for number in _finite(values)]
    typical = float(np.median(numbers)) if numbers else 0.0
    if 0 < typical < 0.005:
        return None
    return 1 if typical >= 100 else 2 if typical >= 10 else 3 if typical >= 0.05 or typical == 0 else 4


def number_text(value: float, decimals: int | None) -> str:
    """A number with that many decimals; three significant digits where they are None or the number is huge."""
    if decimals is None or abs(value) >= 1e5:
        return f"{value:.3g}"
    return f"{value:.{decimals}f}"


def options_text(options: Mapping[str, Any]) -> str:
    """`lr 0.03, momentum 0.9, solver exact`."""
    return ", ".join(f"{name} {_option(value)}" for name, value in options.items())


def _title(title: str, setting: str) -> str:
    return f"{title} ({setting})" if setting else title


def _finite(values: Iterable[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def _chosen_text(row: Mapping[str, Any]) -> str:
    """The options of a line, and by which learning rates its grid was extended."""
    options = row.get("options") or {}
    chosen = options_text(options) or "defaults"
    added = row["grid"][1] if row.get("grid") else ()
    if not added:
        return chosen
    edge = ", still at its edge" if options == added[-1] else ""
    return f"{chosen} (grid extended by lr {', '.join(_option(point.get('lr')) for point in added)}{edge})"


def _option(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        rest = {name: entry for name, entry in value.items() if name != "name"}
        return f"{value.get('name', '')} ({options_text(rest)})".strip() if rest else str(value.get("name", ""))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _winners(values: Mapping[str, Sequence[float | None]], *, higher: bool, decimals: int | None) -> set[str]:
    """The lines with the best mean, compared as printed; none where all are the same, or one is all there is."""
    means = {
        line: np.mean(_finite(numbers)) for line, numbers in values.items() if len(_finite(numbers)) == len(numbers) > 0
    }
    shown = {line: float(number_text(float(mean), decimals)) for line, mean in means.items()}
    compared = sum(len(numbers) > 0 for numbers in values.values())
    if compared < 2 or not shown or (len(set(shown.values())) == 1 and len(shown) == compared):
        return set()
    best = max(shown.values()) if higher else min(shown.values())
    return {line for line, mean in shown.items() if mean == best}
