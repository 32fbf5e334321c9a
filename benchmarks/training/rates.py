"""Which rate, ridge, scale and warm-up serve every network? Whole training runs, part after part exchanged.

VGG-small, ResNet-20 and -56 on CIFAR-10, a character GPT of 6 layers and a narrow one of 12, and MNIST networks, some
with batch norm, have one-bit weights; CIFAR's first and last layers and the GPTs' heads stay real-valued. `BASE` has
every option, `JOBS` every run. One seed or two; scores are accuracies on the last 5,000 (CIFAR) or 10,000 (MNIST)
training images, which are held back, or held-out nats per character, where lower is better.

    python benchmarks/training/rates.py [--tasks NAME …] [--budget B] [--processes N] [--into FILE]

Needs QPSBGD_DATA with mnist, and cifar-10/images.npz as in networks.py; a GPU for all but tiny runs such as
`--tasks dense --budget 0.01`. Writes benchmarks/results/rates.json, anew after every run, and makes only the runs that
the file has not. rates_figure.py draws docs/figures/rates.svg.

The committed rows were made by earlier forms of this script, with optimisers of their own that had more directions than
the library keeps (its names for those that it has are the same), and another text: 128 characters, a random tenth of
the files held out. Their rows of gpt and gptdeep compare among themselves only. Rows of "vectors" are later ones.
"""

import argparse
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from binarize_networks import GPT
from kept_rows import Rows
from networks import cifar_task, classified, epochs_of, text_task, trained
from torch import nn
from training_parts import DEVICE, convolutional, dense, digits, mnist

from qpsbgd import QPSBGD
from qpsbgd.nn import convert
from qpsbgd.projections import Polar, Ridge
from qpsbgd.projections.system import normalized
from qpsbgd_paper.experiments.cifar import resnet, vgg_small

FILE = Path(__file__).parents[1] / "results" / "rates.json"
BASE = {"seed": 0, "warm": 0.1, "dir": "ridge", "lr": 0.03, "momentum": 0.9, "clip": 2.0, "delta": 10.0}
BASE |= {"scale": "mag", "real": 0.003}
"""The options, for which a job may have others.

`warm` is the share of the steps over which rates rise, `dir` one of DIRECTIONS, `lr` and `clip` are in units of a
layer's initial range, `delta` in units of an input's mean square; `scale` is "mag" (a row's mean size), "learned" or
"gain" (one constant, 1/√n), `real` the rate of all that is not binary.
"""
ROWS = {"dir": "ridgerow", "delta": 3.0}
CHANGES = [{"clip": None}, {"delta": 3.0}, {"delta": 30.0}, {"real": 0.001}, {"warm": 0}, {"momentum": 0.95}]


def at(options, *rates):
    return [options | {"lr": lr} for lr in rates]


TEXT = [
    *at({}, 0.003, 0.01, 0.03, 0.06),
    *at({"scale": "learned"}, 0.003, 0.01, 0.03, 0.1),
    *at({"scale": "gain"}, 0.003, 0.01, 0.03),
    *at({"dir": "polar"}, 0.03, 0.06),
    *at(ROWS, 0.02, 0.03, 0.045),
    *CHANGES,
]
CIFAR = [
    *at({}, 0.015, 0.03, 0.06),
    *at(ROWS, 0.02, 0.03, 0.06),
    *({"real": 0.001}, {"delta": 1.0}, {"delta": 3.0}, {"dir": "polar"}, {"scale": "gain"}, ROWS | {"real": 0.006}),
]
PLAIN, NORMED = ("dense", "deep", "cnn"), ("densebn", "cnnbn")
GRIDS = [
    ("gpt", 1500, TEXT),
    ("gptdeep", 1500, at(ROWS, 0.015, 0.03, 0.06)),
    ("vgg", 5, CIFAR),
    ("vgg", 25, at(ROWS, 0.015, 0.03)),
    ("resnet20", 2, at(ROWS, 0.03, 0.1)),
    ("resnet20", 10, CIFAR),
    ("resnet20", 30, [*at(ROWS, 0.015, 0.03), ROWS | {"dir": "polar"}]),
    ("resnet56", 10, [ROWS]),
    *((task, 3, at(ROWS, 0.01, 0.03, 0.06)) for task in PLAIN + NORMED),
    *((task, 3, at(ROWS | {"scale": "gain"}, 0.003, 0.01, 0.03)) for task in PLAIN),
]
JOBS = [BASE | options | {"task": task, "budget": budget} for task, budget, jobs in GRIDS for options in jobs]
VECTORS = [
    *((task, 500, 1, (0.003, 0.01, 0.03)) for task in ("gpt", "gptdeep")),
    ("gpt", 1500, 1, (0.003, 0.01, 0.03)),
    ("gpt", 3000, 1, (0.003, 0.01, 0.02)),
    ("vgg", 1, 2, (0.003, 0.01, 0.03)),
    ("vgg", 5, 2, (0.003, 0.01, 0.02)),
    ("vgg", 5, 1, (0.03,)),
    ("vgg", 20, 1, (0.003, 0.01, 0.02)),
    ("resnet20", 2, 2, (0.003, 0.01, 0.03)),
    ("resnet20", 5, 1, (0.003, 0.01, 0.03)),
    ("resnet20", 15, 1, (0.003, 0.01, 0.02)),
]
"""Rates of norms and biases beside 0.003 for real matrices: task, budget, seeds, rates. All else is the default."""
PAIRS = [(task, budget, seeds, (0.003, rate)) for task, budget, seeds, rates in VECTORS for rate in rates]
PAIRS += [("vgg", 1, 2, (0.01, 0.01)), ("gpt", 1500, 1, (0.01, 0.003))]
PAIRS += [(task, 500, 1, (0.01, 0.003)) for task in ("gpt", "gptdeep")]
JOBS += [
    {"dir": "default", "task": task, "budget": budget, "seed": seed, "real": real, "vectors": vectors}
    for task, budget, seeds, (real, vectors) in PAIRS
    for seed in range(seeds)
]
MOMENTA = [("vgg", 1, 4), ("vgg", 3, 2), ("vgg", 5, 2), ("resnet20", 2, 3), ("resnet20", 3, 2), ("resnet20", 10, 2)]
MOMENTA += [("gpt", 500, 3), ("gpt", 1500, 2), ("gptdeep", 500, 3)]
JOBS += [
    {"dir": "default", "task": task, "budget": budget, "seed": seed, "momentum": momentum}
    for task, budget, seeds in MOMENTA
    for seed in range(seeds)
    for momentum in (0.7, 0.8, 0.9)
]
"""Momenta: task, budget, seeds. All else is the default."""
CHAIN = {"dir": "default", "task": "chain", "budget": 250, "real": 0.003, "vectors": 0.03}
JOBS += [CHAIN | {"lr": lr, "seed": seed} for lr in (None, 0.06) for seed in range(3)]
"""The default rate of deep chains of layer norms, beside that of other networks with norms."""


