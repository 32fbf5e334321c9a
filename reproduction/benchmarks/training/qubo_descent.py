"""Is a better answer of the QUBO a better network? `QuboDescent` by solvers from one flip to exact, and its controls.

    python benchmarks/training/qubo_descent.py [--tasks NAME …] [--methods NAME …] [--seeds N] [--seconds S]

Tasks are those of training.py, budgets in epochs, with `cifar-…` besides: CIFAR-10 shrunk to SIDE² pixels, in steps of
64 images, scored on 5,000 training images that no run trains on (QPSBGD_DATA/cifar-10/images.npz, as networks.py).
Controls: "no-couplings" drops all but the diagonal of A, so that the answer is a sign; "real-minimiser" is the sign of
w₀ − (A + 10 I)⁻¹ F / c. `energies` are the shares of the best known drop in energy that each solver reaches on the same
problems, those of every 50th step of a run by "descent". Writes results/qubo_descent.json.
"""

import argparse
import os
import time
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.training.kept_rows import Rows
from benchmarks.training.training_parts import accuracy, dense, mnist
from benchmarks.training.training_tasks import TASKS
from torch import nn

from qpsbgd import QPSBGD, Bop, QuboDescent, StraightThrough
from qpsbgd.nn import convert
from qpsbgd.projections.system import inverse
from qpsbgd.projections.weights import Step, Weights
from qpsbgd.solvers import make_solver
from qpsbgd_paper.experiments.cifar import DEVIATION, MEAN, resnet
from qpsbgd_qubo.solvers.search.descent import Descent

FILE = Path(__file__).parents[2] / "results" / "qubo_descent.json"
SIDE, BATCH, TRAINING_IMAGES = {"resnet20": 8, "resnet8": 16, "vgg": 32}, 64, 25_000

ALONE = Descent(warm=True)


@dataclass(frozen=True)
class Uncoupled(Weights):
    """Weights whose model has no couplings: every spin answers alone."""

    solver: Descent = ALONE

    def matrix(self, gram, blocks):
        return torch.diag_embed(super().matrix(gram, blocks).diagonal(dim1=-2, dim2=-1))


class SignedStep(Step):
    """A step to the sign of the real minimiser."""

    def descend(self, solver):
        if self.state.inverse is None:
            self.state.inverse = inverse(self.state.gram, 10.0, self.blocks)
        self.spins = torch.where(self.start - self.slopes @ self.state.inverse >= 0, 1.0, -1.0)


@dataclass(frozen=True)
class RealMinimiser(Weights):
    """The signs of the model's minimiser over the reals."""

    step = SignedStep
    solver: Descent = ALONE


def controlled(projection, model, **options):
    """QPSBGD with a projection of weights, and QuboDescent's other options."""
    return QPSBGD(model, 0.02, projection, momentum=0.98, clip=None, relative=False, **options)


METHODS = {
    "descent": QuboDescent,
    **{f"flips-{k}": partial(QuboDescent, solver=Descent(max_flips=k, warm=True)) for k in (1, 3, 8, 64)},
    **{f"window-{k}": partial(QuboDescent, window=k) for k in (16, 32)},
    "descent-.005": partial(QuboDescent, flips=0.005),
    "descent-.99": partial(QuboDescent, memory=0.99),
    **{f"delta-{d}": partial(controlled, Weights(delta=d)) for d in (0, 1, 3, 10)},
    "no-couplings": partial(controlled, Uncoupled()),
    "real-minimiser": partial(controlled, RealMinimiser()),
    "default": QPSBGD,
    "spins": partial(QPSBGD, projection="spins"),
    "muon": partial(StraightThrough, update="muon"),
    "bop": partial(Bop, lr=1e-3, threshold=1e-6),
}
"""Optimisers of a model; they share the number of steps, and train everything else too."""
SOLVERS = {
    **{f"{k} flips": Weights(solver=Descent(max_flips=k, warm=True)) for k in (1, 3, 8, 24)},
    "no limit": Weights(solver=Descent(warm=True)),
    **{f"window of {k}, exact": Weights(solver="exact", window=k) for k in (16, 32)},
}


@cache
def shrunk(side):
    """Images of CIFAR-10 and their classes, to train and to score, each pixel the mean of a square."""
    found = np.load(Path(os.environ["QPSBGD_DATA"]) / "cifar-10" / "images.npz")
    x, y = (torch.from_numpy(found[name]) for name in ("x_train", "y_train"))

    def prepared(images):
        images = F.adaptive_avg_pool2d(images.permute(0, 3, 1, 2).float(), side)
        return (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]

    first = slice(TRAINING_IMAGES)
    return prepared(x[first]), y[first].long(), prepared(x[-5000:]), y[-5000:].long()


def vgg(widths=(32, 32, 64, 64)):
    layers = []
    for number, (n, m) in enumerate(pairwise((3, *widths))):
        layers += [nn.Conv2d(n, m, 3, 1, 1, bias=False), *([nn.MaxPool2d(2)] if number % 2 else [])]
        layers += [nn.BatchNorm2d(m), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 8 * 8, 10))


