"""Results as a markdown document."""

from collections.abc import Sequence

from qpsbgd_paper.report.figures import pictures
from qpsbgd_paper.report.summaries import Summary
from qpsbgd_paper.report.tables import claims_sentence, claims_table, escaped, main_tables, tests_of, to_markdown
from qpsbgd_qubo.files.visible import visible

LONGEST = 18
"""Rows of the longest table that a section shows."""


def markdown(
    summaries: Sequence[Summary], *, title: str = "Results", intro: str = "", figures: str | None = None
) -> str:
    """All results as one markdown text: how many of the paper's claims hold, then a section per experiment.

    Args:
        summaries: Summaries of the experiments, in the order of the document.
        title: Its heading.
        intro: Markdown below the heading.
        figures: The folder, as seen from the document, that holds the experiments' pictures; without it, no figures.
    """
    lead = claims_sentence(summaries)
    parts = [f"# {title}", lead and f"**{lead}**", intro, *map(escaped, tests_of(summaries))]
    parts += [section(summary, figures=figures) for summary in summaries]
    return "\n\n".join(filter(None, parts)) + "\n"


def section(summary: Summary, *, figures: str | None = None) -> str:
    """One experiment: what it is about, the paper's claims, pictures and the main table; the report has the rest."""
    command = f"`{visible(' '.join(summary['command'].split()))}`" if summary.get("command") else ""
    paper = f"The paper: {escaped(summary['paper'])}" if summary.get("paper") else ""
    parts = [f"## {escaped(summary['title'])}", " ".join(filter(None, (paper, command)))]
    parts += [escaped(summary.get("headline", "")), escaped(summary.get("about", ""))]
    claims = claims_table(summary, sources=["paper"])
    parts.append(to_markdown(claims) if claims.rows else "")
    if figures is not None:
        shown = list(pictures(summary).items())
        shown = [(name, picture) for name, picture in shown if picture.shows_data or name == shown[0][0]]
        parts += [f"![{escaped(p.title)}]({figures}/{name}.svg)\n\n{escaped(p.caption)}".strip() for name, p in shown]
    if main := [table for table in main_tables(summary) if len(table.rows) <= LONGEST][:1]:
        parts += [f"{escaped(main[0].title)}{_seeds(summary)}:", to_markdown(main[0])]
    if summary.get("chosen in view"):
        parts.append(f"Chosen with results in view: {escaped(summary['chosen in view'])}")
    return "\n\n".join(filter(None, parts))


def _seeds(summary: Summary) -> str:
    seeds = summary.get("seeds") if summary.get("metrics") else None
    text = ", one seed" if seeds == 1 else f", mean ± standard deviation of {seeds} seeds" if seeds else ""
    if text and (chosen := summary.get("chosen on")):
        text += f"; options chosen on {chosen[0]} other{'s' * (chosen[0] > 1)}, the best three on {chosen[-1]}"
    return text
