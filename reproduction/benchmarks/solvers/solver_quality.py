"""Which solver is how far from the best known energy after how much time, on the QUBO families that training makes?

Families: recorded from MNIST (784 × 512), Adult (128 × 128) and Cora (1433 × 64) at scales 0.5, 1 and 8, and Gaussian
ones of several sizes. Ours solve whole families on two threads; peers solve a sample of columns one after the other,
since that is how they are used. The gap is that of the mean energy over the sampled columns; sign(−s) has gap 1.

    QPSBGD_DATA=… python benchmarks/solvers/solver_quality.py

writes results/solver_quality.json; benchmarks/documents.py draws docs/figures/solvers.svg from it.
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
from qpsbgd_qubo.solvers.search.landscape import sign_start

THREADS, SAMPLED = 2, 3
OURS = {
    "auto": make_solver("auto"),
    "descent": make_solver("descent"),
    "annealing": make_solver("annealing"),
    "annealing, 4 reads": make_solver("annealing", reads=4, sweeps=40),
}


def families():
    for name, record in (("mnist", recorded.mnist), ("adult", recorded.adult), ("cora", recorded.cora)):
        inputs, grads, gain = record()
        for scale in (0.5, 1.0, 8.0):
            yield f"{name} κ={scale:g}", binary_map(inputs, grads, gain=gain, scale=scale)
    for (n, m), rows in itertools.product(((16, 512), (64, 64), (256, 64), (1024, 16)), (16, 256)):
        yield f"gaussian {n}×{m}, batch {rows}", random_family(n, m, rows, scale=0.5)


def measure(family):
    """Per solver: milliseconds per column and the mean energy of the sampled columns."""
    columns = np.unique(np.linspace(0, family.num_columns - 1, SAMPLED).astype(int))
    bare = family.without_offset()
    sample = peers.part_of(bare, columns)
    points = {"sign(−s)": (0.0, sample.energies(sign_start(sample)).mean().item())}
    for name, solver in OURS.items():
        seconds, solution = median_seconds(partial(solver.solve, bare), 1)
        energy = sample.energies(solution.spins[:, columns]).mean().item()
        points[name] = 1e3 * seconds / family.num_columns, energy
    for name, solve in peers.QUICK.items():
        seconds, spins = peers.loop(solve, sample, range(len(columns)))
        points[name] = 1e3 * seconds / len(columns), sample.energies(spins).mean().item()
    return points


def rows():
    for name, family in families():
        points = measure(family)
        best = min(energy for _, energy in points.values())
        span = max(points["sign(−s)"][1] - best, 1e-12)
        solvers = {
            key: {"ms_per_column": ms, "mean_energy": energy, "gap": (energy - best) / span}
            for key, (ms, energy) in points.items()
        }
        yield {"family": name, "sampled_columns": SAMPLED, "solvers": solvers}


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    publish(__file__, settings={"threads": THREADS}, results=print_rows(rows()))
