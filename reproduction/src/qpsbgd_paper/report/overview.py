"""All claims of the paper at one look: a table of claims by topic, and a picture of verdicts."""

import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qpsbgd_paper.report.scales import finite
from qpsbgd_paper.report.styles import INK
from qpsbgd_paper.report.summaries import Summary, rows_of
from qpsbgd_paper.report.tables import NOTHING, Table, decimals_for, joined, number_text

COLOURS: Mapping[str, str] = {
    "yes": "#3d8b4f",
    "no": "#d6274a",
    "cannot tell": "#c9a227",
    "not run on hardware": "#8a8f98",
}
"""Colours of verdicts, in the order of legends."""

PRINTED = "qpsbgd-printed"
"""The line of the paper's method, and the beginning of the names of its variants."""

Claims = Sequence[Mapping[str, Any]]


def topics(summary: Summary) -> dict[str, list[Mapping[str, Any]]]:
    """The paper's claims about an experiment, by what they say without the setting they say it of."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for claim in summary.get("claims", ()):
        if claim.get("source", "paper") == "paper":
            found.setdefault(topic(str(claim["text"])), []).append(claim)
    return found


def topic(text: str) -> str:
    """A claim's text without settings: in brackets at its end, after a colon, or after "on average"."""
    text = re.sub(r",? on average over the pairs.*$", "", text)
    while (shorter := re.sub(r" \((?!(?:G|D|SGD|signSGD)\))[^()]*\)$", "", text)) != text:
        text = shorter
    text = re.sub(r"(better|larger) than virtual QPU.*$", r"\1 than noisy ones", text)
    return text.partition(": ")[0]


def overview(summaries: Iterable[Summary]) -> Table:
    """One row per experiment and topic: the paper's number, QP-SBGD's, its rival's and the control's, the verdicts.

    A claim that compares no lines has the figures that decided it in place of QP-SBGD's.
    """
    head = ["experiment", "claim", "unit", "the paper", "QP-SBGD", "rival", "control", "verdict"]
    body = []
    for summary in summaries:
        units = {metric["key"]: str(metric["label"]) for metric in summary.get("metrics", ())}
        for text, claims in topics(summary).items():
            first = claims[0]
            row = [str(summary["experiment"]), text, units.get(first.get("metric", ""), NOTHING)]
            row.append(str(first.get("number") or NOTHING))
            if summary.get("cases") and first.get("cases"):
                row += [_span([_own(summary, claim) for claim in claims]), _rival(summary, claims)]
                row.append(_control(summary, first))
            else:
                row += [str(first.get("detail") or NOTHING), NOTHING, NOTHING]
            body.append([*row, verdicts(claims)])
    return Table("The paper's claims", head, body)


def _own(summary: Summary, claim: Mapping[str, Any]) -> str:
    """QP-SBGD's mean: of the line the claim is about, else of the one that it is compared with, else as printed."""
    forms = {row["line"] for row in rows_of(summary) if row.get("kind") in ("ours", "paper", "variant")}
    lines = [str(line) for line in (claim.get("line"), claim.get("rival")) if line in forms]
    return _mean(summary, claim, lines[0] if lines else PRINTED)


def _rival(summary: Summary, claims: Claims) -> str:
    """Name and mean of the line that QP-SBGD is compared with, or of the other method that the claim is about."""
    rows = {row["line"]: row for row in rows_of(summary)}
    found = []
    for claim in claims:
        lines = [str(line) for line in (claim.get("line"), claim.get("rival")) if line in rows]
        others = [line for line in lines if rows[line].get("kind", "baseline") == "baseline"]
        if claim.get("rival") and lines:
            found.append(((others or lines[1:] or lines)[0], claim))
    names = dict.fromkeys(str(rows[line]["label"]) for line, _ in found)
    return f"{', '.join(names)} {_span(_mean(summary, claim, line) for line, claim in found)}" if found else NOTHING


