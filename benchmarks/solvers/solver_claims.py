"""Is `qpsbgd.solvers` faster than what a user could pick instead, at energies no higher?

Side by side in one run, on two CPU threads:
1. MNIST's first layer 784 → 512 at batch 100, recorded in training: `auto` on all columns against a loop of
   dwave-samplers' simulated annealing (100 sweeps, 4 reads), timed on a sample of columns and scaled up: the calls, and
   of these the sampling alone, without what it takes to read the model and to make the answer.
2. `exact` against Gurobi on families of 16 to 32 spins, Gaussian and recorded, at several scales: the same optima, and
   how much faster.

    QPSBGD_DATA=… python benchmarks/solvers/solver_claims.py        writes benchmarks/results/solver_claims.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import itertools
from functools import partial

import numpy as np
import peers
import recorded
import torch

from qpsbgd.binary_map import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family
from qpsbgd_paper.framework.measurements import median_seconds, publish, shown

THREADS, SAMPLED, COLUMNS = 2, 16, 128


def wide_layer():
    """`auto` from rows to spins; the loop's seconds are scaled up to all columns."""
    inputs, grads, gain = recorded.mnist()
    columns, auto = np.linspace(0, 511, SAMPLED).astype(int), make_solver("auto")
    for scale in (0.5, 1.0, 8.0):
        make = partial(binary_map, inputs, grads, gain=gain, scale=scale)
        ours, solution = median_seconds(lambda make=make: auto.solve(make()), 3)
        sample, found = peers.part_of(make(), columns), peers.loop(peers.ANNEALING, make(), columns)
        theirs, inside = (each * 512 / SAMPLED for each in (found.seconds, found.inside))
        yield {
            "scale": scale,
            "columns_timed": SAMPLED,
            "auto_seconds": ours,
            "annealing_loop_seconds": theirs,
            "annealing_loop_seconds_in_sampler": inside,
            "times_faster": theirs / ours,
            "times_faster_than_sampler": inside / ours,
            "auto_mean_energy": sample.energies(solution.spins[:, columns]).mean().item(),
            "annealing_loop_mean_energy": sample.energies(found.spins).mean().item(),
        }


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
                "largest_difference": (solution.energies[sample] - answer.energies).abs().max().item(),
            }


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    wide, exact = shown(wide_layer()), {"against_gurobi": shown(exact_and_gurobi())}
    publish(__file__, settings={"threads": THREADS}, wide_layer=wide, exact=exact)
