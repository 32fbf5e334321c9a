"""A classifier's head of K bits per weight on frozen random features: QUBOs that share one Gram matrix.

    python benchmarks/training/frozen_features.py [task=digits seed=0 …]

Atallah and Herrman (Layer-wise QUBO-Based Training of CNN Classifiers for Quantum Annealing, 2026) keep the random
convolutions of a CNN and give the weights of the head K bits, with one QUBO per class. Here the head is the
least-squares fit of targets ±1: with weights w = h Σₖ 2ᵏ sₖ every class is a column of one family of K · n spins.
Single flips, then tabu moves, start at the rounded real solution; each answer has the best h of a grid, by the fit.
Features are 16 random 3 × 3 convolutions, ReLU, and means over 4 × 4 parts of the image; of digits, 128 random ReLUs.
Writes results/frozen_features.json.
"""

import time

import torch
import torch.nn.functional as F
from benchmarks.study import study
from benchmarks.training.training_parts import digits, mnist

from qpsbgd_qubo import QuboFamily
from qpsbgd_qubo.solvers.search.single_flips import local_search

BITS = (1, 2, 4, 8, 12, 20)
SHARES = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""The largest weight of K bits, in parts of the largest real one."""
DATA = {"digits": digits, "mnist": mnist}


def features(task, images):
    """Random features of images, with a constant one."""
    if task == "digits":
        mapped = F.relu(images @ torch.randn(images.shape[1], 128) / images.shape[1] ** 0.5)
    else:
        kernels = torch.randn(16, 1, 3, 3) / 3
        parts = [F.relu(F.conv2d(part.reshape(-1, 1, 28, 28), kernels)) for part in images.split(5000)]
        mapped = torch.cat([F.adaptive_avg_pool2d(part, 4).flatten(1) for part in parts])
    return torch.cat([mapped, torch.ones(len(mapped), 1)], 1).double()


def family_of(gram, products, steps, bits):
    """½ wᵀ G w − pᵀ w for every class, over w = h Σₖ 2ᵏ sₖ, spins ordered by bit."""
    powers = steps * 2.0 ** torch.arange(bits, dtype=gram.dtype)
    quadratic = torch.kron(torch.outer(powers, powers), gram) / 2
    linear = -torch.kron(powers[:, None], products)
    return QuboFamily(quadratic.numpy(), linear.numpy())


def spins_of(weights, step, bits):
    """The spins of the nearest weights h Σₖ 2ᵏ sₖ, (bits · n, classes)."""
    most = 2**bits - 1
    level = ((weights / step + most) / 2).round().clamp(0, most).long()
    return torch.cat([2 * ((level >> bit) & 1) - 1 for bit in range(bits)]).double()


def weights_of(spins, step, bits):
    return step * sum(2**bit * part for bit, part in enumerate(torch.as_tensor(spins).double().chunk(bits)))


def run(job):
    """Test accuracies of the real head, of rounding, and of the family's answers from there, and seconds."""
    torch.manual_seed(job["seed"])
    x, y, others, wanted = DATA[job["task"]](False)
    mapped = features(job["task"], torch.cat([x, others]))
    mapped, held = mapped[: len(x)], mapped[len(x) :]
    targets = 2.0 * F.one_hot(y, 10).double() - 1
    gram, products = mapped.T @ mapped / len(x), mapped.T @ targets / len(x)
    gram += 1e-4 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    real = torch.linalg.solve(gram, products)
    bits, row, answers = job["bits"], {"features": len(gram)}, {"real": real}

    def loss(weights):
        return (0.5 * weights * (gram @ weights) - products * weights).sum().item()

    def keep(name, weights):
        if name not in answers or loss(weights) < loss(answers[name]):
            answers[name] = weights

    begun = time.perf_counter()
    for share in SHARES:
        step = share * real.abs().max().item() / (2**bits - 1)
        start = spins_of(real, step, bits)
        keep("rounded", weights_of(start, step, bits))
        family = family_of(gram, products, step, bits)
        for name, patience in {"descent": 0, "tabu": 1000}.items():
            keep(name, weights_of(local_search(family, start.numpy(), patience=patience).spins, step, bits))
    row |= {"spins": bits * len(gram), "seconds": round(time.perf_counter() - begun, 2)}
    for name, weights in answers.items():
        score = ((held @ weights).argmax(1) == wanted).double().mean().item()
        row |= {name: round(score, 4), f"{name} loss": loss(weights)}
    return job | row


if __name__ == "__main__":
    jobs = [{"task": task, "bits": bits, "seed": seed} for task in DATA for bits in BITS for seed in range(3)]
    study("frozen_features", run, jobs)
