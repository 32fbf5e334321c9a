"""Is `qpsbgd.solvers` faster than what a user could pick instead, at energies no higher?

Side by side in one run, on two CPU threads:
1. MNIST's first layer 784 → 512 at batch 100, recorded in training: `auto` on all columns against a loop of
   dwave-samplers' simulated annealing (100 sweeps, 4 reads), timed on a sample of columns and scaled up: the calls, and
   of these the sampling alone, without what it takes to read the model and to make the answer.
2. `exact` against Gurobi on families of 16 to 32 spins, Gaussian and recorded, at several scales: the same optima, and
   how much faster; and 48 spins.

    QPSBGD_DATA=… python benchmarks/solvers/solver_claims.py        writes benchmarks/results/solver_claims.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import itertools
import time
from pathlib import Path

import numpy as np
import peers
import recorded
import torch

from qpsbgd.binary_map import binary_map
from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family
from qpsbgd_paper.framework.result_files import environment, write_json

THREADS, SAMPLED = 2, 16
AUTO = make_solver("auto")
TARGET = Path(__file__).parents[1] / "results" / "solver_claims.json"


def timed(work, repeats=3):
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2], result


def wide_layer():
    inputs, grads, gain = recorded.mnist()
    results = []
    for scale in (0.5, 1.0, 8.0):
        ours, solution = timed(lambda s=scale: AUTO.solve(binary_map(inputs, grads, gain=gain, scale=s)))
        family = binary_map(inputs, grads, gain=gain, scale=scale)
        columns = np.linspace(0, 511, SAMPLED).astype(int)
        sample = QuboFamily(family.quadratic, family.linear[:, columns], family.offset[columns]).to(torch.float64)
        seconds, inside, spins = peers.loop(peers.ANNEALING, family, columns)
        theirs, inside = (each * 512 / SAMPLED for each in (seconds, inside))
        results.append(
            {
                "scale": scale,
                "auto_seconds": ours,
                "annealing_loop_seconds": theirs,
                "annealing_loop_seconds_in_sampler": inside,
                "columns_timed": SAMPLED,
                "times_faster": theirs / ours,
                "times_faster_than_sampler": inside / ours,
                "auto_mean_energy": sample.energies(solution.spins[:, columns]).mean().item(),
                "annealing_loop_mean_energy": sample.energies(spins).mean().item(),
            }
        )
        print("784 × 512", results[-1], flush=True)
    return results


def exact_and_gurobi():
    """Layers of 128 columns by `exact`, a sample of the columns by Gurobi."""
    columns = 128
    sample = np.linspace(0, columns - 1, 8).astype(int)
    results = []
    for n, scale in itertools.product((16, 24, 32), (0.1, 0.5, 1.0, 8.0)):
        inputs, grads, gain = recorded.digits(n, columns)
        families = {
            "gaussian": random_family(n, columns, 2 * n, scale=scale, dtype=torch.float64),
            "recorded": binary_map(inputs.double(), grads.double(), gain=gain, scale=scale),
        }
        for rows, family in families.items():
            ours, solution = timed(lambda f=family: make_solver("exact").solve(f))
            part = QuboFamily(family.quadratic, family.linear[:, sample], family.offset[sample])
            start = time.perf_counter()
            theirs = make_solver("gurobi", time_limit=30).solve(part)
            seconds = time.perf_counter() - start
            results.append(
                {
                    "spins": n,
                    "rows": rows,
                    "scale": scale,
                    "exact_seconds_per_column": ours / columns,
                    "gurobi_seconds_per_column": seconds / len(sample),
                    "times_faster": (seconds / len(sample)) / (ours / columns),
                    "proven": bool(solution.proven_optimal.all()),
                    "gurobi_proven": int(theirs.proven_optimal.sum()),
                    "same_optimum": bool((solution.energies[sample] <= theirs.energies + 1e-6).all()),
                    "largest_difference": (solution.energies[sample] - theirs.energies).abs().max().item(),
                }
            )
            print("exact", results[-1], flush=True)
    family = random_family(48, 8, 96, dtype=torch.float64)
    slowest = 0.0
    for column in range(8):
        single = QuboFamily(family.quadratic, family.linear[:, [column]], family.offset[[column]])
        start = time.perf_counter()
        solution = make_solver("exact", node_limit=10**9).solve(single)
        slowest = max(slowest, time.perf_counter() - start)
        assert solution.proven_optimal.all()
    print(f"48 spins: slowest of 8 columns {slowest:.2f} s", flush=True)
    return {"against_gurobi": results, "slowest_of_8_columns_of_48_spins_seconds": slowest}


def main():
    torch.set_num_threads(THREADS)
    results = {"wide_layer": wide_layer(), "exact": exact_and_gurobi()}
    write_json(TARGET, {"made with": environment(), "settings": {"threads": THREADS}, **results})


if __name__ == "__main__":
    main()
