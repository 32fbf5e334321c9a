"""All results as one HTML page that needs no network, with curves to explore."""

import html
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import Any

from qpsbgd_paper.report.drawings import figure_svg
from qpsbgd_paper.report.figures import series_svg, shared_range
from qpsbgd_paper.report.headlines import headline
from qpsbgd_paper.report.overview import picture, sentence
from qpsbgd_paper.report.scales import finite
from qpsbgd_paper.report.styles import grouped, line_labels, line_styles
from qpsbgd_paper.report.summaries import Summary, check, curves_of, file_name, rows_of
from qpsbgd_paper.report.tables import (
    IN_VIEW,
    SOURCES,
    Finding,
    Table,
    capitalised,
    duration,
    findings,
    judged_by,
    options_tables,
    other_tables,
    tables,
)

_BADGES = {"yes": ("yes", "✓ yes"), "no": ("no", "✗ no"), "cannot tell": ("noise", "≈ cannot tell")}
_BADGES |= {"not run on hardware": ("noise", "– not on hardware")}


def page(summaries: Sequence[Summary], *, title: str, intro: str = "") -> str:
    """The whole report: who won where, all claims, then every experiment with curves, figures and tables.

    Args:
        summaries: Summaries of the experiments, in the order of the page.
        title: Title of the page.
        intro: Plain text below it; an empty line begins a new paragraph.

    Raises:
        ValueError: A summary is damaged, or one of its figures cannot be drawn.
    """
    for summary in summaries:
        check(summary)
    ids = _ids(summaries)
    sections = "".join(_section(summary, key) for key, summary in zip(ids, summaries, strict=True))
    overview, reading = _overview(summaries, ids), _reading(summaries, intro)
    body = f"{overview}{reading}{sections}" if overview else f"{sections}{reading}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_file('page.css')}</style></head><body><main>\n"
        f'<div class="top"><h1>{_text(title)}</h1><button id="theme" type="button" hidden '
        f'aria-label="Switch between light and dark">Dark</button></div>'
        f"{body}{_machine(summaries)}"
        f"</main><script>{_file('curves.js')}{_file('theme.js')}</script></body></html>\n"
    )


def _overview(summaries: Sequence[Summary], ids: Sequence[str]) -> str:
    """One sentence and one picture of all verdicts, then who won in each experiment, with links to the sections.

    Empty without claims of the paper, as in the demo: the first experiment begins with its sentence and its curves.
    """
    found = sentence(summaries)
    if not found:
        return ""
    first = f'<p class="lead">{_text(found)}</p><div class="static drawing">{picture(summaries)}</div>'
    items = "".join(
        f'<li><a href="#{key}">{_text(summary["title"])}</a>: {_text(headline(summary))}</li>'
        for summary, key in zip(summaries, ids, strict=True)
    )
    return (
        f'<section id="overview" aria-label="Overview">{first}'
        "<details><summary>Who won where</summary>"
        f'<nav aria-label="Experiments"><ul>{items}</ul></nav></details></section>\n'
    )


def _reading(summaries: Sequence[Summary], intro: str) -> str:
    """The meaning of words and the tests of claims, folded."""
    paragraphs = [*(part for part in intro.split("\n\n") if part.strip()), *judged_by(summaries)]
    if not paragraphs:
        return ""
    text = "".join(f"<p>{_text(part)}</p>" for part in paragraphs)
    return f"<details><summary>How to read this</summary>{text}</details>\n"


def _machine(summaries: Sequence[Summary]) -> str:
    """Versions and hardware of the results, once for all that share them."""
    made: dict[str, list[str]] = {}
    for summary in summaries:
        versions = ", ".join(f"{name} {value}" for name, value in (summary.get("made with") or {}).items())
        if versions:
            made.setdefault(versions, []).append(str(summary["experiment"]))
    several = len(made) > 1
    lines = [f"Made with {words}{' (' + ', '.join(names) + ')' if several else ''}." for words, names in made.items()]
    return f"<footer>{'<br>'.join(map(_text, lines))}</footer>" if lines else ""


def _section(summary: Summary, key: str) -> str:
    seeds = summary.get("seeds")
    many = "one seed" if seeds == 1 else f"mean ± standard deviation of {seeds} seeds"
    best = headline(summary)
    won = f"<p><strong>{_text(best)}</strong></p>" if best else ""
    paper = f"<p>The paper: {_text(summary['paper'])}</p>" if summary.get("paper") else ""
    about = f"<p>{_text(summary['about'])}</p>" if summary.get("about") else ""
    if summary.get("chosen in view"):
        about += f"<p>{IN_VIEW}: {_text(summary['chosen in view'])}</p>"
    command = f"<pre><code>{_text(summary['command'])}</code></pre>" if summary.get("command") else ""
    note = f'<p class="quiet">Figures: {many}. The best in each column is marked.</p>' if summary.get("metrics") else ""
    rows = rows_of(summary)
    others = any(row.get("kind") != "ours" for row in rows)
    ours = {row["label"] for row in rows if others and row.get("kind") == "ours"}
    main = "".join(_table(table, ours=ours) for table in tables(summary))
    more = "".join(_table(table, ours=ours) for table in other_tables(summary))
    if more:
        more = f"<details><summary>Other figures of the same runs</summary>{more}</details>"
    options = "".join(_table(table, kind="options") for table in options_tables(summary))
    if options:
        chosen = f", chosen by {_text(summary['chosen by'])}" if summary.get("chosen by") else ""
        options = f"<details><summary>Options{chosen}</summary>{options}</details>"
    seconds = summary.get("seconds of training")
    took = (
        f'<p class="quiet">{_text(duration(seconds))} of processor time, all runs added up.</p>'
        if seconds is not None
        else ""
    )
    return (
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{_text(summary["title"])}</h2>'
        f"{won}{paper}{_curves(summary)}{_figures(summary)}{note}{main}{_claims(summary, key)}"
        f"<details><summary>What was done</summary>{about}{command}{took}</details>{more}{options}</section>\n"
    )


