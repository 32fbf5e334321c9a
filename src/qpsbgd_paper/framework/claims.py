"""Does what a paper says of a table hold in ours? Yes, no, or within noise, by one stated test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Values = dict[tuple[str, str, str], Sequence[float]]
"""Figures of all seeds by case, line and metric."""

Figures = np.ndarray[Any, np.dtype[np.float64]]

TEST = (
    "yes or no where the means differ by more than two standard errors of their difference (Welch), "
    "within noise where they do not"
)


@dataclass(frozen=True)
class Claim:
    """A line is better (or worse) than the best (or worst) of others, or reaches a level.

    Attributes:
        text: The claim in words.
        line: Of which line.
        metric: In which figure.
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
    source: Literal["paper", "aim"] = "paper"


def judged(claim: Claim, values: Values, higher: Mapping[str, bool]) -> dict[str, Any]:
    """The claim with its verdict and the figures behind it."""
    sign = (1 if higher[claim.metric] else -1) * (-1 if claim.relation == "worse" else 1)
    ours = _over_cases(claim, claim.line, values)
    found: dict[str, Any] = {"text": claim.text, "source": claim.source, "cases": list(claim.cases)}
    if claim.level is not None:
        reached = sign * (np.mean(ours) - claim.level) >= 0
        detail = f"{np.mean(ours):.4g} ± {_deviation(ours):.2g}, to be reached: {claim.level:g}"
        return {**found, "verdict": "yes" if reached else "no", "detail": detail}
    others = {line: _over_cases(claim, line, values) for line in claim.against}
    rival = max(others, key=lambda line: sign * np.mean(others[line]))
    difference = sign * (np.mean(ours) - np.mean(others[rival]))
    error = np.hypot(_deviation(ours) / np.sqrt(len(ours)), _deviation(others[rival]) / np.sqrt(len(others[rival])))
    verdict = "within noise" if abs(difference) <= 2 * error else "yes" if difference > 0 else "no"
    if len(ours) < 2:
        verdict = "within noise"  # one seed tells nothing of the spread
    if claim.relation == "at least" and len(ours) > 1 and difference >= 0:
        verdict = "yes"
    detail = f"{np.mean(ours):.4g} against {np.mean(others[rival]):.4g} ({rival}), two standard errors {2 * error:.2g}"
    return {**found, "verdict": verdict, "detail": detail, "rival": rival}


def _over_cases(claim: Claim, line: str, values: Values) -> Figures:
    mean: Figures = np.array([values[case, line, claim.metric] for case in claim.cases]).mean(axis=0)
    return mean


def _deviation(values: Figures) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
