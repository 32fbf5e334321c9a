"""Are the default rates right? Scores at 1/4 to 4 times the default rate, on networks that differ much.

Networks 64-128-10 (digits), ten layers (Adult), 16-4-4-2 (pairs of MNIST digits), 784-128-10 and a small CNN (MNIST),
128 to 280 steps each, a cosine to zero. The ridge, the spins and BinaryConnect with Adam; the ridge also with 1/4
and 4 times its default δ; ProxQuant's lr = 0.1 on digits, constant and with the cosine. The score is accuracy on rows
that training does not see, of Adult the training loss. The regret of a default is what the best factor gains on it, in
pairs of the same seed; the best of several is a little too good by chance, so small regrets mean nothing.

    python benchmarks/default_rates.py [FILE]        writes benchmarks/results/default_rates.json, or FILE; about ten
                                                     minutes on one core; data through QPSBGD_DATA
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from training import TASKS, Images, dense, mnist

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant
from qpsbgd.nn import BinaryConv2d, BinaryLinear
from qpsbgd.projections import system
from qpsbgd_paper.experiments.mnist import PAIRS, split
from qpsbgd_paper.framework.claims import difference_of
from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_paper.framework.training import BinaryMLP

SEEDS = 3
FACTORS = (0.25, 0.5, 1, 2, 4)
PENALTY_FACTORS = (0.25, 1, 4)
METHODS = {
    "ridge": lambda model, steps: QPSBGD(model, projection="ridge", steps=steps),
    "spins": lambda model, steps: QPSBGD(model, projection="spins", steps=steps),
    "bc-adam": lambda model, steps: BinaryConnect(model, steps=steps),
}
PROXQUANT = {
    "proxquant": lambda model, steps: ProxQuant(model, steps=steps),
    "proxquant, cosine": lambda model, steps: ProxQuant([{"params": model, "steps": steps}], rate=2 / steps**2),
}


def part_of_mnist(choosing):
    """10,000 images, and 5,000 others of the training set to score on."""
    inputs, targets, *_ = mnist(False)
    return inputs[:10000], targets[:10000], inputs[50000:55000], targets[50000:55000]


def small_convolutional():
    """3 × 3 convolutions 1 → 8 → 16 with pooling, and a linear layer 784 → 10."""
    layers = [nn.Unflatten(1, (1, 28, 28))]
    for n, m in ((1, 8), (8, 16)):
        layers += [BinaryConv2d(n, m, 3, padding=1), nn.Hardtanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), BinaryLinear(784, 10))


@dataclass(frozen=True)
class Pairs:
    """The paper's 16-4-4-2 network on 500 images of two digits, mean over its pairs; `budget` steps of 100 images."""

    higher: bool = True

    def run(self, make, *, budget, seed, choosing):
        return {"score": sum(self._run(pair, make, budget, seed) for pair in PAIRS) / len(PAIRS)}

    def _run(self, pair, make, steps, seed):
        inputs, targets, other_inputs, other_targets = split(pair, seed=seed, choosing=False)
        torch.manual_seed(seed)
        model = BinaryMLP([16, 4, 4, 2], gain="fan_in", constant=True)
        optimizer = make(model, steps)
        for rows in torch.randint(len(inputs), (steps, 100)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            return (model(other_inputs).argmax(1) == other_targets).double().mean().item()


NETWORKS = {
    "64-128-10, digits": (TASKS["digits"], 8),
    "ten layers, Adult": (TASKS["adult-10"], 4),
    "16-4-4-2, MNIST pairs": (Pairs(), 200),
    "784-128-10, MNIST": (Images(partial(dense, [784, 128, 10]), part_of_mnist, batch=50), 1),
    "CNN, MNIST": (Images(small_convolutional, part_of_mnist, batch=50), 1),
}
"""Tasks and their budgets: 128 to 280 steps."""


def scaled(make, factor):
    """The optimiser with `factor` times its learning rate."""

    def made(model, steps):
        optimizer = make(model, steps)
        for group in optimizer.param_groups:
            group["lr"] *= factor
        return optimizer

    return made


def scores(network, make):
    task, budget = NETWORKS[network]
    return [task.run(make, budget=budget, seed=seed, choosing=True)["score"] for seed in range(SEEDS)]


def compared(network, method, option, found):
    """The scores by factor, the best factor, and what it gains on the default."""
    better = 1 if NETWORKS[network][0].higher else -1
    best = max(found, key=lambda factor: (round(better * sum(found[factor]), 9), factor == 1))
    gap, noise = difference_of(found[best], found[1])
    row = {"network": network, "method": method, "option": option, "higher is better": better == 1}
    row |= {"scores": {f"{factor:g}": values for factor, values in found.items()}}
    row |= {"best factor": best, "regret": abs(gap), "noise": noise}
    means = " ".join(f"{factor:g}: {sum(values) / SEEDS:.4f}" for factor, values in found.items())
    print(f"{network:22} {method:24} {option:8} {means}  regret {row['regret']:.4f} ± {noise:.4f}", flush=True)
    return row


def main():
    torch.set_num_threads(1)
    rows = []
    for network in NETWORKS:
        for method, make in {**METHODS, **(PROXQUANT if "digits" in network else {})}.items():
            found = {factor: scores(network, scaled(make, factor)) for factor in FACTORS}
            rows.append(compared(network, method, "lr", found))
        found = {}
        for factor in PENALTY_FACTORS:
            with patch.object(system, "penalty_of", partial(times, system.penalty_of, factor)):
                found[factor] = scores(network, METHODS["ridge"])
        rows.append(compared(network, "ridge", "ridge", found))
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "default_rates.json"
    write_json(target, {"made with": environment(), "settings": {"seeds": SEEDS}, "rows": rows})


def times(function, factor, *args):
    return factor * function(*args)


if __name__ == "__main__":
    main()
