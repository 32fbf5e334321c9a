"""Does `auto` keep constraints, and find values as good as other people's heuristics on QUBOs with penalties?

Instances of `constraint_instances.py`; max-cut and Beasley's QUBOs, without constraints, stand beside as controls.
Every solver has one thread and the same time of the processor (`timed.py`). Of `auto` the middle one of three runs
counts. Two seconds come first, then one and five. What was tuned (temperatures and lengths of chains, tenures, shares
of moves) was tuned on these instances.

    python benchmarks/solvers/constraints.py      writes benchmarks/results/constraints.json; goes on where it stopped
    python benchmarks/solvers/constraints.py --draw 1     the same for instances on which nothing was tuned
    python benchmarks/solvers/constraints.py --quick      1 s, one run each, no file
    python benchmarks/solvers/constraints.py tour sudoku --seconds 2 --runs 1    some classes, one time, one run
    python benchmarks/solvers/constraints.py --seconds 20 --runs 1 --solvers auto    lowest energies to compare with
"""

import argparse
import functools
import itertools
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from constraint_instances import classes
from dwave.samplers import SimulatedAnnealingSampler
from timed import annealer, by_clock, model_of, tabu

from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio

TARGET = Path(__file__).parents[1] / "results" / "constraints.json"
SECONDS, RUNS = (2.0, 1.0, 5.0), 3
SOLVERS = ("auto", "dwave tabu", "dwave SA")


def auto(runs, problem, model, seconds):
    """The middle one of some runs, by their energy: one alone may be lucky."""

    def run(seed):
        def solve(limit):
            begin = time.process_time()
            spins, _, _ = Portfolio(time_limit=float(limit), seed=seed).answer(problem)
            return spins[:, 0], time.process_time() - begin

        return by_clock(solve, seconds)

    return sorted(map(run, range(runs)), key=lambda run: problem.energy(run[0]))[runs // 2]


def measured(kind, name, draw, *, limit, runs, wanted):
    """One result per solver."""
    solvers = {
        "auto": functools.partial(auto, runs),
        "dwave tabu": tabu,
        "dwave SA": functools.partial(annealer, SimulatedAnnealingSampler(), 10_000),
    }
    instance, rows = classes(draw)[kind][name](), []
    problem, model = instance.problem, model_of(instance.problem)
    for solver in wanted:
        spins, taken = solvers[solver](problem, model, limit)
        row = {
            "class": kind,
            "instance": name,
            "draw": draw,
            "variables": problem.num_spins,
            "solver": solver,
            "limit": limit,
        }
        row |= {"runs": runs if solver == "auto" else 1, "seconds": taken, "energy": problem.energy(spins)}
        row |= {"optimum": instance.optimum, "feasible": instance.feasible((np.asarray(spins) + 1) // 2)}
        text = f"{row['energy']:.6g}{'' if row['feasible'] else ' (not feasible)'}"
        print(f"{kind:10} {name:24} {solver:10} {limit:3.0f} s: {text} in {taken:.2f} s", flush=True)
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
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    limits, runs = ((1.0,), 1) if options.quick else (options.seconds, options.runs)
    found = json.loads(TARGET.read_text()) if TARGET.exists() and not options.quick else {"results": []}
    found = {"made with": environment(), "settings": {"threads": 1}} | found
    known = {(row["class"], row["instance"], row["draw"], row["solver"], row["limit"]) for row in found["results"]}
    # Classes take turns, so that a part of the run shows all.
    makers = classes(options.draw)
    kinds = [[(kind, name, options.draw) for name in makers[kind]] for kind in options.classes or makers]
    instances = [one for turn in itertools.zip_longest(*kinds) for one in turn if one]
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = []
        for limit, one in itertools.product(limits, instances):
            wanted = [solver for solver in options.solvers if (*one, solver, limit) not in known]
            jobs.append(pool.submit(measured, *one, limit=limit, runs=runs, wanted=wanted))
        for job in as_completed(jobs):
            found["results"] += job.result()
            if not options.quick:
                write_json(TARGET, found)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
