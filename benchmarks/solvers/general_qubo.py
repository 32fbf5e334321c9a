"""Does `auto` find values as good as other people's heuristics on single QUBOs and graphs, in the same time?

Instances of `instances.py`: QUBOs after Beasley and Palubeckis, and graphs like those of the G-set. Every solver has
one thread and the same time, its own reading of the problem included. On graphs `auto` also gets a tenth of that time.
Of `auto` the middle one of three runs counts.
Annealers make four reads of as many sweeps as fit into the time, or more reads of 10,000 sweeps (OpenJij: 1,000, its
default; more do not help), in one call, without a seed: with one, all reads of OpenJij are the same. What a solver
cannot take within its time or its licence is left out.

Seconds are those of the processor (`timed.py`). MQLib is measured where the variable MQLIB names its program.

    python benchmarks/solvers/general_qubo.py     writes benchmarks/results/general_qubo.json; goes on where it stopped
    python benchmarks/solvers/general_qubo.py size 1000000    one graph of degree 6 in this process: its time and memory
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import instances
import numpy as np
import openjij
import peers
import torch
from dwave.samplers import SimulatedAnnealingSampler
from timed import annealer, auto, by_clock, load_all, model_of, stretch, tabu

import qpsbgd_qubo
from qpsbgd_paper.framework.result_files import environment, write_json

TARGET = Path(__file__).parents[1] / "results" / "general_qubo.json"
SECONDS, QUICK_SECONDS, LONG_SECONDS = 2.0, 0.5, 5.0
"""Of every solver; up to 500 variables; of dwave-samplers' annealing on graphs once more, `auto` a tenth of it."""
SIZES = (1_000, 10_000, 100_000, 1_000_000)

DENSE = {
    "bqp 50, 10 %": partial(instances.bqp, 50),
    "bqp 100, 10 %": partial(instances.bqp, 100),
    "bqp 250, 10 %": partial(instances.bqp, 250),
    "bqp 500, 10 %": partial(instances.bqp, 500),
    "bqp 1000, 10 %": partial(instances.bqp, 1000),
    "bqp 1000, 100 %": partial(instances.bqp, 1000, density=1.0),
    "bqp 2500, 10 %": partial(instances.bqp, 2500),
    "bqp 2500, 10 %, second": partial(instances.bqp, 2500, 1),
    "p 3000, 50 %": partial(instances.palubeckis, 3000),
    "p 3000, 100 %": partial(instances.palubeckis, 3000, density=1.0),
}
GRAPHS = {
    "random 800, degree 48": partial(instances.random_graph, 800, 47.94),
    "random ±1 800, degree 48": partial(instances.random_graph, 800, 47.94, signs=True),
    "torus ±1 800": partial(instances.toroidal_grid, 100, 8),
    "planar ±1 800": partial(instances.planar_graph, 800, signs=True),
    "random 2000, degree 20": partial(instances.random_graph, 2000, 19.99),
    "torus ±1 2000": partial(instances.toroidal_grid, 100, 20),
    "planar 2000": partial(instances.planar_graph, 2000),
    "random 5000, degree 5": partial(instances.random_graph, 5000, 5),
    "torus ±1 5000": partial(instances.toroidal_grid, 100, 50),
    "planar ±1 7000": partial(instances.planar_graph, 7000, signs=True),
    "torus ±1 10000": partial(instances.toroidal_grid, 100, 100),
    "random 10000, degree 2": partial(instances.random_graph, 10000, 2),
}


def bifurcation(problem, model, seconds):
    longer, begin, found = stretch(), time.process_time(), []
    while (left := seconds - (time.process_time() - begin)) > 0.1 * seconds or not found:
        found.append(peers.bifurcation(seed=len(found), agents=32, max_steps=1000, timeout=longer * left)(model))
    return min(found, key=problem.energy), time.process_time() - begin


def gurobi(problem, model, seconds):
    limit, begin = seconds * stretch(), time.process_time()
    return peers.gurobi(limit)(model), time.process_time() - begin


