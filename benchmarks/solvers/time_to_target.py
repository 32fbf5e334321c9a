"""How good is the answer after how long? The gap to the lowest known energy against time, one thread.

`auto` and dwave-samplers' annealing and tabu search on four instances of `general_qubo.py`, with limits from 0.1 to 4
seconds of the processor, measured as there. The annealing, which has no seed there, runs twice, with as many sweeps as
fit into the time.

    python benchmarks/solvers/time_to_target.py        writes benchmarks/results/time_to_target.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import general_qubo
import numpy as np
import torch
from timed import auto, load_all, model_of, tabu

from qpsbgd_paper.framework.measurements import publish, shown

NAMES = ("bqp 2500, 10 %", "random 2000, degree 20", "torus ±1 2000", "planar ±1 7000")
SOLVERS = {"auto": auto, "dwave SA": general_qubo.PEERS["dwave SA"], "dwave tabu": tabu}
LIMITS, REPEATS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0), 2


def measured():
    for name in NAMES:
        problem = {**general_qubo.DENSE, **general_qubo.GRAPHS}[name]()
        model = model_of(problem)
        for solver, solve in SOLVERS.items():
            if problem.num_spins > general_qubo.LARGEST.get(solver, problem.num_spins):
                continue
            for limit in LIMITS * (REPEATS if solver == "dwave SA" else 1):
                spins, taken = solve(problem, model, limit)
                row = {"instance": name, "solver": solver, "limit": limit, "seconds": taken}
                yield {**row, "energy": float(problem.energy(np.round(spins)))}


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_all()
    publish(__file__, settings={"threads": 1}, results=shown(measured()))
