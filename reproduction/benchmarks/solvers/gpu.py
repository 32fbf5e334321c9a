"""How long do the solvers for a GPU take: the projection of a layer, and thousands of annealing chains of one problem?

Projection: descent from the sign vector with at most 64 flips, and `auto`, 784 → 512 at batch 100, from a family on the
GPU to its spins.
Chains: a QUBO after Beasley with 2500 variables (density 10 %, as bqp2500) and a random graph of 2000 nodes and 19990
edges (as G22 of the G-set), the instances of `general_qubo.py`. The time is that of one call, from the problem in
compressed rows to its best spins, colouring and transfers included, after a first call that compiles.

    python benchmarks/solvers/gpu.py [FILE]    writes results/gpu.json, or FILE; needs Triton
"""

import time
from functools import partial

import torch

from benchmarks.solvers.instances import DENSE, GRAPHS
from qpsbgd.binary_map import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.measurements import median_seconds, print_rows, publish
from qpsbgd_qubo import solve
from qpsbgd_qubo.solvers.search.landscape import sign_start
from qpsbgd_qubo.solvers.search.tensor_descent import local_search

BATCH, REPEATS = 100, 200
INSTANCES = ("bqp 2500, 10 %", "random 2000, degree 20")
RUNS = [(chains, sweeps) for chains in (4096, 8192) for sweeps in (100, 200, 400, 800)]
SEEDS = 3


def median_milliseconds(work, repeats=REPEATS):
    def wait():
        work()
        torch.cuda.synchronize()

    return 1e3 * median_seconds(wait, repeats, unmeasured=10)[0]


def projection():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.relu(torch.randn(BATCH, 784, generator=generator) + 0.5).cuda()
    grads = torch.randn(BATCH, 512, generator=generator).cuda()
    for scale in (0.5, 1.0, 8.0):
        family = binary_map(inputs, grads, scale=scale)

        def descent(family=family):
            return local_search(family, sign_start(family), max_flips=64)

        yield {
            "scale": scale,
            "descent_64_flips_ms": median_milliseconds(descent),
            "auto_ms": median_milliseconds(partial(make_solver("auto").solve, family)),
        }


def anneal(name, problem, chains, sweeps, seeds=SEEDS):
    """Seconds and energies of some calls with different seeds."""
    seconds, energies = [], []
    for seed in range(seeds):
        begin = time.perf_counter()
        answer = solve(problem, solver="gpu-annealing", chains=chains, sweeps=sweeps, seed=seed)
        seconds.append(time.perf_counter() - begin)
        energies.append(answer.value)
    return {"instance": name, "chains": chains, "sweeps": sweeps, "seconds": seconds, "energies": energies}


def chains():
    for name in INSTANCES:
        problem = (DENSE | GRAPHS)[name]()
        anneal(name, problem, 32, 1, seeds=1)  # compiles
        yield from (anneal(name, problem, *run) for run in RUNS)


if __name__ == "__main__":
    settings = {"device": torch.cuda.get_device_name(), "seeds": SEEDS}
    publish(__file__, settings=settings, projection=print_rows(projection()), chains=print_rows(chains()))
