"""Does what a paper says hold in our figures? Yes, no, or within noise, by one stated test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Verdict = Literal["yes", "no", "within noise"]
Source = Literal["paper", "aim"]
Judged = dict[str, Any]
"""A claim as a report shows it: text, source, verdict, detail, and for comparisons the cases and the rival."""

Values = Mapping[tuple[str, str, str], Sequence[float | None]]
"""Figures of all seeds by case, line and metric; None for a run whose figure is not finite."""

TEST = (
    "yes or no where the means differ by more than two standard errors of their difference (Welch), "
    "within noise where they do not"
)


@dataclass(frozen=True)
class Claim:
    """A line is better (or worse) than the best (or worst) of others, or reaches a level.

    Attributes:
        text: The claim in words.
        line: The line it is about.
        metric: The figure that decides.
        cases: Where; with several, the figure is the mean over them, seed by seed.
        against: The other lines.
        relation: "better" than the best of them, "at least" as good (an equal mean counts), "worse" than the worst.
        level: What the mean must reach instead, where there is no other line.
        source: Who says so: the paper, or this project's aims.
    """

    text: str
    line: str
    metric: str
    cases: tuple[str, ...]
    against: tuple[str, ...] = ()
    relation: Literal["better", "at least", "worse"] = "better"
    level: float | None = None
    source: Source = "paper"


def verdict(difference: float, *, noise: float) -> Verdict:
    """Whether a difference that a claim says is positive is so, beyond the noise."""
    if math.isnan(difference) or abs(difference) <= noise:
        return "within noise"
    return "yes" if difference > 0 else "no"


def two_standard_errors(*samples: Sequence[float]) -> float:
    """Two standard errors of a mean, or of the difference between two means (Welch)."""
    return 2 * math.hypot(*(deviation(values) / len(values) ** 0.5 for values in samples))


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation, 0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def stated(text: str, held: bool | Verdict, detail: str, *, source: Source = "paper") -> Judged:
    """A claim with its verdict, or with yes or no."""
    found = ("yes" if held else "no") if isinstance(held, bool) else held
    return {"text": text, "source": source, "verdict": found, "detail": detail}


def paired(text: str, ours: Sequence[float], theirs: Sequence[float], *, source: Source = "aim") -> Judged:
    """The claim that ours are larger than theirs, pair by pair."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    noise = two_standard_errors(differences)
    found = verdict(float(np.mean(differences)), noise=noise) if len(differences) > 1 else "within noise"
    detail = f"{np.mean(ours):.4g} against {np.mean(theirs):.4g}, two standard errors {noise:.2g} (paired)"
    return stated(text, found, detail, source=source)


def judged(claim: Claim, values: Values, higher: Mapping[str, bool]) -> Judged:
    """The claim with its verdict and the figures behind it; a line with a figure that is not finite counts as worst."""
    ours = _over_cases(claim, claim.line, values)
    better = 1 if higher[claim.metric] else -1
    if claim.level is not None:
        reached = better * (float(np.mean(ours)) - claim.level) >= 0
        detail = f"{_mean_text(ours)} ± {deviation(ours):.2g}, to be reached: {claim.level:g}"
        return {**stated(claim.text, reached, detail, source=claim.source), "cases": list(claim.cases)}
    wanted = -1 if claim.relation == "worse" else 1
    others = {line: _over_cases(claim, line, values) for line in claim.against}
    rival = max(others, key=lambda line: wanted * _score(others[line], better))
    theirs = others[rival]
    difference = wanted * (_score(ours, better) - _score(theirs, better))
    noise = two_standard_errors(ours, theirs) if math.isfinite(difference) else 0.0
    found = verdict(difference, noise=noise if len(ours) > 1 else math.inf)  # one seed says nothing of the spread
    if claim.relation == "at least" and len(ours) > 1 and difference >= 0:
        found = "yes"
    detail = f"{_mean_text(ours)} against {_mean_text(theirs)} ({rival})"
    if math.isfinite(difference):
        detail += f", two standard errors {noise:.2g}"
    return {**stated(claim.text, found, detail, source=claim.source), "cases": list(claim.cases), "rival": rival}


def _over_cases(claim: Claim, line: str, values: Values) -> list[float]:
    figures = np.array([values[case, line, claim.metric] for case in claim.cases], dtype=float)
    mean: list[float] = figures.mean(axis=0).tolist()
    return mean


def _score(values: Sequence[float], better: int) -> float:
    """The mean, larger is better; minus infinity where it is not finite."""
    mean = better * float(np.mean(values))
    return mean if math.isfinite(mean) else -math.inf


def _mean_text(values: Sequence[float]) -> str:
    mean = float(np.mean(values))
    return f"{mean:.4g}" if math.isfinite(mean) else "not finite"
