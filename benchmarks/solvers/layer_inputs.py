"""Does `auto` find energies as low as simulated annealing on every kind of layer input, and how long does it take?

Families of 100 columns with Gaussian, ±1, heavy-tailed (Student, 1.5 degrees of freedom), correlated (a shared factor,
rectified) and bag-of-words inputs (1 % ones), n from 64 to 1000, scales from 0.1 to 1, batch 64; and one of Cora's
shape, 1433 × 64. dwave-samplers' simulated annealing (100 sweeps, 4 reads) solves a sample of the columns one by one.

    python benchmarks/solvers/layer_inputs.py                writes benchmarks/results/layer_inputs.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

from functools import partial

import peers
import torch

from qpsbgd.binary_map import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd_paper.framework.measurements import median_seconds, publish, shown

COLUMNS, BATCH, REPEATS = 100, 64, 5
WIDTHS, SCALES = (64, 128, 256, 512, 784, 1000), (0.1, 0.3, 1.0)
WIDE = 512
"""Least width from which the loop solves ten columns instead of 25."""


def rows(kind, width, seed=0):
    """Inputs (64, width); in a bag of words every row has at least one word."""
    torch.manual_seed(seed)
    shape = (BATCH, width)
    if kind == "gaussian":
        return torch.randn(shape)
    if kind == "signs":
        return torch.randint(0, 2, shape) * 2.0 - 1
    if kind == "heavy-tailed":
        return torch.distributions.StudentT(1.5).sample(shape)
    if kind == "correlated":
        return torch.relu(torch.randn(BATCH, 1) + 0.5 * torch.randn(1, width) + 0.5 * torch.randn(shape) + 1)
    words = (torch.rand(shape) < 0.01).float()
    words[torch.arange(BATCH), torch.randint(0, width, (BATCH,))] = 1
    return words


KINDS = ("gaussian", "signs", "heavy-tailed", "correlated", "bag of words")


def measured(kind, width, columns, scale):
    sampled = 25 if width < WIDE else 10
    family = binary_map(rows(kind, width), torch.randn(BATCH, columns), gain=width**-0.5, scale=scale)
    seconds, solution = median_seconds(partial(make_solver("auto").solve, family), REPEATS)
    picked = torch.linspace(0, columns - 1, sampled).long()
    part, loop = peers.part_of(family, picked), peers.loop(peers.ANNEALING, family, picked)
    ours, theirs = part.energies(solution.spins[:, picked]), part.energies(loop.spins)
    # Relative to what the search can win: from the sign vector to the best known.
    signs = part.energies(torch.where(part.linear <= 0, 1.0, -1.0))
    span = (signs - torch.minimum(ours, theirs)).mean().clamp(min=1e-12)
    return {
        "kind": kind,
        "width": width,
        "columns": columns,
        "sampled": sampled,
        "scale": scale,
        "auto_seconds": seconds,
        "loop_seconds": loop.seconds * columns / sampled,
        "loop_seconds_in_sampler": loop.inside * columns / sampled,
        "auto_mean_energy": ours.mean().item(),
        "loop_mean_energy": theirs.mean().item(),
        "difference": ((ours - theirs).mean() / span).item(),
        "proven": solution.proven_optimal.float().mean().item(),
    }


if __name__ == "__main__":
    torch.set_num_threads(2)
    cases = [(kind, width, COLUMNS, scale) for kind in KINDS for width in WIDTHS for scale in SCALES]
    cases += [("bag of words", 1433, 64, scale) for scale in SCALES]
    publish(__file__, settings={"batch": BATCH}, results=shown(measured(*case) for case in cases))
