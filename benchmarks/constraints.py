"""Does `auto` keep constraints, and find values as good as other people's heuristics on QUBOs with penalties?

Instances of `constraint_instances.py`; max-cut and Beasley's QUBOs, without constraints, stand beside as controls. Every
solver has one thread and the same time of the processor (`timed.py`). Of `auto` the middle one of three runs counts.
What was tuned (temperatures and lengths of chains, shares of moves) was tuned on these instances.

    python benchmarks/constraints.py              writes benchmarks/results/constraints.json; goes on where it stopped
    python benchmarks/constraints.py --quick      1 s, one run each, no file
    python benchmarks/constraints.py tour sudoku  some classes only
"""

import functools
import json
import sys
import time
from pathlib import Path

import numpy as np
from constraint_instances import CLASSES
from dwave.samplers import SimulatedAnnealingSampler
from timed import annealer, by_clock, model_of, tabu

from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_qubo.portfolio import Portfolio

TARGET = Path(__file__).parent / "results" / "constraints.json"
SECONDS = (1.0, 2.0, 5.0)
RUNS = 3


def auto(runs, problem, model, seconds):
    """The middle one of some runs, by their energy: one alone may be lucky."""

    def run(seed):
        def solve(limit):
            begin = time.process_time()
            spins, _, _ = Portfolio(time_limit=float(limit), seed=seed).answer(problem)
            return spins[:, 0], time.process_time() - begin

        return by_clock(solve, seconds)

    return sorted(map(run, range(runs)), key=lambda run: problem.energy(run[0]))[runs // 2]


def measured(kind, name, instance, *, limits, runs, known=()):
    """One result per solver and limit that is not known yet."""
    solvers = {
        "auto": functools.partial(auto, runs),
        "dwave tabu": tabu,
        "dwave SA": functools.partial(annealer, SimulatedAnnealingSampler(), 10_000),
    }
    problem, model = instance.problem, model_of(instance.problem)
    for limit in limits:
        for solver, solve in solvers.items():
            if (kind, name, solver, limit) in known:
                continue
            spins, taken = solve(problem, model, limit)
            row = {"class": kind, "instance": name, "variables": problem.num_spins, "solver": solver, "limit": limit}
            row |= {"seconds": taken, "energy": problem.energy(spins), "optimum": instance.optimum}
            row |= {"feasible": instance.feasible((np.asarray(spins) + 1) // 2)}
            text = f"{row['energy']:.6g}{'' if row['feasible'] else ' (not feasible)'}"
            print(f"{kind:10} {name:24} {solver:10} {limit:3.0f} s: {text} in {taken:.2f} s", flush=True)
            yield row


def main(arguments):
    quick = "--quick" in arguments
    wanted = [one for one in arguments if one != "--quick"] or list(CLASSES)
    found = json.loads(TARGET.read_text()) if TARGET.exists() and not quick else {"results": []}
    found = {"made with": environment(), "settings": {"threads": 1, "runs": RUNS}} | found
    for kind in wanted:
        for name, make in CLASSES[kind].items():
            known = {(row["class"], row["instance"], row["solver"], row["limit"]) for row in found["results"]}
            limits, runs = ((1.0,), 1) if quick else (SECONDS, RUNS)
            for row in measured(kind, name, make(), limits=limits, runs=runs, known=known):
                found["results"].append(row)
                if not quick:
                    write_json(TARGET, found)


if __name__ == "__main__":
    import os

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
