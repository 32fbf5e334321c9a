"""How long does the projection of a layer take on a GPU?

Descent from the sign vector with at most 64 flips, and `auto`, 784 → 512 at batch 100, from a family on the GPU to its
spins.

    python benchmarks/solvers/gpu.py [FILE]    writes results/gpu.json, or FILE; needs Triton
"""

from functools import partial

import torch

from qpsbgd.binary_map import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.measurements import median_seconds, print_rows, publish
from qpsbgd_qubo.solvers.search.landscape import sign_start
from qpsbgd_qubo.solvers.search.tensor_descent import local_search

BATCH, REPEATS = 100, 200


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


if __name__ == "__main__":
    settings = {"device": torch.cuda.get_device_name()}
    publish(__file__, settings=settings, projection=print_rows(projection()))
