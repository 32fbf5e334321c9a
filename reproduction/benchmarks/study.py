"""Studies: a grid of jobs, a function that makes the row of one, and a file of rows that goes on where it stopped."""

import argparse
import hashlib
import json
import math
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import torch

from qpsbgd_paper.framework.result_files import environment, write_json

RESULTS = Path(__file__).parents[1] / "results"


class Rows:
    """The rows of a file, one per job, each written as soon as it is there, with the environment it was measured in.

    The file need not be there yet. A job's values are in its row, or in the row's "job".
    """

    def __init__(self, path, *, seconds=math.inf, processes=1, again=False):
        self.path, self.end, self.processes, self.again = path, time.time() + seconds, processes, again
        self.content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
        made_with = environment()
        self.environment = hashlib.sha1(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:8]
        self.content.setdefault("environments", {})[self.environment] = made_with

    def of(self, job):
        """The row of a job; None where there is none."""
        return next((row for row in self.content["rows"] if job.items() <= row.get("job", row).items()), None)

    def measured(self, run, jobs):
        """The rows of jobs, in their order; run(job) makes those that are new, unless the time is over.

        Of several processes, one that fails leaves the others to finish their jobs.
        """
        new = [job for job in jobs if self.again or self.of(job) is None]
        run = partial(_run_until, self.end, run)
        if self.processes > 1 and len(new) > 1:
            with torch.multiprocessing.get_context("spawn").Pool(self.processes, torch.set_num_threads, (1,)) as pool:
                self._add_all(pool.imap_unordered(partial(_row_or_error, run), new))
        else:
            self._add_all(map(run, new))
        rows = [self.of(job) for job in jobs]
        if None in rows:
            raise SystemExit(f"the time is over; the same command goes on from {self.path}")
        return rows

    def _add_all(self, pairs):
        errors = []
        for job, row in pairs:
            if isinstance(row, str):
                print(job, row, flush=True)
                errors.append(f"{job}\n{row}")
            elif row is not None:
                print(job, row, flush=True)
                before = self.of(job)
                others = [other for other in self.content["rows"] if other is not before]
                self.content["rows"] = [*others, row | {"environment": self.environment}]
                write_json(self.path, self.content)
        if errors:
            raise RuntimeError(f"{len(errors)} jobs failed, the first of them:\n{errors[0]}")


def _row_or_error(run, job):
    """What run(job) returns, or the job and the text of the error that it raised."""
    try:
        return run(job)
    except Exception:
        return job, traceback.format_exc()


def _run_until(end, run, job):
    return job, run(job) if time.time() < end else None


def arguments(name, *, processes=1, **options):
    """The command line of a study: its rows, results/NAME.json, which jobs are wanted, and options of its own."""
    about = sys.modules["__main__"].__doc__
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="KEY=VALUE", help="jobs with one of these values, or set to them")
    parser.add_argument("--processes", type=int, default=processes)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no job later")
    parser.add_argument("--into", type=Path, default=RESULTS / f"{name}.json")
    parser.add_argument("--again", action="store_true", help="measure also what the file has")
    for option, settings in options.items():
        parser.add_argument(f"--{option.replace('_', '-')}", **settings)
    given = parser.parse_args()
    wanted = {}
    for key, value in (entry.split("=", 1) for entry in given.only):
        wanted.setdefault(key, []).append(value)
    given.only = partial(only, wanted=wanted)
    return given, Rows(given.into, seconds=given.seconds, processes=given.processes, again=given.again)


def only(jobs, wanted):
    """The jobs that have one of the wanted values of every key; where none has, all jobs with these values instead."""
    jobs = list(jobs)
    for key, values in wanted.items():
        fitting = [job for job in jobs if str(job.get(key)) in values]
        jobs = fitting or [job | {key: _value(text)} for job in jobs for text in values]
    return [job for place, job in enumerate(jobs) if job not in jobs[:place]]


def _value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def study(name, run, jobs, *, processes=1):
    """Measure the wanted jobs of a grid into results/NAME.json, or another file."""
    given, rows = arguments(name, processes=processes)
    rows.measured(run, given.only(jobs))


def best_values(grids, scores_of, *, digits=17, most=6):
    """The best value of every grid, by its name; a best one at an edge extends the grid, up to `most` values.

    Args:
        grids: Values by name.
        scores_of: A function of a list of names and values, which returns their scores; higher is better.
        digits: Of values that are added.
    """
    tried, best = {name: {} for name in grids}, {}
    wanted = [(name, value) for name, grid in grids.items() for value in grid]
    while wanted:
        for (name, value), score in zip(wanted, scores_of(wanted), strict=True):
            tried[name][value] = score
        best = {name: max(scores, key=scores.get) for name, scores in tried.items()}
        wanted = []
        for name, scores in tried.items():
            if len(scores) < most and best[name] in (min(scores), max(scores)):
                beyond = best[name] / 3 if best[name] == min(scores) else best[name] * 3
                wanted.append((name, float(f"{beyond:.{digits}g}")))
    return best
