"""How much faster is a whole layer projected by `auto` than by a loop of simulated annealing over its columns?

Both sides get the same QUBO family (128 inputs, 128 columns, batch 64) in the same run: `auto` on two threads, and
dwave-samplers' SimulatedAnnealingSampler with 100 sweeps and 4 reads, one column after the other; both the time of
the calls and that of the sampling alone, without reading models and making answers, are kept. Energies are compared in
double precision. Families: Gaussian inputs, and activations recorded while a network trains on digits.

    python benchmarks/solvers/layer_projection.py        writes benchmarks/results/layer_projection.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import statistics
import time
from pathlib import Path

import peers
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.binary_map import binary_map
from qpsbgd.nn import BinaryLinear
from qpsbgd.nn.tape import taped
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.result_files import environment, write_json

WIDTH, BATCH, SEED, THREADS, REPEATS = 128, 64, 0, 2, 15
SCALES = (0.5, 1.0, 2.0, 8.0)


def gaussian_rows():
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def recorded_rows():
    """What the second layer of 64-128-128-10 sees in the 60th step on digits."""
    torch.manual_seed(SEED)
    pixels, digits = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
    layer = BinaryLinear(WIDTH, WIDTH)
    model = nn.Sequential(BinaryLinear(64, WIDTH), nn.Hardtanh(), layer, nn.Hardtanh(), BinaryLinear(WIDTH, 10))
    optimizer = QPSBGD(model)
    for _ in range(60):
        rows = torch.randint(0, len(inputs), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    with taped([layer]) as (tape,):
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
    record = tape.read()
    return record.inputs, record.output_grads


def projection(inputs, grads, scale):
    """Median seconds from rows to spins, building the family included, and the mean energy."""
    solver = make_solver("auto")
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        family = binary_map(inputs, grads, gain=WIDTH**-0.5, scale=scale)
        solution = solver.solve(family)
        seconds.append(time.perf_counter() - start)
    # The first call may compile.
    return statistics.median(seconds[1:]), family.to(torch.float64).energies(solution.spins).mean().item()


def main():
    torch.set_num_threads(THREADS)
    results = []
    for name, rows in (("gaussian", gaussian_rows()), ("recorded", recorded_rows())):
        for scale in SCALES:
            ours, our_energy = projection(*rows, scale)
            family = binary_map(*rows, gain=WIDTH**-0.5, scale=scale)
            theirs, inside, spins = peers.loop(peers.ANNEALING, family, range(WIDTH))
            their_energy = family.to(torch.float64).energies(spins).mean().item()
            results.append(
                {
                    "rows": name,
                    "scale": scale,
                    "auto_seconds": ours,
                    "annealing_loop_seconds": theirs,
                    "annealing_loop_seconds_in_sampler": inside,
                    "times_faster": theirs / ours,
                    "times_faster_than_sampler": inside / ours,
                    "auto_mean_energy": our_energy,
                    "annealing_loop_mean_energy": their_energy,
                }
            )
            print(
                f"{name:9} κ={scale:<4} auto {ours * 1e3:6.1f} ms, annealing loop {theirs:5.2f} s: "
                f"{theirs / ours:5.0f} times faster, {inside / ours:4.0f} than the sampling alone; "
                f"mean energy {our_energy:.6f} against {their_energy:.6f}",
                flush=True,
            )
    settings = {"width": WIDTH, "batch": BATCH, "seed": SEED, "threads": THREADS, "repeats": REPEATS}
    target = Path(__file__).parents[1] / "results" / "layer_projection.json"
    write_json(target, {"made with": environment(), "settings": settings, "results": results})


if __name__ == "__main__":
    main()