def chain(layers):
    """Linear layers with layer norms, and no shortcuts."""
    blocks = [(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(layers - 1)]
    return nn.Sequential(*(part for block in blocks for part in block), nn.Linear(64, 10))


def digits_task(steps, seed, choosing):
    data = [part.to(DEVICE) for part in digits(choosing)]
    order = torch.randint(len(data[0]), (steps, 32), generator=torch.Generator().manual_seed(seed))
    return classified(data, order)


def mnist_task(epochs, seed, choosing):
    order = epochs_of(50_000, 100, math.ceil(epochs), seed)
    return classified(mnist(choosing), order[: int(500 * epochs)])


CIFAR_10 = partial(cifar_task, "cifar-10")
LINEAR, CONV = partial(nn.Linear, bias=False), partial(nn.Conv2d, bias=False)
TASKS = {
    "vgg": (vgg_small, CIFAR_10, False, False),
    "resnet20": (partial(resnet, 20), CIFAR_10, False, False),
    "resnet56": (partial(resnet, 56), CIFAR_10, False, False),
    "gpt": (partial(GPT, layers=6), text_task, True, False),
    "gptdeep": (partial(GPT, layers=12, width=192, heads=4), text_task, True, False),
    "dense": (partial(dense, [784, 512, 512, 10], linear=LINEAR), mnist_task, True, True),
    "densebn": (partial(dense, [784, 512, 512, 10], linear=LINEAR, norm=True), mnist_task, True, True),
    "deep": (partial(dense, [784, *[256] * 8, 10], linear=LINEAR), mnist_task, True, True),
    "cnn": (partial(convolutional, linear=LINEAR, conv=CONV, norm=False), mnist_task, True, True),
    "cnnbn": (partial(convolutional, linear=LINEAR, conv=CONV, norm=True), mnist_task, True, True),
    "chain": (partial(chain, 12), digits_task, False, False),
}
"""Network, data, and whether the first and the last layer are binary too."""


@dataclass(frozen=True)
class RidgeByRow(Ridge):
    """The ridge, normalised per output unit."""

    name = "ridge by row"

    def directions(self, systems):
        """The solutions, every row divided by its root mean square."""
        return [system.answer(torch.stack([normalized(row) for row in system.solved()])) for system in systems]


DIRECTIONS = {"ridge": Ridge, "ridgerow": RidgeByRow, "polar": lambda delta: Polar()}
SCALES = {"mag": "magnitude", "learned": "learned", "gain": None}


def run(job):
    """The row of one run: its options, score, seconds and steps."""
    torch.manual_seed(job["seed"])
    build, data, first, last = TASKS[job["task"]]
    scale = {"scale": SCALES[job["scale"]]} if "scale" in job else {}
    model = convert(build(), first=first, last=last, **scale).to(DEVICE)
    budget = job["budget"] if data is mnist_task else int(job["budget"])
    task = data(budget, job["seed"], data is not text_task)
    if job["dir"] == "default":
        real = {"lr": job["real"], "vector_factor": job["vectors"] / job["real"]} if "vectors" in job else {}
        shared = {"relative": True, "momentum": job.get("momentum"), "steps": task[0]}
        optimizer = QPSBGD(model, job.get("lr"), **shared, real=real)
    else:
        projection, clip = DIRECTIONS[job["dir"]](delta=job["delta"]), "range" if job["clip"] else None
        shared = {"relative": True, "momentum": job["momentum"], "clip": clip, "warmup": job["warm"], "steps": task[0]}
        optimizer = QPSBGD(model, job["lr"], projection, **shared, real={"lr": job["real"]})
    return job | trained(model, optimizer, task)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--budget", type=float, help="epochs, or steps of text, instead of those of JOBS")
    parser.add_argument("--processes", type=int, default=10 if DEVICE == "cuda" else 1)
    parser.add_argument("--into", type=Path, default=FILE)
    options = parser.parse_args()
    changed = {"budget": options.budget} if options.budget else {}
    jobs = [job | changed for job in JOBS if job["task"] in options.tasks]
    Rows(options.into).measured(run, jobs, processes=options.processes)


if __name__ == "__main__":
    main()
