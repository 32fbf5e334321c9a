"""Results as a markdown document."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from qpsbgd.visible import visible
from qpsbgd_paper.report.headlines import headline
from qpsbgd_paper.report.summaries import Summary, check, file_name
from qpsbgd_paper.report.tables import (
    IN_VIEW,
    Table,
    claims_table,
    findings,
    made_with,
    options_tables,
    other_tables,
    tables,
)

TITLE = "Results"
VERDICTS = {"yes": "**yes**", "no": "**no**", "within noise": "within noise"}


def markdown(summaries: Sequence[Summary], *, title: str = TITLE, intro: str = "", figures: str | None = None) -> str:
    """All results as one markdown text: an overview of the claims, then every experiment.

    Args:
        summaries: Of the experiments, in the order of the document.
        title: Its heading.
        intro: Markdown below the heading.
        figures: The folder, as seen from the document, that holds what `report.figures` makes; without it, no figures.
    """
    for summary in summaries:
        check(summary)
    parts = [f"# {title}"]
    if intro:
        parts.append(intro)
    overview = claims_table(summaries)
    if overview.body:
        body = [[*map(escaped, row[:3]), _verdict(row[3]), escaped(row[4])] for row in overview.body]
        parts.append(f"## {overview.title}")
        parts += [f"The test: {escaped(test)}." for test in _tests(summaries)]
        parts.append(_rows(overview.head, body))
    for summary in summaries:
        parts.append(section(summary, figures=figures))
    return "\n\n".join(parts) + "\n"


def table_text(table: Table) -> str:
    """A table in markdown, its best cells bold."""
    body = [
        [f"**{escaped(cell)}**" if (number, column) in table.best else escaped(cell) for column, cell in enumerate(row)]
        for number, row in enumerate(table.body)
    ]
    return _rows([escaped(cell) for cell in table.head], body)


def escaped(text: str) -> str:
    """Text that markdown shows as it is, in a table cell too."""
    text = visible(text)
    for character in "\\`*_[]|<":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def _verdict(verdict: str) -> str:
    return VERDICTS.get(verdict) or escaped(verdict)


def section(summary: Summary, *, figures: str | None = None) -> str:
    """One experiment: who won, what it is about, tables, figures and claims."""
    seeds = summary.get("seeds")
    sentence, detail = (escaped(part) for part in headline(summary))
    parts = [f"## {escaped(str(summary['title']))}", f"**{sentence}** {detail}".rstrip() if sentence else ""]
    parts.append(escaped(str(summary.get("about", ""))))
    if summary.get("chosen in view"):
        parts.append(f"{IN_VIEW}: {escaped(str(summary['chosen in view']))}")
    if summary.get("command"):
        parts.append(f"    {visible(' '.join(str(summary['command']).split()))}")
    if summary.get("paper"):
        parts.append(f"The paper: {escaped(str(summary['paper']))}")
    if seeds and summary.get("metrics"):
        parts.append(f"{_seeds(seeds)} Bold: the best in each column.")
    for table in tables(summary):
        parts += [f"### {escaped(_sentence(table.title))}", table_text(table)]
    if figures is not None and summary.get("series"):
        parts.append(f"![{escaped(str(summary['title']))}]({figures}/{summary['experiment']}.svg)")
    for figure in summary.get("figures", ()) if figures is not None else ():
        title = escaped(str(figure["title"]))
        parts += [
            f"### {_sentence(title)}",
            f"![{title}]({figures}/{file_name(summary['experiment'], figure['name'])}.svg)",
        ]
        parts += [escaped(str(figure["caption"]))] if figure.get("caption") else []
    claims = [
        f"- {escaped(f.text)} ({escaped(f.source)}): {_verdict(f.verdict)}"
        + (f" – {escaped(f.detail)}" if f.detail else "")
        for f in findings(summary)
    ]
    if claims:
        parts += ["### Claims", "\n".join(claims)]
    parts += _folded("Other figures", other_tables(summary))
    chosen = f", chosen by {summary['chosen by']}" if summary.get("chosen by") else ""
    parts += _folded(f"Options{chosen}", options_tables(summary))
    if made_with(summary):
        parts.append(f"Made with {escaped(made_with(summary))}.")
    return "\n\n".join(part for part in parts if part)


def _folded(title: str, contents: Iterable[Table]) -> list[str]:
    parts = [part for table in contents for part in (f"{escaped(_sentence(table.title))}:", table_text(table))]
    return [f"<details><summary>{html.escape(title)}</summary>", *parts, "</details>"] if parts else []


def _rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _seeds(seeds: int) -> str:
    return "One seed." if seeds == 1 else f"Mean ± standard deviation of {seeds} seeds."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tests(summaries: Iterable[Summary]) -> list[str]:
    return list(dict.fromkeys(str(summary["test"]).rstrip(".") for summary in summaries if summary.get("test")))
