"""How much faster than Gurobi does `exact` prove the same optima?

Families of 16 to 32 spins and 128 columns, Gaussian and recorded in training, at several scales, side by side in one
run on two CPU threads; Gurobi solves a sample of the columns.

    python benchmarks/solvers/solver_claims.py        writes results/solver_claims.json
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import itertools
from functools import partial

import numpy as np
import torch

from benchmarks.solvers import peers, recorded
from qpsbgd.binary_map import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family
from qpsbgd_paper.framework.measurements import median_seconds, print_rows, publish

THREADS, COLUMNS = 2, 128


def exact_and_gurobi():
    """Layers of 128 columns by `exact`, a sample of the columns by Gurobi."""
    sample = np.linspace(0, COLUMNS - 1, 8).astype(int)
    for n, scale in itertools.product((16, 24, 32), (0.1, 0.5, 1.0, 8.0)):
        inputs, grads, gain = recorded.digits(n, COLUMNS)
        families = {
            "gaussian": random_family(n, COLUMNS, 2 * n, scale=scale, dtype=torch.float64),
            "recorded": binary_map(inputs.double(), grads.double(), gain=gain, scale=scale),
        }
        for rows, family in families.items():
            ours, solution = median_seconds(partial(make_solver("exact").solve, family), 3)
            part = peers.part_of(family, sample)
            theirs, answer = median_seconds(partial(make_solver("gurobi", time_limit=30).solve, part), 1, unmeasured=0)
            ours, theirs = ours / COLUMNS, theirs / len(sample)
            yield {
                "spins": n,
                "rows": rows,
                "scale": scale,
                "exact_seconds_per_column": ours,
                "gurobi_seconds_per_column": theirs,
                "times_faster": theirs / ours,
                "proven": bool(solution.proven_optimal.all()),
                "gurobi_proven": int(answer.proven_optimal.sum()),
                "same_optimum": bool((solution.energies[sample] <= answer.energies + 1e-6).all()),
            }


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    exact = {"against_gurobi": print_rows(exact_and_gurobi())}
    publish(__file__, settings={"threads": THREADS}, exact=exact)
