"""Methods side by side, each at its own best options, on the cases of one experiment."""

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qpsbgd_paper.framework.claims import TEST, Claim, judge
from qpsbgd_paper.framework.experiment import Event, Experiment, Job
from qpsbgd_paper.framework.methods import Grid, Line, Options, extend
from qpsbgd_paper.framework.result_files import as_json
from qpsbgd_paper.framework.runs import Result, kept_results, run_jobs
from qpsbgd_paper.framework.workers import Workers

MOST_POINTS = 64  # most points of a curve in a summary; the runs' own files hold every step

MOST_EXTENSIONS = 2  # most extensions of a grid whose best learning rate lies at its edge

FINALISTS, FINALIST_SEEDS = 3, 10
"""The best points of a grid are compared again on more seeds: on two, five of 18 choices differed between machines."""

Grids = dict[tuple[str, str], Grid]  # the options to choose from, by case and line

Chosen = dict[tuple[str, str], Options]  # the options chosen, by case and line

Results = dict[str, Result]  # results by the text of their jobs


@dataclass(frozen=True)
class Metric:
    """A figure of every run: its key in the run's result, its name in tables, and which way is better."""

    key: str
    label: str
    higher: bool = True


@dataclass(frozen=True)
class Series:
    """A curve of every run: its key in the run's result, the names of its axes, the steps between points, the first."""

    key: str
    label: str
    x_label: str = "step"
    every: int = 1
    first: int = 0


@dataclass(frozen=True)
class Case:
    """One column of a table."""

    name: str
    settings: Job = field(default_factory=dict)  # what it stands for
    reported: Mapping[str, float | str] | None = None  # what the paper reports there, by line
    group: str | None = None  # the setting shared with other cases: one table, and the same options in all of them
    short: str | None = None  # its name among those cases


