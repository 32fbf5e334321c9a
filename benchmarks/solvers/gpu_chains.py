"""How soon do thousands of annealing chains on a GPU reach the lowest known energy of one problem?

A QUBO after Beasley with 2500 variables (density 10 %, as bqp2500) and a random graph of 2000 nodes and 19990 edges (as
G22 of the G-set), the instances of `general_qubo.py`, whose lowest energies on a CPU are shown beside. The time is that
of one call, from the problem in compressed rows to its best spins, colouring and transfers included, after a first call
that compiles. Needs torch and Triton with a CUDA GPU, no other packages than the library's own.

    PYTHONPATH=src python benchmarks/solvers/gpu_chains.py [FILE]     writes benchmarks/results/gpu_chains.json, or FILE
"""

import json
import time
from pathlib import Path

import instances
import torch

from qpsbgd_paper.framework.measurements import publish, shown
from qpsbgd_qubo import solve

RESULTS = Path(__file__).parents[1] / "results"
INSTANCES = {
    "bqp 2500, 10 %": lambda: instances.bqp(2500),
    "random 2000, degree 20": lambda: instances.random_graph(2000, 19.99),
}
RUNS = [(chains, sweeps) for chains in (4096, 8192) for sweeps in (100, 200, 400, 800)]
SEEDS = 3


def cpu_energy(name):
    """The lowest energy that any solver found on a CPU; None if that was not measured."""
    path = RESULTS / "general_qubo.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    return min((row["energy"] for row in rows if row["instance"] == name), default=None)


def measured(name, problem, chains, sweeps, seeds=SEEDS):
    """Seconds and energies of some calls with different seeds."""
    seconds, energies = [], []
    for seed in range(seeds):
        begin = time.perf_counter()
        answer = solve(problem, solver="gpu-annealing", chains=chains, sweeps=sweeps, seed=seed)
        seconds.append(time.perf_counter() - begin)
        energies.append(answer.value)
    row = {"instance": name, "chains": chains, "sweeps": sweeps, "seconds": seconds, "energies": energies}
    return {**row, "cpu_energy": cpu_energy(name)}


def all_measured():
    for name, make in INSTANCES.items():
        problem = make()
        measured(name, problem, 32, 1, seeds=1)  # compiles
        yield from (measured(name, problem, chains, sweeps) for chains, sweeps in RUNS)


if __name__ == "__main__":
    settings = {"device": torch.cuda.get_device_name(), "seeds": SEEDS}
    publish(__file__, settings=settings, results=shown(all_measured()))