def _claims(summary: Summary, key: str) -> str:
    """The verdicts counted, and the claims folded behind them."""
    found = findings(summary)
    if not found:
        return ""
    tally = Counter(finding.verdict for finding in found)
    order = sorted(tally, key=lambda verdict: [*_BADGES, verdict].index(verdict))
    badges = " ".join(f"<span>{tally[verdict]} × {_badge(verdict)}</span>" for verdict in order)
    if tally["cannot tell"] and summary.get("undecided"):
        badges += f" <span>({_text(summary['undecided'])})</span>"
    items = "".join(_claim(finding, f"{key}-claim-{number}") for number, finding in enumerate(found, 1))
    return f'<details><summary>Claims: {badges}</summary><ul class="claims">{items}</ul></details>'


def _claim(finding: Finding, key: str) -> str:
    who = "the paper's claim" if finding.source == SOURCES["paper"] else finding.source
    why = " · ".join(part for part in (who, finding.detail) if part)
    return f'<li id="{key}">{_badge(finding.verdict)} {_text(finding.text)}<span class="quiet">{_text(why)}</span></li>'


def _badge(verdict: str) -> str:
    kind, words = _BADGES.get(verdict, ("noise", verdict))
    return f'<span class="badge {kind}">{_text(words)}</span>'


def _table(table: Table, *, ours: Collection[str] = (), kind: str = "figures") -> str:
    def cell(number: int, column: int, text: str) -> str:
        if column == 0:
            return f'<th scope="row"{_class("ours" if text in ours else "")}>{_text(text)}</th>'
        name = "best" if (number, column) in table.best else "quoted" if column in table.quoted else ""
        return f"<td{_class(name)}>{_text(text)}</td>"

    head = "".join(
        f'<th scope="col"{_class("quoted" if column in table.quoted else "")}>{_text(name)}</th>'
        for column, name in enumerate(table.head)
    )
    body = "".join(
        "<tr>" + "".join(cell(number, column, text) for column, text in enumerate(row)) + "</tr>"
        for number, row in enumerate(table.body)
    )
    caption = capitalised(table.title)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(caption)}"><table class="{kind}">'
        f"<caption><span>{_text(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _curves(summary: Summary) -> str:
    """Data for the script, and a still figure for browsers without scripts."""
    series = [one for one in summary.get("series", ()) if any(one["key"] in row["curves"] for row in rows_of(summary))]
    if not series:
        return ""
    still = "".join(f'<div class="static">{series_svg(summary, one)}</div>' for one in series)
    data = {
        "lines": [
            {"label": label, **vars(style)}
            for label, style in zip(line_labels(summary).values(), line_styles(summary).values(), strict=True)
        ],
        "series": [_series(summary, one) for one in series],
    }
    return (
        f'<figure aria-label="{_text("Curves: " + str(summary["title"]))}"><div class="curves">'
        f'<script type="application/json">{_json(data)}</script><noscript>{still}</noscript></div>'
        '<figcaption class="quiet">Mean of the seeds, bands ± one standard deviation. An arrow marks where a line '
        'leaves the scale, and how far it goes.<span class="hint"> '
        "Point or touch for values; drag or Ctrl + wheel to zoom, double click to reset.</span></figcaption></figure>"
    )


def _figures(summary: Summary) -> str:
    """The experiment's own figures, with titles and captions."""
    found = ""
    for figure in summary.get("figures", ()):
        drawn = figure_svg(figure, name=file_name(summary["experiment"], figure["name"]))
        caption = f'<figcaption class="quiet">{_text(figure["caption"])}</figcaption>' if figure.get("caption") else ""
        found += f'<figure><h3>{_text(figure["title"])}</h3><div class="static drawing">{drawn}</div>{caption}</figure>'
    return found


def _series(summary: Summary, series: Mapping[str, Any]) -> dict[str, Any]:
    lines = list(line_labels(summary))
    limits = shared_range(summary, series)
    groups = []
    for setting, cases in grouped(summary).items():
        panels = []
        for short, case in cases:
            curves = curves_of(case, series["key"])
            title = short if len(summary["cases"]) > 1 and short != setting else ""
            panels.append({"title": title, "y": limits, "curves": [_clean(curves.get(line)) for line in lines]})
        groups.append({"name": setting, "panels": panels})
    return {"label": series["label"], "x_label": series.get("x_label", "step"), "groups": groups}


def _clean(curve: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A curve as plain JSON: null where a value is not finite."""
    if curve is None:
        return None
    return {
        "x": list(curve["x"]),
        **{key: [None if v != v else v for v in finite(curve[key])] for key in ("mean", "deviation")},
    }


def _json(data: Any) -> str:
    """JSON in which no text can end the script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _ids(summaries: Sequence[Summary]) -> list[str]:
    found: list[str] = []
    for summary in summaries:
        slug = re.sub(r"[^a-z0-9]+", "-", str(summary["experiment"]).lower()).strip("-") or "experiment"
        found.append(slug if slug not in (*found, "overview", "theme") else f"{slug}-{len(found) + 1}")
    return found


def _text(value: Any) -> str:
    return html.escape(str(value))


def _file(name: str) -> str:
    return (files("qpsbgd_paper.report") / name).read_text(encoding="utf-8")
