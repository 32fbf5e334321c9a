"""How long does the projection of a layer take on a GPU?

Descent from the sign vector with at most 64 flips, 784 → 512 at batch 100, from a family on the GPU to its spins.

    python benchmarks/solvers/gpu.py [FILE]        writes benchmarks/results/gpu.json, or FILE
"""

from functools import partial

import torch

from qpsbgd.binary_map import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.measurements import median_seconds, publish, shown
from qpsbgd_qubo.solvers.search.descent import improved
from qpsbgd_qubo.solvers.search.landscape import sign_start

BATCH, REPEATS = 100, 200


def median_milliseconds(work, repeats=REPEATS):
    def waited():
        work()
        torch.cuda.synchronize()

    return 1e3 * median_seconds(waited, repeats, unmeasured=10)[0]


def rows(n, m, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.relu(torch.randn(BATCH, n, generator=generator) + 0.5)
    return inputs.cuda(), torch.randn(BATCH, m, generator=generator).cuda()


def projection():
    inputs, grads = rows(784, 512)
    for scale in (0.5, 1.0, 8.0):
        make = partial(binary_map, inputs, grads, scale=scale)
        family = make()

        def descent(family=family):
            return improved(family, sign_start(family), max_flips=64)

        yield {
            "scale": scale,
            "path": descent().stats["path"],
            "descent_64_flips_ms": median_milliseconds(descent),
            "auto_ms": median_milliseconds(partial(make_solver("auto").solve, family)),
            "binary_map_ms": median_milliseconds(make),
        }


if __name__ == "__main__":
    publish(__file__, projection=shown(projection()))
