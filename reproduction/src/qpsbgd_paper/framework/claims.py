"""Does what a paper says hold in our figures? Yes, no, or the experiment cannot tell, by stated tests."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import nctdtr, stdtrit

Verdict = Literal["yes", "no", "cannot tell", "not run on hardware"]
Source = Literal["paper", "beyond", "aim"]
"""Who says so: the paper of its own form and setting; the paper, judged on a form or setting it does not have; we."""

Judged = dict[str, Any]
"""A claim as a report shows it: text, source, verdict, detail, and for comparisons cases, metric, line and rival."""

Values = Mapping[tuple[str, str, str], Sequence[float | None]]
"""Figures of all seeds by case, line and metric; None for a run whose figure is not finite."""

ACCURACY_MARGIN, LOSS_MARGIN = 0.02, 0.05
"""Differences up to which two accuracies, or two losses, count as equal; set before the runs that they judge."""

TEST = (
    "paired t-test at 95 %: runs with the same seed share data, split, initial weights and batches, and their "
    "differences decide. Yes or no where the mean difference is larger than the ± behind it (half the width of its "
    "95 % confidence interval). Level, or at least as good, needs an equivalence test instead (one-sided t-tests at "
    f"95 % against a margin set beforehand: {ACCURACY_MARGIN:g} of an accuracy, {LOSS_MARGIN:g} of a loss). Cannot "
    "tell where neither is so, and where the better line does not beat the control: binary layers left at their "
    "random signs, or the best of as many random networks; then with the number of seeds that would show a difference "
    "of the measured size with a power of 80 %"
)

_BOTH_SIDES, _ONE_SIDE = 0.975, 0.95  # levels of Student's t for 95 % on both sides and on one

_POWER, _POWER_OF_TWO = 0.8, 0.9  # the level of one test, and of each of two that must both succeed

_ROUNDING = 1e-9  # differences below this share of the figures are rounding errors

_MOST_SEEDS = 10_000  # more than these are not worth a number


@dataclass(frozen=True)
class Claim:
    """A line is better (or worse) than the best (or worst) of others, level with them, or reaches a level."""

    text: str  # the claim in words
    line: str  # the line it is about
    metric: str  # the figure that decides
    cases: tuple[str, ...]  # where; with several, the figure is the mean over them, seed by seed
    against: tuple[str, ...] = ()  # the other lines
    relation: Literal["better", "at least", "worse", "level"] = "better"  # than the best, or worse than the worst
    margin: float = 0.0  # up to which two lines count as equal, for "at least" as good and "level"
    level: float | None = None  # what the mean must reach instead, where there is no other line
    source: Source = "paper"  # who says so
    number: str = ""  # what the paper reports, in a few words
    hardware: bool = False  # whether it is about an annealer, for which a virtual chip stands in


def of_the_paper(held: bool) -> Source:
    """The source of a claim: the paper where form and setting are its own (`held`), otherwise beyond it."""
    return "paper" if held else "beyond"


def from_figure(held: bool) -> dict[str, Any]:
    """Number and source of a claim that the paper makes by a figure; `held` as in `of_the_paper`."""
    return {"number": "figure", "source": of_the_paper(held)}


class Difference(NamedTuple):
    """Differences of pairs, positive where the first is better: mean, deviation, number, and the noise of the mean."""

    mean: float
    deviation: float
    pairs: int
    noise: float

    @property
    def ahead(self) -> bool:
        """Whether the first is better, beyond the noise."""
        return self.mean > self.noise

    @property
    def seeds(self) -> int | None:
        """How many show a difference of this mean with a power of 80 %; None where there is no end to it."""
        return _seeds(self, self.mean, level=_BOTH_SIDES, power=_POWER)


def verdict(difference: float, *, noise: float) -> Verdict:
    """Whether a difference that a claim says is positive is so, beyond the noise."""
    if math.isnan(difference) or abs(difference) <= noise:
        return "cannot tell"
    return "yes" if difference > 0 else "no"


def equivalent(gap: Difference, *, margin: float, one_sided: bool) -> tuple[Verdict, int | None]:
    """Whether two lines are level within the margin, or the first at least as good; and the seeds that would say so.

    Yes where the 90 % confidence interval of the difference lies inside of the margin, no where it lies outside.
    """
    if gap.pairs < 2:
        return "cannot tell", None
    reach = float(stdtrit(gap.pairs - 1, _ONE_SIDE)) * gap.deviation / math.sqrt(gap.pairs)
    worst = gap.mean if one_sided else -abs(gap.mean)
    if worst - reach > -margin:
        return "yes", None
    if worst + reach < -margin:
        return "no", None
    power = _POWER if one_sided or worst < -margin else _POWER_OF_TWO
    return "cannot tell", _seeds(gap, worst + margin, level=_ONE_SIDE, power=power)


def half_interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean (Student's t); infinite for a single value."""
    freedom = len(values) - 1
    if freedom < 1:
        return math.inf
    return float(stdtrit(freedom, _BOTH_SIDES)) * deviation(values) / math.sqrt(len(values))


