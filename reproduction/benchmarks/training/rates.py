"""Which rate of norms and biases, and which momentum, serve today's networks? Whole runs at the defaults but for one.

VGG-small and ResNet-20 on CIFAR-10, a character GPT of 6 layers and a narrow one of 12, and chains of dense layers with
norms on digits, all with one-bit weights; first and last layers, of GPTs only the head, stay real.
Scores are accuracies on held-back training images, or held-out nats per character, where lower is better.

    python benchmarks/training/rates.py [--tasks NAME …] [--budget B] [--processes N] [--into FILE]

Needs QPSBGD_DATA with cifar-10/images.npz as in networks.py; a GPU for all but tiny runs such as
`--tasks chain --budget 3`. Writes results/rates.json, anew after every run, and makes only the runs that the
file has not.

The file also has the rows by which the default rate, ridge, scale and warm-up were chosen, those whose "dir" is not
"default". benchmarks/rates.py of commit 39f20315 made them, with optimisers of its own and other text: those of gpt and
gptdeep compare among themselves only.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from benchmarks.training.binarize_networks import GPT
from benchmarks.training.kept_rows import Rows
from benchmarks.training.network_families import Residual
from benchmarks.training.networks import cifar_task, classified, text_task, trained
from benchmarks.training.training_parts import DEVICE, digits
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import convert
from qpsbgd_paper.experiments.cifar import resnet, vgg_small

FILE = Path(__file__).parents[2] / "results" / "rates.json"
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
"""Rates of norms and biases beside 0.003 for real matrices: task, budget, seeds, rates."""
PAIRS = [(task, budget, seeds, (0.003, rate)) for task, budget, seeds, rates in VECTORS for rate in rates]
PAIRS += [("vgg", 1, 2, (0.01, 0.01)), ("gpt", 1500, 1, (0.01, 0.003))]
PAIRS += [(task, 500, 1, (0.01, 0.003)) for task in ("gpt", "gptdeep")]
MOMENTA = [("vgg", 1, 4), ("vgg", 3, 2), ("vgg", 5, 2), ("resnet20", 2, 3), ("resnet20", 3, 2), ("resnet20", 10, 2)]
MOMENTA += [("gpt", 500, 3), ("gpt", 1500, 2), ("gptdeep", 500, 3)]
"""Momenta: task, budget, seeds."""
JOBS = [
    {"dir": "default", "task": task, "budget": budget, "seed": seed, "real": real, "vectors": vectors}
    for task, budget, seeds, (real, vectors) in PAIRS
    for seed in range(seeds)
]
JOBS += [
    {"dir": "default", "task": task, "budget": budget, "seed": seed, "momentum": momentum}
    for task, budget, seeds in MOMENTA
    for seed in range(seeds)
    for momentum in (0.7, 0.8, 0.9)
]
CHAIN = {"dir": "default", "task": "chain", "budget": 250, "real": 0.003, "vectors": 0.03}
CHAINS = ("chain", "chain-bn", "chain-residual")
JOBS += [CHAIN | {"task": task, "lr": lr, "seed": seed} for task in CHAINS for lr in (None, 0.06) for seed in range(3)]
"""The default rate of deep chains of dense layers with norms, beside that of other networks with norms."""


def chain(layers, norm=nn.LayerNorm, block=nn.Sequential):
    """Linear layers with norms, and no shortcuts but in blocks that have them."""
    blocks = [block(nn.Linear(64, 64), norm(64), nn.ReLU()) for _ in range(layers - 1)]
    return nn.Sequential(*blocks, nn.Linear(64, 10))


def residual(*parts):
    return Residual(nn.Sequential(*parts))


def digits_task(steps, seed, choosing):
    data = [part.to(DEVICE) for part in digits(choosing)]
    order = torch.randint(len(data[0]), (steps, 32), generator=torch.Generator().manual_seed(seed))
    return classified(data, order)


CIFAR_10 = partial(cifar_task, "cifar-10")
TASKS = {
    "vgg": (vgg_small, CIFAR_10),
    "resnet20": (partial(resnet, 20), CIFAR_10),
    "gpt": (partial(GPT, layers=6), text_task),
    "gptdeep": (partial(GPT, layers=12, width=192, heads=4), text_task),
    "chain": (partial(chain, 12), digits_task),
    "chain-bn": (partial(chain, 12, nn.BatchNorm1d), digits_task),
    "chain-residual": (partial(chain, 12, block=residual), digits_task),
}


def run(job):
    """The row of one run: its options, score, seconds and steps."""
    torch.manual_seed(job["seed"])
    build, data = TASKS[job["task"]]
    is_text = data is text_task
    model = convert(build(), first=is_text, last=False).to(DEVICE)
    task = data(job["budget"], job["seed"], not is_text)
    real = {"lr": job["real"], "vector_factor": job["vectors"] / job["real"]} if "vectors" in job else {}
    shared = {"relative": True, "momentum": job.get("momentum"), "steps": task[0]}
    return job | trained(model, QPSBGD(model, job.get("lr"), **shared, real=real), task)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--budget", type=int, help="epochs, or steps of text and digits, instead of those of JOBS")
    parser.add_argument("--processes", type=int, default=10 if DEVICE == "cuda" else 1)
    parser.add_argument("--into", type=Path, default=FILE)
    options = parser.parse_args()
    changed = {"budget": options.budget} if options.budget else {}
    jobs = [job | changed for job in JOBS if job["task"] in options.tasks]
    Rows(options.into).measured(run, jobs, processes=options.processes)


if __name__ == "__main__":
    main()
