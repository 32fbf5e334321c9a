"""Where should the search for spins begin, and how large should κ be? Training with variants of the defaults.

Starts: the sign vector at every step; the spins of the last step; the sign vector with the last step's deviations from
it. In the library the first is for narrow layers and the last for wide ones; here each is used in all layers. Adult,
ten layers of 128, loss after 4 epochs, 5 seeds; MNIST, 784-128-10, test accuracy after one epoch, 5 seeds.

    python benchmarks/spins_options.py [--processes 2]        writes benchmarks/results/spins_options.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import argparse
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from training import TASKS, Images, dense

from qpsbgd import QPSBGD
from qpsbgd.projections import Spins
from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_qubo.solvers.search import warm_start

SEEDS = 5
NETWORKS = {"adult": (TASKS["adult-10"], 4), "mnist": (Images(partial(dense, [784, 128, 10])), 1)}
STARTS = ("sign vector", "last spins", "deviations")
KAPPAS = (0.5, 1.0, 2.0, 4.0)
warm_descent = warm_start.warm_descent


def from_last_spins(solver, matrix, linear, *, last, cached):
    """`warm_start.warm_descent` that turns no spin round where the sign vector has changed."""
    unturned = None if last is None else replace(last, signs=linear <= 0)
    return warm_descent(solver, matrix, linear, last=unturned, cached=cached)


def run(job):
    torch.set_num_threads(1)
    task, budget = NETWORKS[job["network"]]
    with ExitStack() as patches:
        if job["start"] is not None:
            anew = float("inf") if job["start"] == "sign vector" else 0
            patches.enter_context(patch.object(warm_start, "COLD_START_LIMIT", anew))
        if job["start"] == "last spins":
            patches.enter_context(patch.object(warm_start, "warm_descent", from_last_spins))
        make = partial(QPSBGD, projection=Spins(kappa=job["kappa"]))
        found = task.run(lambda model, steps: make(model, steps=steps), budget=budget, seed=job["seed"], choosing=False)
    return job, found["score"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    variants = [{"start": start, "kappa": 1.0} for start in STARTS] + [{"start": None, "kappa": k} for k in KAPPAS]
    jobs = [{"network": n, **v, "seed": seed} for n in NETWORKS for v in variants for seed in range(SEEDS)]
    rows = {}
    with torch.multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for job, score in pool.imap(run, jobs):
            key = job["network"], job["start"], job["kappa"]
            rows.setdefault(key, []).append(score)
            if len(rows[key]) == SEEDS:
                print(key, sum(rows[key]) / SEEDS, flush=True)
    names = ("network", "start", "kappa")
    found = [{**dict(zip(names, key, strict=True)), "scores": scores} for key, scores in rows.items()]
    target = Path(__file__).parent / "results" / "spins_options.json"
    write_json(target, {"made with": environment(), "settings": {"seeds": SEEDS}, "rows": found})


if __name__ == "__main__":
    main()
