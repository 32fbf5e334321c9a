"""How soon do thousands of annealing chains on a GPU reach the lowest known energy of one problem?

A QUBO after Beasley with 2500 variables (density 10 %, as bqp2500) and a random graph of 2000 nodes and 19990 edges (as
G22 of the G-set), the instances of `general_qubo.py`, whose lowest energies on a CPU are shown beside. The time is that
of one call, from the problem in compressed rows to its best spins, colouring and transfers included, after a first call
that compiles. Needs torch and Triton with a CUDA GPU, no other packages than the library's own.

    PYTHONPATH=src python benchmarks/gpu_chains.py [FILE]     writes benchmarks/results/gpu_chains.json, or FILE
    PYTHONPATH=src TRITON_INTERPRET=1 python benchmarks/gpu_chains.py tiny     a tiny problem without a GPU, not kept
"""

import json
import sys
import time
from pathlib import Path

import instances

from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.result_files import environment, write_json

RESULTS = Path(__file__).parent / "results"
INSTANCES = {
    "bqp 2500, 10 %": lambda: instances.bqp(2500),
    "random 2000, degree 20": lambda: instances.random_graph(2000, 19.99),
}
RUNS = [(chains, sweeps) for chains in (4096, 16384) for sweeps in (100, 300, 1000, 3000)]


def cpu_energy(name):
    """The lowest energy that any solver found on a CPU; None if that was not measured."""
    path = RESULTS / "general_qubo.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    return min((row["energy"] for row in rows if row["instance"] == name), default=None)


def measured(name, problem, chains, sweeps):
    begin = time.perf_counter()
    solution = make_solver("gpu-annealing", chains=chains, sweeps=sweeps).solve_sparse(problem)
    row = {"instance": name, "chains": chains, "sweeps": sweeps, "seconds": time.perf_counter() - begin}
    row |= {"energy": float(solution.energies), "cpu_energy": cpu_energy(name)}
    print(row, flush=True)
    return row


def main(target):
    found = []
    for name, make in INSTANCES.items():
        problem = make()
        measured(name, problem, 32, 1)
        found += [measured(name, problem, chains, sweeps) for chains, sweeps in RUNS]
    write_json(target, {"made with": environment(), "results": found})


if __name__ == "__main__":
    if sys.argv[1:] == ["tiny"]:
        measured("tiny", instances.bqp(20), 64, 5)
    else:
        main(Path(sys.argv[1]) if sys.argv[1:] else RESULTS / "gpu_chains.json")
