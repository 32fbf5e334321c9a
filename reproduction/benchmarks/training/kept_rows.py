"""Studies that go on where they stopped: rows of results in a file, and grids that grow at their edges."""

import hashlib
import json
import math
import time
from functools import partial

import torch

from qpsbgd_paper.framework.result_files import environment, write_json


class Rows:
    """The rows of a file, one per job, each written as soon as it is there, with the environment it was measured in.

    The file need not be there yet. A job's values are in its row, or in the row's "job".
    """

    def __init__(self, path, *, seconds=math.inf):
        self.path, self.end, made_with = path, time.time() + seconds, environment()
        self.environment = hashlib.sha1(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:8]
        self.content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
        self.content.setdefault("environments", {})[self.environment] = made_with

    def of(self, job):
        """The row of a job; None where there is none."""
        return next((row for row in self.content["rows"] if job.items() <= row.get("job", row).items()), None)

    def measured(self, run, jobs, *, processes=1, again=False):
        """The rows of jobs, in their order; run(job) makes those that are new, unless the time is over."""
        new = [job for job in jobs if again or self.of(job) is None]
        run = partial(_run_until, self.end, run)
        if processes > 1 and new:
            with torch.multiprocessing.get_context("spawn").Pool(processes, torch.set_num_threads, (1,)) as pool:
                self._add_all(pool.imap_unordered(run, new))
        else:
            self._add_all(map(run, new))
        rows = [self.of(job) for job in jobs]
        if None in rows:
            raise SystemExit(f"the time is over; the same command goes on from {self.path}")
        return rows

    def _add_all(self, pairs):
        for job, row in pairs:
            if row is not None:
                print(job, row, flush=True)
                before = self.of(job)
                kept = [other for other in self.content["rows"] if other is not before]
                self.content["rows"] = [*kept, row | {"environment": self.environment}]
                write_json(self.path, self.content)


def _run_until(end, run, job):
    return job, run(job) if time.time() < end else None


def tuned(grids, scores_of, *, digits=17, most=6):
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
