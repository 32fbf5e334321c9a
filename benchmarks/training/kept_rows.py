"""Rows of results in a file that a stopped study goes on from: one row per job, written as soon as it is there."""

import hashlib
import json

import torch

from qpsbgd_paper.framework.result_files import environment, write_json


class Rows:
    """The rows of a file by their jobs, each with the environment that it was measured in.

    The file need not be there yet.
    """

    def __init__(self, path):
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"environments": {}, "rows": []}
        made_with = environment()
        self.path, self.environment = path, hashlib.sha1(_key(made_with).encode()).hexdigest()[:8]
        self.environments = content["environments"] | {self.environment: made_with}
        self.kept = {_key(row["job"]): row for row in content["rows"]}

    def measured(self, run, jobs, *, processes=1, again=False):
        """The rows of jobs, in their order; run(job), which returns the job and its row, makes those that are new."""
        new = [job for job in jobs if again or _key(job) not in self.kept]
        if processes > 1 and new:
            with torch.multiprocessing.get_context("spawn").Pool(processes, torch.set_num_threads, (1,)) as pool:
                self._add_all(pool.imap_unordered(run, new))
        else:
            self._add_all(map(run, new))
        return [self.kept[_key(job)] for job in jobs]

    def _add_all(self, pairs):
        for job, row in pairs:
            print(job, row, flush=True)
            row = json.loads(json.dumps(row), parse_float=lambda text: float(f"{float(text):.6g}"))
            self.kept[_key(job)] = {"job": job, **row, "environment": self.environment}
            write_json(self.path, {"environments": self.environments, "rows": list(self.kept.values())})


def _key(value):
    return json.dumps(value, sort_keys=True)
