"""How does the time of a proven optimum grow with the number of spins?

Gaussian inputs and gradients, batch 2n and n/2, scales 0.2 and 1, 16 columns, two threads; the time is the family's
divided by its columns. A small family is solved first, so that nothing is compiled while the clock runs.

    python benchmarks/solvers/exact_growth.py        writes benchmarks/results/exact_growth.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import itertools
from functools import partial

import torch

from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family
from qpsbgd_paper.framework.measurements import median_seconds, publish, shown

SIZES, SCALES, COLUMNS, THREADS = (16, 24, 32, 40, 48), (0.2, 1.0), 16, 2


def measured():
    solver = make_solver("exact", node_limit=1_000_000_000)
    solver.solve(random_family(20, COLUMNS, 20, scale=0.2))
    for scale, rows_per_spin, n in itertools.product(SCALES, (2.0, 0.5), SIZES):
        rows = round(rows_per_spin * n)
        family = random_family(n, COLUMNS, rows, scale=scale, seed=n)
        seconds, solution = median_seconds(partial(solver.solve, family), 1, unmeasured=0)
        row = {"spins": n, "rows": rows, "scale": scale, "seconds_per_column": seconds / COLUMNS}
        proven, nodes = int(solution.proven_optimal.sum()), solution.stats["nodes"] / COLUMNS
        yield {**row, "proven": proven, "nodes_per_column": nodes}


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    publish(__file__, settings={"columns": COLUMNS, "threads": THREADS}, results=shown(measured()))