def _span(means: Iterable[str]) -> str:
    """The figure of one claim, or the least and the greatest of several settings."""
    found = sorted({mean for mean in means if mean != NOTHING}, key=_number)
    return " to ".join(dict.fromkeys((found[0], found[-1]))) if found else NOTHING


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def verdicts(claims: Claims) -> str:
    """`no`, or `yes 1, cannot tell 2`, with the seeds that would be needed, and what the virtual chip says."""
    tally = Counter(str(claim["verdict"]) for claim in claims)
    order = sorted(tally, key=lambda verdict: list(COLOURS).index(verdict) if verdict in COLOURS else len(COLOURS))
    text = order[0] if len(order) == 1 else ", ".join(f"{verdict} {tally[verdict]}" for verdict in order)
    if len(order) == 1 and tally[order[0]] > 1:
        text += f" ({tally[order[0]]} settings)"
    needed = re.findall(r"(more than [\d ]+|\d+) seeds needed", " ".join(str(c.get("detail", "")) for c in claims))
    if needed and "cannot tell" in tally:
        order = sorted(dict.fromkeys(needed), key=lambda seeds: (not seeds.isdigit(), int(re.sub(r"\D", "", seeds))))
        text += f"; seeds needed: {' to '.join(dict.fromkeys((order[0], order[-1])))}"
    chips = Counter(re.findall(r"on the virtual QPU (yes|no|cannot tell)", " ".join(str(c["detail"]) for c in claims)))
    if chips:
        text += "; virtual QPU: " + ", ".join(
            verdict if chips[verdict] == len(claims) else f"{verdict} {chips[verdict]}" for verdict in chips
        )
    return text


def sentence(summaries: Iterable[Summary]) -> str:
    """`Of 30 statements of the paper, …`; empty without any. Those beyond its form or setting are not counted."""
    every = [claim for summary in summaries for claims in topics(summary).values() for claim in claims]
    tally = Counter(str(claim["verdict"]) for claim in every)
    words = {
        "yes": "hold here",
        "no": "do not",
        "cannot tell": "cannot be told apart from the controls or from noise",
        "not run on hardware": "are about an annealer and were not run on hardware",
    }
    parts = [f"{tally[verdict]} {text}" for verdict, text in words.items() if tally[verdict]]
    if not parts:
        return ""
    return f"Of {len(every)} statements of the paper, each judged on its own form and setting, {joined(parts)}."


def picture(summaries: Iterable[Summary]) -> str:
    """A square per claim of the paper, coloured by its verdict, one row per experiment: an `<svg>` element."""
    rows = [(str(summary["experiment"]), topics(summary)) for summary in summaries]
    rows = [(name, found) for name, found in rows if found]
    width, line, left = 640, 20, 120
    parts = []
    for number, (name, found) in enumerate(rows):
        y = 8 + number * line
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>')
        x = left
        for text, claims in found.items():
            for claim in claims:
                colour = COLOURS.get(str(claim["verdict"]), INK)
                title = html.escape(f"{claim['text']}: {claim['verdict']}")
                parts.append(
                    f'<rect x="{x}" y="{y}" width="14" height="14" rx="2" fill="{colour}"><title>{title}</title></rect>'
                )
                x += 17
            x += 8 if text else 0
        width = max(width, x + 8)
    y = 8 + len(rows) * line + 6
    x = left
    for verdict, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="14" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 19}" y="{y + 12}">{verdict}</text>')
        x += 34 + 7 * len(verdict)
    size = f'viewBox="0 0 {max(width, x)} {y + 24}" width="{max(width, x)}" height="{y + 24}"'
    label = "Verdicts on the claims of the paper, by experiment"
    look = f'role="img" aria-label="{label}" font-family="sans-serif" font-size="13" fill="{INK}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look}>{"".join(parts)}</svg>'


def _control(summary: Summary, claim: Mapping[str, Any]) -> str:
    """The best control's mean, with its name where there are several."""
    rows = [row for row in rows_of(summary) if row.get("kind") == "control"]
    means = {line: _mean(summary, claim, line) for line in dict.fromkeys(row["line"] for row in rows)}
    found = [f"{line} {mean}" for line, mean in means.items() if mean != NOTHING]
    return ", ".join(found) or NOTHING


def _mean(summary: Summary, claim: Mapping[str, Any], line: str) -> str:
    """The mean of a line's figure over the claim's cases and all seeds."""
    wanted = claim.get("cases") or ()
    rows = [
        row
        for case in summary.get("cases", ())
        for row in case["rows"]
        if row["line"] == line and case.get("case", case["label"]) in wanted
    ]
    figures = [{**row["values"], **row.get("extra", {})}.get(claim.get("metric")) for row in rows]
    if not figures or any(values is None for values in figures):
        return NOTHING
    numbers = [finite(values) for values in figures if values is not None]
    mean = float(np.mean(numbers))
    return "diverged" if math.isnan(mean) else number_text(mean, decimals_for(numbers))