class Comparison(Experiment):
    """An experiment: lines (methods with grids of options) on cases, several seeds, and what the paper claims of it.

    A subclass is a frozen dataclass of settings. Options are chosen per line and case, or group of cases, on
    `chosen_by`, a figure of training or validation data, in runs with other seeds than the final ones: all points on
    `choosing_seeds`, then the best `FINALISTS` on `finalist_seeds`. Where the best learning rate is the smallest or
    largest that was tried with the same other options, the next one is tried too, up to `MOST_EXTENSIONS` times, for
    every line alike. A grid of one point needs no choice, and with no seeds for it the first point of every grid is
    taken. `extra` names further figures that are kept.

    Claims are judged by the differences of runs with the same seed: of a run's data, split, initial weights and
    batches, nothing may depend on the line or its options.
    """

    metrics: ClassVar[tuple[Metric, ...]]
    series: ClassVar[tuple[Series, ...]]
    chosen_by: ClassVar[Metric]
    extra: ClassVar[tuple[str, ...]] = ()
    by_case: ClassVar[Mapping[str, Job]]
    passed: ClassVar[tuple[str, ...]] = ("steps",)
    finalist_seeds: ClassVar[int] = FINALIST_SEEDS
    choosing_seeds: int

    def cases(self) -> Sequence[Case]:
        """The columns of the table, by default those of `by_case`."""
        return [Case(name, settings) for name, settings in self.by_case.items()]

    @abstractmethod
    def lines(self, case: Case) -> Mapping[str, Line]:
        """The rows of the table, by name; the first is ours."""

    def job(self, case: Case, line: Line, options: Options) -> Job:
        """The settings of `work` besides case, line, a seed and whether the run serves the choice of options.

        By default the experiment's settings that `passed` names, those of the case, the method and its options.
        """
        settings = {name: getattr(self, name) for name in self.passed}
        return {**settings, **case.settings, "method": line.method, "options": options}

    def claims(self) -> Sequence[Claim]:
        """The claims of the paper, or of this project, about the figures."""
        return ()

    def run(self, *, folder: Path, workers: Workers | None = None, fresh: bool = False) -> Iterator[Event]:
        """First the choice of options, then the final runs; the total grows where grids are extended."""
        how: dict[str, Any] = {"experiment": self.name, "folder": folder, "workers": workers, "fresh": fresh}
        lines = self._lines()
        for claim in self.claims():
            for key in product(claim.cases, (claim.line, *claim.against)):
                if key not in lines:
                    raise ValueError(
                        f"{self.name}: a claim must be about cases and lines of the experiment, but {claim.text!r} "
                        f"is about {key}; add the line, or leave the claim out"
                    )
        final = self.seeds * len(lines)
        results: Results = {}
        choice = self._choice(results)
        try:
            while True:
                jobs = next(choice)
                total = len(results) + len(jobs) + final
                yield "choosing options" if results or jobs else "training", len(results), total
                for finished in run_jobs(self.work, jobs, **how):
                    results[repr(finished.settings)] = finished.result
                    yield "choosing options", len(results), total
        except StopIteration as stop:
            _, chosen = stop.value
        for done, _ in enumerate(run_jobs(self.work, self._final_jobs(chosen), **how), len(results) + 1):
            yield "training", done, total

    def summary(self, *, folder: Path) -> dict[str, Any]:
        """All that a report shows, from finished runs: figures of every seed, mean curves, verdicts."""
        grids, chosen, choosing = self._kept_choice(folder)
        jobs = self._final_jobs(chosen)
        results = self._kept(jobs, folder)
        seconds = sum(result["seconds"] for result in [*results, *choosing.values()])
        runs: dict[tuple[str, str], list[Result]] = {}
        for job, result in zip(jobs, results, strict=True):
            runs.setdefault((job["case"], job["line"]), []).append(result)
        cases = []
        values: dict[tuple[str, str, str], list[float | None]] = {}
        for case in self.cases():
            rows = []
            for name, line in self.lines(case).items():
                of_line = runs[case.name, name]
                figures = {metric.key: [_round(run[metric.key]) for run in of_line] for metric in self.metrics}
                extra = {key: [run[key] for run in of_line] for key in self.extra}
                values |= {(case.name, name, key): numbers for key, numbers in (figures | extra).items()}
                rows.append(
                    {
                        "line": name,
                        "label": line.label,
                        "kind": line.kind,
                        "options": chosen[case.name, name],
                        "grid": [line.grid, () if line.like else grids[case.name, name][len(line.grid) :]],
                        "reported": (case.reported or {}).get(name),
                        "values": figures,
                        "extra": extra,
                        "curves": {s.key: _mean_curve([run[s.key] for run in of_line], s) for s in self.series},
                    }
                )
            group = {"group": case.group or case.name, "short": case.short or case.name}
            cases.append({"case": case.name, "label": case.name, **group, "rows": rows})
        lines = {name: line for case in self.cases() for name, line in self.lines(case).items()}
        controls = [name for name, line in lines.items() if line.kind == "control"]
        higher = {metric.key: metric.higher for metric in self.metrics} | dict.fromkeys(self.extra, True)
        return as_json(
            {
                **self.heading(),
                "seconds of training": round(seconds, 1),
                "metrics": [vars(metric) for metric in self.metrics],
                "series": [vars(series) for series in self.series],
                "chosen by": self.chosen_by.label,
                "chosen on": [self.choosing_seeds, self.finalist_seeds] if choosing else [],
                "cases": cases,
                "test": TEST,
                "claims": [judge(claim, values, higher, controls=controls) for claim in self.claims()],
            }
        )

    def final_runs(self, *, folder: Path) -> Iterator[tuple[Job, Result]]:
        """The runs at the chosen options with their results."""
        jobs = self._final_jobs(self._kept_choice(folder)[1])
        yield from zip(jobs, self._kept(jobs, folder), strict=True)

    def _kept(self, jobs: Sequence[Job], folder: Path) -> list[Result]:
        return kept_results(self.work, jobs, experiment=self.name, folder=folder)

    def _jobs(self, case: Case, name: str, line: Line, options: Options, *, seeds: range, choosing: bool) -> list[Job]:
        shared = {"case": case.name, "line": name, **self.job(case, line, options)}
        return [{**shared, "seed": seed, "choosing": choosing} for seed in seeds]

    def _lines(self) -> dict[tuple[str, str], tuple[Case, Line]]:
        return {(case.name, name): (case, line) for case in self.cases() for name, line in self.lines(case).items()}

    def _kept_choice(self, folder: Path) -> tuple[Grids, Chosen, Results]:
        """Grids, chosen options and the results that chose them, from finished runs."""
        results: Results = {}
        choice = self._choice(results)
        try:
            while True:
                jobs = next(choice)
                results |= zip(map(repr, jobs), self._kept(jobs, folder), strict=True)
        except StopIteration as stop:
            return *stop.value, results

    def _choice(self, results: Results) -> Generator[list[Job], None, tuple[Grids, Chosen]]:
        """The choice of options; yields jobs whose results are to be in `results` when it goes on.

        Grids are extended as long as results show a best rate at an edge. A line `like` another has its points.
        """

        def shared(grids: Grids) -> Grids:
            return {
                (case, name): tuple(p for p in grids[case, line.like] if line.only.items() <= p.items())
                if line.like
                else grids[case, name]
                for (case, name), (_, line) in lines.items()
            }

        lines = self._lines()
        grids = shared({key: line.grid for key, (_, line) in lines.items()})
        ranked = yield from self._ranked(grids, results, seeds=self.choosing_seeds)
        for _ in range(MOST_EXTENSIONS if self.choosing_seeds else 0):
            wider = shared({key: extend(grid, ranked[key][0]) for key, grid in grids.items()})
            if wider == grids:
                break
            grids = wider
            ranked = yield from self._ranked(grids, results, seeds=self.choosing_seeds)
        finalists = {key: points[:FINALISTS] for key, points in ranked.items()}
        best = yield from self._ranked(finalists, results, seeds=self.finalist_seeds)
        return grids, {key: {**best[key][0], **(line.grid[0] if line.like else {})} for key, (_, line) in lines.items()}

    def _final_jobs(self, chosen: Chosen) -> list[Job]:
        return [
            job
            for (_, name), (case, line) in self._lines().items()
            for job in self._jobs(case, name, line, chosen[case.name, name], seeds=range(self.seeds), choosing=False)
        ]

    def _ranked(self, grids: Grids, results: Results, *, seeds: int) -> Generator[list[Job], None, Grids]:
        """The points of every grid, the best mean over all cases of a group first; not finite counts as worst."""
        lines = self._lines()
        jobs: dict[str, Job] = {}
        for (case_name, name), grid in grids.items():
            source = lines[case_name, name][1].like or name
            case, line = lines[case_name, source]
            for options in grid if len(grid) > 1 and self.choosing_seeds else ():
                chosen_on = range(1000, 1000 + seeds)
                new = self._jobs(case, source, line, options, seeds=chosen_on, choosing=True)
                jobs |= {repr(job): job for job in new}
        yield [job for key, job in jobs.items() if key not in results]
        group = {case.name: case.group or case.name for case in self.cases()}
        scores: dict[tuple[str, str, str], list[float | None]] = {}
        for key, job in jobs.items():
            point = group[job["case"]], job["line"], repr(job["options"])
            scores.setdefault(point, []).append(results[key][self.chosen_by.key])
        sign = 1 if self.chosen_by.higher else -1

        def score(case: str, name: str, options: Options) -> float:
            figures = scores.get((group[case], lines[case, name][1].like or name, repr(options)), [0.0])
            mean = sign * float(np.mean(np.array(figures, dtype=float)))  # NaN where there is a None
            return -mean if np.isfinite(mean) else np.inf

        return {
            (case, name): tuple(sorted(grid, key=lambda options: score(case, name, options)))
            for (case, name), grid in grids.items()
        }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _mean_curve(runs: list[list[float | None]], series: Series) -> dict[str, list[float]]:
    """Mean and sample standard deviation over runs, at evenly spaced positions x of the runs' own counting."""
    values = np.array(runs, dtype=float)  # NaN where a run has None
    steps = values.shape[1]
    x = np.unique(np.linspace(0, steps - 1, min(steps, MOST_POINTS)).round().astype(int))
    deviation = values.std(0, ddof=1) if len(values) > 1 else np.zeros(steps)
    return {
        "x": (series.first + x * series.every).tolist(),
        "mean": values.mean(0)[x].round(4).tolist(),
        "deviation": deviation[x].round(4).tolist(),
    }
