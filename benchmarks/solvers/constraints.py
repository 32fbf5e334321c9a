"""Does `auto` keep constraints, and find values as good as other people's heuristics on QUBOs with penalties?

Instances of `constraint_instances.py`; max-cut and Beasley's QUBOs, without constraints, stand beside as controls.
Every solver has one thread and the same time of the processor (`timed.py`). Of `auto` the middle one of three runs
counts. Two seconds come first, then one and five. What was tuned (temperatures and lengths of chains, tenures, shares
of moves) was tuned on these instances.

    python benchmarks/solvers/constraints.py      writes benchmarks/results/constraints.json; goes on where it stopped
    python benchmarks/solvers/constraints.py --draw 1     the same for instances on which nothing was tuned
    python benchmarks/solvers/constraints.py --seconds 20 --runs 1 --solvers auto    lowest energies to compare with
"""

import argparse
import functools
import itertools
import json
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from constraint_instances import classes
from dwave.samplers import SimulatedAnnealingSampler
from timed import annealer, auto, model_of, tabu

from qpsbgd_paper.framework.result_files import environment, write_json

TARGET = Path(__file__).parents[1] / "results" / "constraints.json"
SECONDS, RUNS = (2.0, 1.0, 5.0), 3
SOLVERS = ("auto", "dwave tabu", "dwave SA")


def measured(kind, name, draw, *, limit, runs, wanted):
    """One result per solver."""
    anneal = functools.partial(annealer, SimulatedAnnealingSampler(), 10_000)
    solvers = {"auto": functools.partial(auto, runs=runs), "dwave tabu": tabu, "dwave SA": anneal}
    instance, rows = classes(draw)[kind][name](), []
    problem, model = instance.problem, model_of(instance.problem)
    for solver in wanted:
        spins, taken = solvers[solver](problem, model, limit)
        row = {"class": kind, "instance": name, "draw": draw, "variables": problem.num_spins}
        row |= {
            "solver": solver,
            "limit": limit,
            "runs": runs if solver == "auto" else 1,
            "seconds": taken,
            "energy": problem.energy(spins),
        }
        row |= {"optimum": instance.optimum, "feasible": instance.feasible((np.asarray(spins) + 1) // 2)}
        print(row, flush=True)
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", choices=[[], *classes()])
    parser.add_argument("--seconds", type=float, nargs="+", default=SECONDS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=SOLVERS)
    parser.add_argument("--draw", type=int, default=0, help="1 and more: other instances than those tuned on")
    parser.add_argument("--processes", type=int, default=1, help="instances at a time, one per idle core")
    options = parser.parse_args()
    found = json.loads(TARGET.read_text()) if TARGET.exists() else {"results": []}
    found = {"made with": environment(), "settings": {"threads": 1}} | found
    known = {(row["class"], row["instance"], row["draw"], row["solver"], row["limit"]) for row in found["results"]}
    # Classes take turns, so that a part of the run shows all.
    makers = classes(options.draw)
    kinds = [[(kind, name, options.draw) for name in makers[kind]] for kind in options.classes or makers]
    instances = [one for turn in itertools.zip_longest(*kinds) for one in turn if one]
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = []
        for limit, one in itertools.product(options.seconds, instances):
            wanted = [solver for solver in options.solvers if (*one, solver, limit) not in known]
            jobs.append(pool.submit(measured, *one, limit=limit, runs=options.runs, wanted=wanted))
        for job in as_completed(jobs):
            found["results"] += job.result()
            write_json(TARGET, found)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