def deviation(values: Sequence[float]) -> float:
    """The sample standard deviation, 0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def with_verdict(
    text: str, held: bool | Verdict, detail: str, *, source: Source = "paper", number: str = "", hardware: bool = False
) -> Judged:
    """A claim with its verdict, or with yes or no; one about `hardware` was judged on the virtual chip only."""
    decided: Verdict = ("yes" if held else "no") if isinstance(held, bool) else held
    if hardware:
        decided, detail = "not run on hardware", f"on the virtual QPU {decided}: {detail}"
    return {"text": text, "source": source, "verdict": decided, "detail": detail, "number": number}


def judge_pairs(
    text: str, ours: Sequence[float], theirs: Sequence[float], *, source: Source = "aim", number: str = ""
) -> Judged:
    """The claim that ours are larger than theirs, pair by pair."""
    gap = gap_of(ours, theirs)
    detail = f"{np.mean(ours):.4g} against {np.mean(theirs):.4g}, {_difference_text(gap.mean, gap.noise)}"
    decided = verdict(gap.mean, noise=gap.noise)
    detail += _seeds_text(gap.seeds) if decided == "cannot tell" else ""
    return with_verdict(text, decided, detail, source=source, number=number)


def gap_of(ours: Sequence[float], theirs: Sequence[float], *, better: int = 1) -> Difference:
    """The differences of pairs, times `better` (−1 where less is better)."""
    differences = [better * (a - b) for a, b in zip(ours, theirs, strict=True)]
    rounding = _ROUNDING * float(np.max(np.abs([ours, theirs])))
    noise = max(half_interval(differences), rounding)
    return Difference(float(np.mean(differences)), deviation(differences), len(differences), noise)


def difference_of(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The mean difference of pairs, and the noise that it must exceed."""
    gap = gap_of(ours, theirs)
    return gap.mean, gap.noise


def judge(claim: Claim, values: Values, higher: Mapping[str, bool], *, controls: Sequence[str] = ()) -> Judged:
    """The claim with its verdict and the figures behind it; a line with a figure that is not finite counts as worst.

    Args:
        claim: What is to be judged.
        values: Figures of all lines.
        higher: Whether more is better, by metric.
        controls: The lines that whoever wins must beat, or that the loser must be worse than; else the verdict is that
            the experiment cannot tell.
    """
    better = 1 if higher[claim.metric] else -1
    ours = _over_cases(claim, claim.line, values)
    rival = None
    if claim.level is not None:
        decided: Verdict = "yes" if better * (float(np.mean(ours)) - claim.level) >= 0 else "no"
        detail = f"{_mean_text(ours)} ± {deviation(ours):.2g}, to be reached: {claim.level:g}"
        winner, loser = ours, None
    else:
        wanted = -1 if claim.relation == "worse" else 1
        others = {line: _over_cases(claim, line, values) for line in claim.against}
        rival = max(others, key=lambda line: wanted * _score(others[line], better))
        decided, detail = _compare(claim, ours, others[rival], better=better, rival=rival)
        first = (decided == "yes") == (claim.relation != "worse")
        winner, loser = (ours, others[rival]) if first else (others[rival], ours)
        if decided == "yes" and claim.relation in ("level", "at least"):
            winner, loser = max(ours, others[rival], key=lambda each: _score(each, better)), None
    if decided != "cannot tell" and (name := _best_control(claim, values, controls, better=better)):
        decided, said = _beside_control(decided, winner, loser, _over_cases(claim, name, values), better=better)
        detail += said
    given: dict[str, Any] = {"source": claim.source, "number": claim.number, "hardware": claim.hardware}
    judgement = with_verdict(claim.text, decided, detail, **given)
    found_rival = {} if rival is None else {"rival": rival}
    return {**judgement, "cases": list(claim.cases), "line": claim.line, "metric": claim.metric, **found_rival}


