"""Who won an experiment, in a sentence, by the test that also decides on claims."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from qpsbgd_paper.framework.claims import Claim, Values, judged
from qpsbgd_paper.report.scales import finite
from qpsbgd_paper.report.styles import grouped, line_kinds, line_labels
from qpsbgd_paper.report.summaries import Summary
from qpsbgd_paper.report.tables import capitalised, decimals_for, joined, number_text

Outcome = Literal["won", "cannot tell", "lost"]
Numbers = dict[str, list[list[float]]]
"""The main figure of lines, by name: per case, that of every seed, NaN where a run diverged."""

_OUTCOMES: Mapping[str, Outcome] = {"yes": "won", "cannot tell": "cannot tell", "no": "lost"}


class Result(NamedTuple):
    """How a line did in a setting against the best of its rivals."""

    setting: str
    line: str
    outcome: Outcome
    mean: str
    rival: str
    rival_mean: str


def headline(summary: Summary) -> str:
    """Who has the best main figure: each form of QP-SBGD against the best baseline, untold where noise decides.

    Forms are the lines of the kinds "ours" and "paper"; those with other solvers are left out. Without baselines the
    best line is named; without figures, the summary's own "headline", or how many claims hold. Several cases of one
    setting count as their mean.
    """
    results = outcomes(summary)
    if not results:
        return str(summary.get("headline") or claims_sentence(summary))
    labels = line_labels(summary)
    if "baseline" not in line_kinds(summary).values():
        return f"{capitalised('; '.join(_best_text(result, labels) for result in results))}."
    forms = {label: [r for r in results if r.line == line] for line, label in labels.items()}
    sentence = "; ".join(f"{label} {_counted(found)}" for label, found in forms.items() if found)
    unknown = ". With one seed the noise is unknown, so nothing counts as won or lost"
    return f"{sentence}{unknown if summary.get('seeds') == 1 else ''}."


def outcomes(summary: Summary) -> list[Result]:
    """Per setting, how each form did against the best baseline; where there is none, which line was best."""
    metrics = summary.get("metrics", ())
    kinds = line_kinds(summary)
    found = []
    for setting, cases in settings(summary).items() if metrics else ():
        numbers = _numbers(cases, metrics[0]["key"])
        higher = bool(metrics[0].get("higher", True))
        forms = [line for line in numbers if kinds[line] in ("ours", "paper")]
        rivals = [line for line in numbers if kinds[line] == "baseline"]
        if not rivals:
            forms = _first(numbers, higher=higher)
            rivals = [line for line in numbers if line not in forms]
        for line in forms if rivals else ():
            outcome, rival = _compared(line, rivals, numbers, higher=higher)
            mean, other = _means(numbers, line, rival)
            found.append(Result(setting, line, outcome, mean, rival, other))
    return found


def settings(summary: Summary) -> dict[str, list[Mapping[str, Any]]]:
    """The cases by setting; a setting of several cases says so, and the only case of an experiment has no name."""
    groups = grouped(summary)
    if list(groups) == [""]:
        return {"" if len(groups[""]) == 1 else short: [case] for short, case in groups[""]}
    return {
        f"{setting} (mean of {len(found)})" if len(found) > 1 else setting: [case for _, case in found]
        for setting, found in groups.items()
    }


def _best_text(result: Result, labels: Mapping[str, str]) -> str:
    noise = "" if result.outcome == "won" else ", within noise of the next"
    found = f"({result.mean} against {result.rival_mean} for {labels[result.rival]})"
    where = f"{result.setting}: " if result.setting else ""
    return f"{where}{labels[result.line]} was best{noise} {found}"


def _first(numbers: Numbers, *, higher: bool) -> list[str]:
    """The line with the best mean, if there is any."""
    sign = 1 if higher else -1
    means = {line: sign * float(np.mean(values)) for line, values in numbers.items()}
    return sorted(numbers, key=lambda line: -math.inf if math.isnan(means[line]) else means[line], reverse=True)[:1]


def _compared(line: str, rivals: Collection[str], numbers: Numbers, *, higher: bool) -> tuple[Outcome, str]:
    """Whether a line is ahead of the best of others, and which that is; a line that diverged is behind all others."""
    trained = [rival for rival in rivals if not np.isnan(numbers[rival]).any()]
    if not trained or np.isnan(numbers[line]).any():
        diverged = bool(np.isnan(numbers[line]).any())
        best = max(trained or rivals, key=lambda rival: (1 if higher else -1) * float(np.mean(numbers[rival])))
        return ("lost" if diverged and trained else "cannot tell" if diverged else "won"), best
    values: Values = {(str(k), name, "main"): case for name in numbers for k, case in enumerate(numbers[name])}
    cases = tuple(str(k) for k in range(len(numbers[line])))
    found = judged(Claim("", line, "main", cases, against=tuple(trained)), values, {"main": higher})
    return _OUTCOMES[found["verdict"]], str(found["rival"])


def _means(numbers: Numbers, *lines: str) -> list[str]:
    decimals = decimals_for([seeds for line in lines for seeds in numbers[line]])
    means = [float(np.mean(numbers[line])) for line in lines]
    return ["diverged" if math.isnan(mean) else number_text(mean, decimals) for mean in means]


def _numbers(cases: Sequence[Mapping[str, Any]], key: str) -> Numbers:
    """The figures of all lines that every one of these cases has."""
    found: Numbers = {}
    for case in cases:
        for row in case["rows"]:
            values = row["values"].get(key)
            if values:
                found.setdefault(row["line"], []).append(finite(values))
    return {line: values for line, values in found.items() if len(values) == len(cases)}


def _counted(results: Sequence[Result]) -> str:
    """`won in 1 of 3 cases, lost to the best baseline in 1 and could not be told apart from it in 1`."""
    tally = Counter(result.outcome for result in results)
    total = len(results)
    words: dict[Outcome, str] = {"won": "won", "lost": "lost to", "cannot tell": "could not be told apart from"}
    parts: list[str] = []
    rival = "the best baseline"
    for outcome, verb in words.items():
        if tally[outcome]:
            whom = "" if outcome == "won" else f" {rival}"
            rival = "it" if whom else rival
            parts.append(f"{verb}{whom}{_share(tally[outcome], total, first=not parts)}")
    return joined(parts)


def _share(count: int, total: int, *, first: bool) -> str:
    if count == total:
        return {1: "", 2: " in both cases"}.get(total, f" in all {total} cases")
    if total == 2:
        return " in one case" if first else " in the other"
    return f" in {count} of {total} cases" if first else f" in {count}"


def claims_sentence(summary: Summary) -> str:
    """How many of the paper's claims hold; our own aims are not counted, nor what goes beyond the paper."""
    own = [claim for claim in summary.get("claims", ()) if claim.get("source", "paper") == "paper"]
    tally = Counter(str(claim["verdict"]) for claim in own)
    total = tally.total()
    if not total:
        return ""
    if total == 1:
        words = {"yes": "The paper's claim holds here.", "no": "The paper's claim does not hold here."}
        words |= {"cannot tell": "The experiment cannot tell.", "not run on hardware": "Not run on hardware."}
        return words.get(next(iter(tally)), "")
    if tally["yes"] == total:
        return "Both claims hold here." if total == 2 else f"All {total} claims hold here."
    verbs = {
        "yes": ("holds", "hold"),
        "no": ("does not", "do not"),
        "cannot tell": ("cannot be told", "cannot be told"),
        "not run on hardware": ("was not run on hardware", "were not run on hardware"),
    }
    parts = [f"{tally[key]} {verb[tally[key] != 1]}" for key, verb in verbs.items() if tally[key]]
    return f"Of {total} claims of the paper, {joined(parts)}." if parts else ""
