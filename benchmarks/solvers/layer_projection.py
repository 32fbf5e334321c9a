"""How much faster is a whole layer projected by `auto` than by a loop of simulated annealing over its columns?

Both sides get the same QUBO family (128 inputs, 128 columns, batch 64) in the same run: `auto` on two threads, and
dwave-samplers' SimulatedAnnealingSampler with 100 sweeps and 4 reads, one column after the other; both the time of
the calls and that of the sampling alone, without reading models and making answers, are kept. Energies are compared in
double precision. Families: Gaussian inputs, and activations recorded while a network trains on digits.

    python benchmarks/solvers/layer_projection.py        writes benchmarks/results/layer_projection.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

from functools import partial

import peers
import recorded
import torch

from qpsbgd.binary_map import binary_map
from qpsbgd_paper.framework.measurements import publish, shown

WIDTH, BATCH, SEED, THREADS, REPEATS = 128, 64, 0, 2, 15
SCALES = (0.5, 1.0, 2.0, 8.0)


def measured():
    generator = torch.Generator().manual_seed(SEED)
    gaussian = [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2)]
    for name, rows in (("gaussian", gaussian), ("recorded", recorded.digits(WIDTH, WIDTH)[:2])):
        for scale in SCALES:
            make = partial(binary_map, *rows, gain=WIDTH**-0.5, scale=scale)
            yield {"rows": name, "scale": scale, **peers.beside_annealing(make, range(WIDTH), REPEATS)}


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    settings = {"width": WIDTH, "batch": BATCH, "seed": SEED, "threads": THREADS, "repeats": REPEATS}
    publish(__file__, settings=settings, results=shown(measured()))
