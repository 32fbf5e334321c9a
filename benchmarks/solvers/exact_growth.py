"""How does the time of a proven optimum grow with the number of spins?

Gaussian inputs and gradients, batch 2n and n/2, scales 0.2 and 1, 16 columns, two threads; the time is the family's
divided by its columns. A small family is solved first, so that nothing is compiled while the clock runs.

    python benchmarks/solvers/exact_growth.py        writes benchmarks/results/exact_growth.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import itertools
import time
from pathlib import Path

import torch

from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family
from qpsbgd_paper.framework.result_files import environment, write_json

SIZES, SCALES, COLUMNS, THREADS = (16, 24, 32, 40, 48), (0.2, 1.0), 16, 2


def main():
    torch.set_num_threads(THREADS)
    solver = make_solver("exact", node_limit=1_000_000_000)
    solver.solve(random_family(20, COLUMNS, 20, scale=0.2))
    results = []
    for scale, rows_per_spin, n in itertools.product(SCALES, (2.0, 0.5), SIZES):
        rows = round(rows_per_spin * n)
        family = random_family(n, COLUMNS, rows, scale=scale, seed=n)
        start = time.perf_counter()
        solution = solver.solve(family)
        seconds = (time.perf_counter() - start) / COLUMNS
        proven, nodes = int(solution.proven_optimal.sum()), solution.stats["nodes"] / COLUMNS
        row = {"spins": n, "rows": rows, "scale": scale, "seconds_per_column": seconds, "proven": proven}
        results.append({**row, "nodes_per_column": nodes})
        print(
            f"n={n} rows={rows} κ={scale}: {seconds * 1e3:.2f} ms a column, {nodes:.0f} nodes, {proven} proven",
            flush=True,
        )
    settings = {"columns": COLUMNS, "threads": THREADS}
    target = Path(__file__).parents[1] / "results" / "exact_growth.json"
    write_json(target, {"made with": environment(), "settings": settings, "results": results})


if __name__ == "__main__":
    main()