def mqlib(heuristic, problem, model, seconds):
    """One run of a heuristic of MQLib's program, which the variable MQLIB names; it counts its time after reading."""
    n, (rows, columns, couplings) = problem.num_spins, problem.edges()
    sums = np.bincount(rows, couplings, n) + np.bincount(columns, couplings, n)
    # Maximise Σ q_ii x_i + 2 Σ_{i<j} q_ij x_i x_j with spins 2 x − 1.
    entries = [(i + 1, i + 1, value) for i, value in enumerate(2 * sums - 2 * problem.linear)]
    entries += zip((rows + 1).tolist(), (columns + 1).tolist(), (-2 * couplings).tolist(), strict=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(f"{n} {len(entries)}\n" + "".join(f"{i} {j} {value:g}\n" for i, j, value in entries))
        file.flush()

        def solve(limit):
            begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            options = ["-h", heuristic, "-fQ", file.name, "-r", f"{limit}", "-s", "0", "-ps", "-nv"]
            text = subprocess.run([os.environ["MQLIB"], *options], check=True, capture_output=True, text=True).stdout
            taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin
            return 2 * np.array(text.split("Solution:")[1].split(), dtype=float) - 1, taken

        return by_clock(solve, seconds)


PEERS = {
    "dwave SA": partial(annealer, SimulatedAnnealingSampler(), 10_000),
    "dwave tabu": tabu,
    "OpenJij SA": partial(annealer, openjij.SASampler(), 1_000),
    "simulated-bifurcation": bifurcation,
    "gurobi": gurobi,
}
if "MQLIB" in os.environ:
    PEERS |= {f"MQLib {name}": partial(mqlib, name) for name in ("BURER2002", "PALUBECKIS2004bMST2")}
LARGEST = {"dwave tabu": 5000, "simulated-bifurcation": 3000, "gurobi": 200}
"""Most variables: the size-limited licence of Gurobi, and dense matrices of the others, which take most of the time."""


MOST_COUPLINGS = {"dwave SA": 1_000_000, "OpenJij SA": 300_000}
"""Reading more takes them longer than the time."""


def measured(kind, name, problem, known=()):
    """One result per solver and limit that is not known yet: the lowest energy, and the seconds that it took."""
    n = problem.num_spins
    seconds = QUICK_SECONDS if n <= 500 else SECONDS
    model = model_of(problem)
    solvers = {("auto", seconds): auto} | {
        (peer, seconds): solve
        for peer, solve in PEERS.items()
        if n <= LARGEST.get(peer, n) and problem.num_couplings <= MOST_COUPLINGS.get(peer, np.inf)
    }
    if kind == "graph":
        solvers = {("auto", seconds / 10): auto} | solvers
        solvers |= {("auto", LONG_SECONDS / 10): auto, ("dwave SA", LONG_SECONDS): PEERS["dwave SA"]}
    for (solver, limit), solve in solvers.items():
        if (name, solver, limit) in known:
            continue
        spins, taken = solve(problem, model, limit)
        row = {"kind": kind, "instance": name, "variables": n, "couplings": len(problem.indices) // 2}
        row |= {"solver": solver, "limit": limit, "seconds": taken, "energy": float(problem.energy(np.round(spins)))}
        print(row, flush=True)
        yield row


def size(n):
    """Time and memory of two rounds of `auto` on a random graph of degree 6, its own making aside."""
    torch.set_num_threads(1)
    problem = instances.random_graph(n, 6)
    qpsbgd_qubo.solve(instances.random_graph(100, 6), rounds=1)  # loaded
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    answer = qpsbgd_qubo.solve(problem, rounds=2)
    row = {"variables": n, "couplings": len(problem.indices) // 2, "seconds": time.process_time() - begin}
    row |= {"cut": -answer.value, "megabytes_before": before / 1024}
    row |= {"megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    print(json.dumps(row))


def main():
    torch.set_num_threads(1)
    found = json.loads(TARGET.read_text()) if TARGET.exists() else {"results": [], "sizes": []}
    found = {"made with": environment(), "settings": {"threads": 1, "seconds": SECONDS, "quick": QUICK_SECONDS}} | found
    for n in SIZES:
        if n not in [row["variables"] for row in found["sizes"]]:
            command = [sys.executable, __file__, "size", str(n)]
            found["sizes"].append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            print(found["sizes"][-1], flush=True)
            write_json(TARGET, found)
    load_all()
    for kind, named in (("dense", DENSE), ("graph", GRAPHS)):
        for name, make in named.items():
            known = {(row["instance"], row["solver"], row["limit"]) for row in found["results"]}
            found["results"] += measured(kind, name, make(), known)
            write_json(TARGET, found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["size"]:
        size(int(sys.argv[2]))
    else:
        main()
