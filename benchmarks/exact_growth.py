"""How does the time of a proven optimum grow with the number of spins?

Gaussian inputs and gradients, batch 2n and n/2, 16 columns, on two threads; the time is that of the whole family
divided by its columns. A small family is solved first, so that nothing is compiled while the clock runs.

    python benchmarks/exact_growth.py        writes benchmarks/results/exact_growth.json
"""

import time
from pathlib import Path

import torch

from qpsbgd.experiments.runs import environment, write_json
from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family

SIZES, COLUMNS, SCALE, THREADS = (10, 16, 24, 32, 40, 48), 16, 1.0, 2


def main():
    torch.set_num_threads(THREADS)
    solver = make_solver("exact", node_limit=1_000_000_000)
    solver.solve(random_family(11, COLUMNS, 11))
    results = []
    for rows_per_spin in (2.0, 0.5):
        for n in SIZES:
            family = random_family(n, COLUMNS, round(rows_per_spin * n), scale=SCALE, seed=n)
            start = time.perf_counter()
            solution = solver.solve(family)
            seconds = (time.perf_counter() - start) / COLUMNS
            proven = int(solution.proven_optimal.sum())
            results.append(
                {"spins": n, "rows": round(rows_per_spin * n), "seconds_per_column": seconds, "proven": proven}
                | {"nodes_per_column": solution.stats.get("nodes", 0) / COLUMNS}
            )
            print(
                f"n={n} rows={results[-1]['rows']}: {seconds * 1e3:.2f} ms a column, {proven} of {COLUMNS} proven",
                flush=True,
            )
    settings = {"columns": COLUMNS, "scale": SCALE, "threads": THREADS}
    target = Path(__file__).parent / "results" / "exact_growth.json"
    write_json(target, {"made with": environment(), "settings": settings, "results": results})


if __name__ == "__main__":
    main()
