"""Does `auto` find values as good as other people's heuristics on single problems, in the same time?

    python benchmarks/solvers/general_qubo.py                 QUBOs after Beasley and others, graphs like the G-set's
    python benchmarks/solvers/general_qubo.py time_to_target  four of them, with limits from 0.1 to 4 seconds
    python benchmarks/solvers/general_qubo.py constraints     QUBOs with penalties, of `constraint_instances.py`
    python benchmarks/solvers/general_qubo.py size 1000000    one graph of degree 6 in this process: its time and memory

Every part but the last writes results/PART.json, row by row, and goes on where it stopped.

Every solver has one thread and the same time, its own reading of the problem included; seconds are those of the
processor (`timed.py`). Of `auto` the middle one of three runs counts. On graphs it also gets a tenth of the time.
Annealers make four reads of as many sweeps as fit into the time, or more reads of 10,000 sweeps (OpenJij: 1,000, its
default; more do not help), in one call, without a seed: with one, all reads of OpenJij are the same. What a solver
cannot take within its time or its licence is left out. Rows of MQLib are by timed.py of commit af1c5b87.
"""

import json
import resource
import subprocess
import sys
from functools import partial

import numpy as np
import torch

import qpsbgd_qubo
from benchmarks.solvers.constraint_instances import CLASSES, Instance
from benchmarks.solvers.instances import DENSE, GRAPHS, random_graph
from benchmarks.solvers.timed import SOLVERS, load_all, model_of, with_cpu_time
from benchmarks.study import RESULTS, Rows

SECONDS, QUICK_SECONDS, LONG_SECONDS = 2.0, 0.5, 5.0
"""Of every solver; up to 500 variables; of dwave-samplers' annealing on graphs once more, `auto` a tenth of it."""
SIZES = (1_000, 10_000, 100_000, 1_000_000)

FOLLOWED = ("bqp 2500, 10 %", "random 2000, degree 20", "torus ±1 2000", "planar ±1 7000")
"""Instances of the part time_to_target."""


FAMILIAR = ("auto", "dwave tabu", "dwave SA")
"""Solvers of the parts time_to_target and constraints."""
LARGEST = {"dwave tabu": 5000, "simulated-bifurcation": 3000, "gurobi": 200}
"""Most variables: the size-limited licence of Gurobi, and dense matrices of the others, which take most of the time."""
MOST_COUPLINGS = {"dwave SA": 1_000_000, "OpenJij SA": 300_000}
"""Reading more takes them longer than the time."""


def takes(solver, problem):
    n, couplings = problem.num_spins, problem.num_couplings
    return n <= LARGEST.get(solver, n) and couplings <= MOST_COUPLINGS.get(solver, couplings)


def general_qubo():
    """What makes an instance, labels of its rows, and solvers with their limits as a function of the problem."""

    def runs(kind, problem):
        seconds = QUICK_SECONDS if problem.num_spins <= 500 else SECONDS
        jobs = [(solver, seconds) for solver in SOLVERS if takes(solver, problem)]
        tenths = [("auto", seconds / 10), ("auto", LONG_SECONDS / 10), ("dwave SA", LONG_SECONDS)]
        return jobs + (tenths if kind == "graph" else [])

    for kind, named in (("dense", DENSE), ("graph", GRAPHS)):
        for name, make in named.items():
            yield make, {"kind": kind, "instance": name}, partial(runs, kind)


def time_to_target():
    """The same; the annealing, which has no seed, runs twice."""

    def runs(problem):
        solvers = [solver for solver in FAMILIAR if takes(solver, problem)]
        jobs = [(solver, limit) for solver in solvers for limit in (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)]
        return jobs + [(solver, limit, 2) for solver, limit in jobs if solver == "dwave SA"]

    for name in FOLLOWED:
        yield (DENSE | GRAPHS)[name], {"instance": name}, runs


def constraints():
    """The same, and 20 seconds of `auto` for energies to compare with."""
    runs = [(solver, limit) for limit in (2.0, 1.0, 5.0) for solver in FAMILIAR]
    for kind, named in CLASSES.items():
        for name, make in named.items():
            yield make, {"class": kind, "instance": name}, lambda problem: [*runs, ("auto", 20.0)]


PARTS = {part.__name__: part for part in (general_qubo, time_to_target, constraints)}


def row_of(made, problem, model, job):
    """One run: the lowest energy, and the seconds that it took."""
    spins, taken = SOLVERS[job["solver"]](problem, model, job["limit"])
    spins = np.round(spins)
    row = job | {"variables": problem.num_spins, "couplings": problem.num_couplings}
    row |= {"seconds": taken, "energy": float(problem.energy(spins))}
    if isinstance(made, Instance):
        row |= {"optimum": made.optimum, "feasible": made.feasible((spins + 1) // 2)}
    return row


def size(n):
    """Time and memory of two rounds of `auto` on a random graph of degree 6, its own making aside."""
    problem = random_graph(n, 6)
    qpsbgd_qubo.solve(random_graph(100, 6), rounds=1)  # loaded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer, seconds = with_cpu_time(lambda: qpsbgd_qubo.solve(problem, rounds=2))
    row = {"variables": n, "couplings": problem.num_couplings, "seconds": seconds}
    row |= {"cut": -answer.value, "megabytes_before": before / 1024}
    row |= {"megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    print(json.dumps(row))


def main(name):
    rows = Rows(RESULTS / f"{name}.json")
    if name == "general_qubo":
        sizes = rows.content.setdefault("sizes", [])
        for n in SIZES[len(sizes) :]:
            command = [sys.executable, __file__, "size", str(n)]
            sizes.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            print(sizes[-1], flush=True)
    load_all()
    for make, labels, runs in PARTS[name]():
        made = make()
        problem = made.problem if isinstance(made, Instance) else made
        jobs = [labels | dict(zip(("solver", "limit", "run"), run, strict=False)) for run in runs(problem)]
        rows.measured(partial(row_of, made, problem, model_of(problem)), jobs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, *numbers = sys.argv[1:] or ["general_qubo"]
    size(int(numbers[0])) if name == "size" else main(name)
