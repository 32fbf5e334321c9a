"""Does `auto` keep constraints, and find values as good as other people's heuristics on QUBOs with penalties?

Instances of `constraint_instances.py`; max-cut and Beasley's QUBOs, without constraints, stand beside as controls.
Every solver has one thread and the same time of the processor (`timed.py`). Of `auto` the middle one of three runs
counts. Two seconds come first, then one and five. What was tuned (temperatures and lengths of chains, tenures, shares
of moves) was tuned on these instances.

    python benchmarks/constraints.py              writes benchmarks/results/constraints.json; goes on where it stopped
    python benchmarks/constraints.py --quick      1 s, one run each, no file
    python benchmarks/constraints.py --seconds 2 --runs 1 tour sudoku    some classes, one time, one run
    python benchmarks/constraints.py --seconds 20 --runs 1 --solvers auto    lowest energies to compare with
"""

import argparse
import functools
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np
from constraint_instances import CLASSES
from dwave.samplers import SimulatedAnnealingSampler
from timed import annealer, by_clock, model_of, tabu

from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_qubo.portfolio import Portfolio

TARGET = Path(__file__).parent / "results" / "constraints.json"
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


def measured(kind, name, instance, *, limit, runs, wanted, known):
    """One result per solver that is not known yet."""
    solvers = {
        "auto": functools.partial(auto, runs),
        "dwave tabu": tabu,
        "dwave SA": functools.partial(annealer, SimulatedAnnealingSampler(), 10_000),
    }
    problem, model = instance.problem, model_of(instance.problem)
    for solver in wanted:
        if (kind, name, solver, limit) in known:
            continue
        spins, taken = solvers[solver](problem, model, limit)
        row = {"class": kind, "instance": name, "variables": problem.num_spins, "solver": solver, "limit": limit}
        row |= {"runs": runs if solver == "auto" else 1, "seconds": taken, "energy": problem.energy(spins)}
        row |= {"optimum": instance.optimum, "feasible": instance.feasible((np.asarray(spins) + 1) // 2)}
        text = f"{row['energy']:.6g}{'' if row['feasible'] else ' (not feasible)'}"
        print(f"{kind:10} {name:24} {solver:10} {limit:3.0f} s: {text} in {taken:.2f} s", flush=True)
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes", nargs="*", choices=[[], *CLASSES])
    parser.add_argument("--seconds", type=float, nargs="+", default=SECONDS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=SOLVERS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    limits, runs = ((1.0,), 1) if options.quick else (options.seconds, options.runs)
    found = json.loads(TARGET.read_text()) if TARGET.exists() and not options.quick else {"results": []}
    found = {"made with": environment(), "settings": {"threads": 1}} | found
    # Classes take turns, so that a part of the run shows all.
    turns = itertools.zip_longest(*([(kind, name) for name in CLASSES[kind]] for kind in options.classes or CLASSES))
    instances = [one for turn in turns for one in turn if one]
    for limit, (kind, name) in itertools.product(limits, instances):
        known = {(row["class"], row["instance"], row["solver"], row["limit"]) for row in found["results"]}
        asked = {"limit": limit, "runs": runs, "wanted": options.solvers, "known": known}
        for row in measured(kind, name, CLASSES[kind][name](), **asked):
            found["results"].append(row)
            if not options.quick:
                write_json(TARGET, found)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
