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
    "paired t-test at 95 %: runs with the same seed share data, split, initial weights and batches, and their "
    "differences decide; yes or no where the mean difference is larger than the ± behind it (half the width of its "
    "95 % confidence interval), within noise where it is not"
)

_QUANTILES = (
    *(12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Of Student's t at 97.5 % for 1 to 30 degrees of freedom; beyond, the last is a little too careful."""

_ROUNDING = 1e-9
"""Differences below this share of the figures are rounding errors."""


@dataclass(frozen=True)
class Claim:
    """A line is better (or worse) than the best (or worst) of others, or reaches a level.

    Attributes:
        text: The claim in words.
        line: The line it is about.
        metric: The figure that decides.
        cases: Where; with several, the figure is the mean over them, seed by seed.
        against: The other lines.
        relation: "better" than the best of them, "at least" as good (an equal mean counts), "worse" than the worst, or
            "level": no significant difference either way, which is then a yes.
        level: What the mean must reach instead, where there is no other line.
        source: Who says so: the paper, or this project's aims.
    """

    text: str
    line: str
    metric: str
    cases: tuple[str, ...]
    against: tuple[str, ...] = ()
    relation: Literal["better", "at least", "worse", "level"] = "better"
    level: float | None = None
    source: Source = "paper"


def verdict(difference: float, *, noise: float) -> Verdict:
    """Whether a difference that a claim says is positive is so, beyond the noise."""
    if math.isnan(difference) or abs(difference) <= noise:
        return "within noise"
    return "yes" if difference > 0 else "no"


def half_interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean (Student's t); infinite for a single value."""
    freedom = len(values) - 1
    if freedom < 1:
        return math.inf
    return _QUANTILES[min(freedom, len(_QUANTILES)) - 1] * deviation(values) / math.sqrt(len(values))


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation, 0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def stated(text: str, held: bool | Verdict, detail: str, *, source: Source = "paper") -> Judged:
    """A claim with its verdict, or with yes or no."""
    found = ("yes" if held else "no") if isinstance(held, bool) else held
    return {"text": text, "source": source, "verdict": found, "detail": detail}


def paired(text: str, ours: Sequence[float], theirs: Sequence[float], *, source: Source = "aim") -> Judged:
    """The claim that ours are larger than theirs, pair by pair."""
    difference, noise = difference_of(ours, theirs)
    detail = f"{np.mean(ours):.4g} against {np.mean(theirs):.4g}, {_difference_text(difference, noise)}"
    return stated(text, verdict(difference, noise=noise), detail, source=source)


def difference_of(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The mean difference of pairs, and the noise that it must exceed."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    rounding = _ROUNDING * float(np.max(np.abs([ours, theirs])))
    return float(np.mean(differences)), max(half_interval(differences), rounding)


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
    detail = f"{_mean_text(ours)} against {_mean_text(theirs)} ({rival})"
    difference, noise = wanted * (_score(ours, better) - _score(theirs, better)), 0.0
    if math.isfinite(difference):
        mean, noise = difference_of(ours, theirs)
        detail += f", {_difference_text(mean, noise)}"
        difference = wanted * better * mean
    found = verdict(difference, noise=noise if len(ours) > 1 else math.inf)  # one seed says nothing of the spread
    if claim.relation == "at least" and len(ours) > 1 and difference >= 0:
        found = "yes"
    if claim.relation == "level" and len(ours) > 1:
        found = "yes" if found == "within noise" else "no"
    return {**stated(claim.text, found, detail, source=claim.source), "cases": list(claim.cases), "rival": rival}


def _difference_text(difference: float, noise: float) -> str:
    spread = f" ± {noise:.2g}" if math.isfinite(noise) else ""
    if math.isfinite(noise) and abs(difference) < 1e-3 * noise:
        difference = 0.0
    return f"difference {difference:+.2g}{spread} (paired)"


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