def _compare(
    claim: Claim, ours: Sequence[float], theirs: Sequence[float], *, better: int, rival: str
) -> tuple[Verdict, str]:
    wanted = -1 if claim.relation == "worse" else 1
    detail = f"{_mean_text(ours)} against {_mean_text(theirs)} ({rival})"
    scores = _score(ours, better), _score(theirs, better)
    if not all(map(math.isfinite, scores)):
        difference = wanted * (scores[0] - scores[1])  # NaN where neither is finite
        if claim.relation == "level" and not math.isnan(difference):
            return "no", detail
        return verdict(difference, noise=0.0 if len(ours) > 1 else math.inf), detail
    gap = gap_of(ours, theirs, better=better)
    detail += f", {_difference_text(better * gap.mean, gap.noise)}"
    if claim.relation in ("level", "at least"):
        decided, seeds = equivalent(gap, margin=claim.margin, one_sided=claim.relation == "at least")
        detail += f", margin {claim.margin:g}"
    else:
        decided, seeds = verdict(wanted * gap.mean, noise=gap.noise), gap.seeds
    return decided, detail + (_seeds_text(seeds) if decided == "cannot tell" and len(ours) > 1 else "")


def _best_control(claim: Claim, values: Values, controls: Sequence[str], *, better: int) -> str | None:
    """The best of the controls that all cases of the claim have."""
    there = [line for line in controls if all((case, line, claim.metric) in values for case in claim.cases)]
    return max(there, key=lambda line: _score(_over_cases(claim, line, values), better), default=None)


def _beside_control(
    decided: Verdict, winner: Sequence[float], loser: Sequence[float] | None, control: Sequence[float], *, better: int
) -> tuple[Verdict, str]:
    """The verdict, if the winner beats the control or the loser is behind it."""
    said = f"; control {_mean_text(control)}"
    if not math.isfinite(_score(winner, better)) or len(control) < 2:
        return decided, said
    gap = gap_of(winner, control, better=better)
    if gap.ahead:
        return decided, said
    if loser is not None and (not math.isfinite(_score(loser, better)) or gap_of(control, loser, better=better).ahead):
        return decided, said
    return "cannot tell", f"{said}, which the better line does not beat{_seeds_text(gap.seeds)}"


def _seeds(gap: Difference, difference: float, *, level: float, power: float) -> int | None:
    """The least number of seeds, more than there were, whose t-test at that level shows the difference with that power.

    None where the difference is zero, or so small that more than `_MOST_SEEDS` are needed.
    """
    if difference == 0:
        return None

    def are_enough(seeds: int) -> bool:
        error = gap.deviation / math.sqrt(seeds)
        # Under this difference t follows the noncentral distribution; scipy's has no value (NaN) far from zero.
        centre = min(abs(difference) / error, 10.0) if error else 10.0
        return bool(nctdtr(seeds - 1, centre, stdtrit(seeds - 1, level)) <= 1 - power)

    counts = range(gap.pairs + 1, _MOST_SEEDS + 1)
    first = bisect_left(counts, True, key=are_enough)
    return counts[first] if first < len(counts) else None


def _seeds_text(seeds: int | None) -> str:
    return f"; {f'{seeds} seeds' if seeds else f'more than {_MOST_SEEDS} seeds'} needed"


def _difference_text(difference: float, noise: float) -> str:
    spread = f" ± {noise:.2g}" if math.isfinite(noise) else ""
    if math.isfinite(noise) and abs(difference) < 1e-3 * noise:
        difference = 0.0
    return f"difference {difference:+.2g}{spread} (paired)"


def _over_cases(claim: Claim, line: str, values: Values) -> list[float]:
    figures = np.array([values[case, line, claim.metric] for case in claim.cases], dtype=float)
    return figures.mean(axis=0).tolist()


def _score(values: Sequence[float], better: int) -> float:
    """The mean, larger is better; minus infinity where it is not finite."""
    mean = better * float(np.mean(values))
    return mean if math.isfinite(mean) else -math.inf


def _mean_text(values: Sequence[float]) -> str:
    mean = float(np.mean(values))
    return f"{mean:.4g}" if math.isfinite(mean) else "not finite"
