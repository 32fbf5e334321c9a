"""Results as a markdown document."""

from collections.abc import Sequence

from qpsbgd_paper.report.headlines import claims_sentence, headline
from qpsbgd_paper.report.overview import overview, sentence
from qpsbgd_paper.report.summaries import Summary, check, file_name
from qpsbgd_paper.report.tables import IN_VIEW, Table, capitalised, judged_by, tables
from qpsbgd_qubo.files.visible import visible

TITLE = "Results"
LONGEST = 18
"""Rows of the longest table that a section shows."""


def markdown(summaries: Sequence[Summary], *, title: str = TITLE, intro: str = "", figures: str | None = None) -> str:
    """All results as one markdown text: the paper's claims in one table, then a short section per experiment.

    Args:
        summaries: Summaries of the experiments, in the order of the document.
        title: Its heading.
        intro: Markdown below the heading.
        figures: The folder, as seen from the document, that holds what `report.figures` makes; without it, no figures.
    """
    for summary in summaries:
        check(summary)
    parts = [f"# {title}"]
    if (found := sentence(summaries)) != "":
        parts.append(f"**{found}**")
    if intro:
        parts.append(intro)
    claims = overview(summaries)
    if claims.body:
        parts += [f"## {claims.title}", table_text(claims)]
        parts += map(escaped, judged_by(summaries))
    parts += [section(summary, figures=figures) for summary in summaries]
    return "\n\n".join(parts) + "\n"


def table_text(table: Table) -> str:
    """A table in markdown, its best cells bold."""
    body = [
        [f"**{escaped(cell)}**" if (number, column) in table.best else escaped(cell) for column, cell in enumerate(row)]
        for number, row in enumerate(table.body)
    ]
    lines = [[escaped(cell) for cell in table.head], ["---"] * len(table.head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """Text that markdown shows as it is, in a table cell too."""
    text = visible(text)
    for character in "\\`*_[]|<":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def section(summary: Summary, *, figures: str | None = None) -> str:
    """One experiment: who won, what it is about, a picture and a table; the report has the rest."""
    command = f" `{visible(' '.join(str(summary['command']).split()))}`" if summary.get("command") else ""
    paper = f" The paper: {escaped(str(summary['paper']))}" if summary.get("paper") else ""
    parts = [f"## {escaped(str(summary['title']))}"]
    found = escaped(" ".join(dict.fromkeys(filter(None, (claims_sentence(summary), headline(summary))))))
    parts.append(f"**{found}**{paper}{command}" if found else f"{paper}{command}".strip())
    parts.append(escaped(str(summary.get("about", ""))))
    if figures is not None:
        parts += [
            f"![{title}]({figures}/{name}.svg)" + (f"\n\n{caption}" if caption else "")
            for title, name, caption in _pictures(summary)
        ]
    if main := [table for table in tables(summary) if len(table.body) <= LONGEST][:1]:
        parts += [f"{escaped(capitalised(main[0].title))}{_seeds(summary)}:", table_text(main[0])]
    if summary.get("chosen in view"):
        parts.append(f"{IN_VIEW}: {escaped(str(summary['chosen in view']))}")
    return "\n\n".join(part for part in parts if part)


def _pictures(summary: Summary) -> list[tuple[str, str, str]]:
    """Title, file and caption of the first series and of figures that show data, or else of the first figure."""
    title = escaped(str(summary["title"]))
    found = [(title, str(summary["experiment"]), "")] if summary.get("series") else []
    own = list(summary.get("figures", ()))
    shown = [figure for figure in own if figure.get("shows_data")] or ([] if found else own[:1])
    for figure in shown:
        name = file_name(summary["experiment"], figure["name"])
        found.append((escaped(str(figure["title"])), name, escaped(str(figure.get("caption", "")))))
    return found


def _seeds(summary: Summary) -> str:
    seeds = summary.get("seeds") if summary.get("metrics") else None
    text = ", one seed" if seeds == 1 else f", mean ± standard deviation of {seeds} seeds" if seeds else ""
    if text and (chosen := summary.get("chosen on")):
        text += f"; options chosen on {chosen[0]} other{'s' * (chosen[0] > 1)}, the best three on {chosen[1]}"
    elif text and (few := summary.get("settings", {}).get("choosing_seeds")):
        text += f"; options chosen on {few} other{'s' * (few > 1)}"
    return text
