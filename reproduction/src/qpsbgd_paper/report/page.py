"""All results as one HTML page that loads nothing from elsewhere."""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader

from qpsbgd_paper.report.curves import VERDICTS, plot_verdicts
from qpsbgd_paper.report.figures import Picture, pictures
from qpsbgd_paper.report.rendering import image
from qpsbgd_paper.report.summaries import Summary, rows_of
from qpsbgd_paper.report.tables import (
    claims_sentence,
    claims_table,
    duration,
    main_tables,
    options_tables,
    other_tables,
    tests_of,
)


def page(
    summaries: Sequence[Summary], *, title: str, intro: str = "", drawn: Sequence[Mapping[str, Picture]] | None = None
) -> str:
    """The whole report: the numbers that a newcomer wants, all verdicts at a glance, then a section per experiment.

    `intro` is plain text, folded, and `drawn` the `pictures` of the summaries, where the caller has them.
    """
    lead = claims_sentence(summaries)
    drawn = drawn or [pictures(summary) for summary in summaries]
    pages = Environment(loader=PackageLoader("qpsbgd_paper.report", "."), autoescape=True, trim_blocks=True)
    return pages.get_template("report.html").render(
        title=title,
        lead=lead,
        tiles=[tile for summary in summaries for tile in summary.get("tiles", ())],
        verdicts=_data_link(image(lambda: plot_verdicts(summaries), "svg")) if lead else "",
        reading=[*filter(str.strip, intro.split("\n\n")), *tests_of(summaries)],
        sections=[
            _section(*both, key=f"section-{number}")
            for number, both in enumerate(zip(summaries, drawn, strict=True), 1)
        ],
        badges={"yes": "yes", "no": "no"},
    )


def _section(summary: Summary, drawn: Mapping[str, Picture], *, key: str) -> dict[str, Any]:
    """What the template shows of an experiment."""
    claims = summary.get("claims", ())
    papers = [claim for claim in claims if claim.get("source", "paper") == "paper"]
    tally = Counter(claim["verdict"] for claim in papers or claims)
    seeds = summary.get("seeds")
    return {
        "key": key,
        "summary": summary,
        "tally": [(verdict, tally[verdict]) for verdict in {**VERDICTS, **tally} if tally[verdict]],
        "counted": "The paper's claims" if papers else "Claims",
        "claims": claims_table(summary),
        "pictures": [(picture, _data_link(picture.svg)) for picture in drawn.values()],
        "tables": main_tables(summary),
        "others": other_tables(summary),
        "options": options_tables(summary),
        "ours": {row["label"] for row in rows_of(summary) if row.get("kind") == "ours"},
        "seeds": "one seed" if seeds == 1 else f"mean ± standard deviation of {seeds} seeds" if seeds else "",
        "took": duration(summary["seconds of training"]) if "seconds of training" in summary else "",
        "environment": ", ".join(f"{name} {value}" for name, value in (summary.get("made with") or {}).items()),
    }


def _data_link(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