NETWORKS = {"resnet20": partial(resnet, 20), "resnet8": partial(resnet, 8), "vgg": vgg}


def cifar_run(network, make, *, steps, seed):
    """Train a converted network: score, and the mean loss of every tenth of the run."""
    x, y, others, wanted = shrunk(SIDE[network])
    torch.manual_seed(seed)
    model = convert(NETWORKS[network](), first=False, last=False)
    optimizer, losses = make(model, steps=steps, real=True), []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        mirrored = torch.rand(BATCH, 1, 1, 1, generator=generator) < 0.5
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.where(mirrored, x[rows].flip(3), x[rows])), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        score = accuracy(model, others, wanted)
    return {"score": score, "losses": [float(np.mean(part)) for part in np.array_split(losses, 10)]}


def run(job):
    """The row of one run, with the seconds of CPU that it took."""
    torch.set_num_threads(1)
    task, method, begun = job["task"], METHODS.get(job["method"]), time.process_time()
    if job["method"] == "energies":
        row = energies(job)
    elif job["method"] in CHIP:
        name, options = CHIP[job["method"]]
        row = by_windows(job, make_solver(name, **options))
    elif task.startswith("cifar-"):
        row = cifar_run(task.removeprefix("cifar-"), method, steps=job["budget"], seed=job["seed"])
    else:

        def make(model, steps):
            return method(model, steps=steps, real=True)

        scale = {"scale": "magnitude"} if job["method"] == "muon" else {}
        row = TASKS[task].run(make, budget=job["budget"], seed=job["seed"], choosing=False, **scale)
        row.pop("clock", None)
    return job | row | {"cpu_seconds": round(time.process_time() - begun, 1)}


def by_windows(job, solver):
    """Digits trained whole, for `budget` epochs, or MNIST for `budget` steps, by windows of 16 weights.

    MNIST's score is the loss of all training images after the steps.
    """
    counts = dict.fromkeys(("steps", "submissions", "qpu_seconds"), 0)

    def make(model, steps):
        optimizer = QuboDescent(model, window=16, solver=solver, steps=steps, real=True)

        def count(*_):
            counts["steps"] += 1
            for name in ("submissions", "qpu_seconds"):
                counts[name] += optimizer.solutions[0].stats.get(name, 0)

        optimizer.register_step_post_hook(count)
        return optimizer

    if job["task"] == "digits":
        return TASKS["digits"].run(make, budget=job["budget"], seed=job["seed"], choosing=False) | counts
    x, y, *_ = mnist(False)
    torch.manual_seed(job["seed"])
    model = dense([784, 512, 512, 10])
    optimizer = make(model, job["budget"])
    with torch.no_grad():
        before = F.cross_entropy(model(x), y).item()
    for rows in torch.randint(len(x), (job["budget"], 100), generator=torch.Generator().manual_seed(job["seed"])):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return {"before": before, "score": F.cross_entropy(model(x), y).item()} | counts


CHIP = {"chip": ("virtual-qpu", {"num_reads": 10, "copies": 1}), "chip-exact": ("exact", {})}
"""Solvers of windows on the virtual chip, and exact ones to compare with: names and options."""


def energies(job):
    """Shares of the best known drop in energy, by solver, on the problems of a run by "descent"."""
    torch.set_num_threads(1)
    drops = {name: [] for name in SOLVERS}

    def compare(optimizer):
        for group, layer in optimizer._members():
            inputs = optimizer._inputs(group, layer, None)
            inputs = replace(inputs, grad=inputs.state.gradient, momentum=0.0)  # F as it is
            for name, projection in SOLVERS.items():
                step = projection.step.of(projection, inputs)
                projection.solve([step])
                moved = step.spins - step.start
                drops[name].append(-(moved * (step.slopes + 0.5 * moved @ step.matrix)).sum().item())

    def make(model, steps):
        optimizer, made = QuboDescent(model, steps=steps, real=True), [0]

        def after(*_):
            made[0] += 1
            if made[0] % 50 == 0 and made[0] < steps:
                compare(optimizer)

        optimizer.register_step_post_hook(after)
        return optimizer

    TASKS[job["task"]].run(make, budget=job["budget"], seed=job["seed"], choosing=False)
    table = np.array([drops[name] for name in SOLVERS])
    shares = (table / table.max(0)).mean(1)
    return {"problems": table.shape[1], "shares": dict(zip(SOLVERS, map(float, shares), strict=True))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", default=["digits", "mnist-dense", "adult-10"])
    parser.add_argument("--budgets", nargs="+", type=int, default=[1])
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, "energies", *CHIP], default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=36_000)
    parser.add_argument("--into", type=Path, default=FILE)
    options = parser.parse_args()
    jobs = [
        {"task": task, "method": method, "budget": budget, "seed": seed}
        for seed in options.seeds
        for task in options.tasks
        for budget in options.budgets
        for method in options.methods
    ]
    rows = Rows(options.into, seconds=options.seconds)
    rows.measured(run, jobs)


if __name__ == "__main__":
    main()
