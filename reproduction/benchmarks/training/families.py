"""Which projection at which rate trains which family of networks? One-bit weights, CIFAR-10 and text, a grid of rates.

    python benchmarks/training/families.py [family=vit method=ridge seed=1 …] [--processes N] [--seconds S]

First and last layers stay real-valued. Grids have one seed and 20,000 images; then the default and the rivals at their
best rates run with three seeds and all images. Every run has six epochs of batches of 128 images, or 1,000 of text, the
same warm-up, cosine and augmentation; scores are of 5,000 training images that no run trains on. Rates are those of
latent weights, in units of each layer's initial range. Rivals are `StraightThrough`'s Muon and AdamW at grids of their
own. Data as networks.py; `data=cifar-100` is held out.

results/families.json also has trials by families.py of earlier commits: of 95140cfc, units of polar factors and rates
steered by flips, both dropped; of 4e0af4e6, QuboDescent without its output side and with polar factors; of bf45cef2,
QuboDescent by shares of flips, memories that grow ("turnover") and weaker couplings ("delta"), of which 0.25 and 0.3
are its defaults now; of bb9e73d9, memories that grow, and roots of A, dropped; and of c452f2fc, "rare roots": the
output side is renewed with every fifth A alone.
"""

import math
from functools import partial

import torch
from benchmarks.study import arguments
from benchmarks.training.binarize_networks import GPT
from benchmarks.training.controls import PROJECTIONS
from benchmarks.training.network_families import convnext, densenet, mixer, mlp, mobilenet_v2, resnet18, vgg16, vit
from benchmarks.training.networks import cifar_task, text_task, train
from benchmarks.training.qubo_descent import COMPARED, SOLVERS, WINDOWS, Compared, RealMinimiser, Uncoupled, control
from benchmarks.training.training_parts import DEVICE
from torch import nn

from qpsbgd import QPSBGD, StraightThrough, recommend
from qpsbgd.nn import convert
from qpsbgd.projections.weights import Weights
from qpsbgd_paper.framework.networks import resnet, vgg_small
from qpsbgd_qubo.solvers.search.descent import Descent

EPOCHS, TEXT_STEPS = 6, 1000
GRID_IMAGES, ALL_IMAGES = 20_000, 45_000
RATES = [0.0045, 0.009, 0.018, 0.036, 0.072]
FAMILIES = {
    "vgg-small": vgg_small,
    "vgg16": vgg16,
    "resnet18": resnet18,
    "resnet20": partial(resnet, 20),
    "resnet56": partial(resnet, 56),
    "densenet": densenet,
    "mobilenet-v2": mobilenet_v2,
    "convnext": convnext,
    "vit": vit,
    "mixer": mixer,
    "gpt": partial(GPT, layers=6),
    "mlp": partial(mlp, [512, 512, 512]),
    "mlp-bn": partial(mlp, [512, 512, 512], nn.BatchNorm1d),
    "mlp-deep": partial(mlp, [256] * 8),
    "mlp-deep-ln": partial(mlp, [256] * 8, nn.LayerNorm),
}


def at_default_rate(projection, model, steps, lr):
    rate = lr * recommend(model, steps).lr
    return QPSBGD(model, rate, projection, relative=True, steps=steps, real=True)


METHODS = {
    "ridge": (RATES, lambda m, s, lr: QPSBGD(m, lr, "ridge", relative=True, steps=s, real=True)),
    "polar": (RATES, lambda m, s, lr: QPSBGD(m, lr, "polar", relative=True, steps=s, real=True)),
    "default": ([None], lambda m, s, lr: QPSBGD(m, steps=s, real=True)),
    "muon": ([0.003, 0.01, 0.02, 0.05], lambda m, s, lr: StraightThrough(m, lr, "muon", steps=s, real=True)),
    **{name: ([1.0], partial(at_default_rate, p)) for name, p in PROJECTIONS.items() if name not in ("ridge", "polar")},
    "spins": ([1.0], partial(at_default_rate, "spins")),
    "adamw": ([1e-3, 3e-3, 1e-2, 3e-2], lambda m, s, lr: StraightThrough(m, lr, "adam", steps=s, real=True)),
}
"""Rates, and an optimiser of a model for so many steps at a rate."""
WEIGHTS = {
    "qubo": Weights(),
    "qubo, no couplings": Uncoupled(),
    "qubo, energies": None,
    "qubo, 1 flip": Weights(solver=Descent(max_flips=1, warm=True)),
    "qubo, 8 flips": Weights(solver=Descent(max_flips=8, warm=True)),
    "qubo, tabu": Weights(solver=SOLVERS["tabu"]),
    "qubo, no output side": Weights(outputs=False),
    "qubo, memory of 500 steps": Weights(turnover=None),
    "qubo, full couplings": Weights(delta=0.0),
    "qubo, real minimiser": RealMinimiser(),
}
"""QuboDescent by projections of weights, at its default share of flips; energies are those of SOLVERS on problems of
every 100th step."""


DEEP_COMPARED = {name: other for name, other in COMPARED.items() if name not in WINDOWS}


def run(job):
    """The row of one run."""
    family, data = job["family"], job.get("data", "cifar-10")
    torch.manual_seed(job["seed"])
    model = FAMILIES[family]()
    if data == "cifar-100":
        name, head = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)][-1]
        model.set_submodule(name, nn.Linear(head.in_features, 100))
    model = convert(model, first=family == "gpt", last=False, scale=job.get("scale", "auto")).to(DEVICE)
    if family == "gpt":
        task = text_task(TEXT_STEPS, job["seed"], True)
    else:
        task = cifar_task(data, EPOCHS, job["seed"], True, job["images"])
    if job["method"] in WEIGHTS:
        projection = WEIGHTS[job["method"]] or Compared(others=DEEP_COMPARED, every=100)
        optimizer = control(projection, model, steps=task[0], real=True)
    else:
        optimizer = METHODS[job["method"]][1](model, task[0], job["rate"])
    try:
        row = train(model, optimizer, task)
        if job["method"] == "qubo, energies":
            row |= projection.shares()
    except ValueError as error:  # gradients that are not finite
        return job | {"score": None, "error": str(error)[:100]}
    return job | (row if math.isfinite(row["score"]) else row | {"score": None})


def sized(job, images):
    return job if job["family"] == "gpt" else job | {"images": images}


GRID = [
    sized({"family": family, "method": method, "rate": rate, "seed": 0}, GRID_IMAGES)
    for method, (rates, _) in METHODS.items()
    for rate in rates
    for family in FAMILIES
]


def final_jobs(rows):
    """Three seeds on all images, of rivals at the rates that are best in the grid."""
    for family in FAMILIES:
        for method in ("default", "muon", "adamw"):
            grid = [row for row in rows if (row["family"], row["method"]) == (family, method) and row["score"]]
            best = (min if family == "gpt" else max)(grid, key=lambda row: row["score"])
            for seed in range(3):
                job = {"family": family, "method": method, "rate": best["rate"], "seed": seed}
                yield sized(job, ALL_IMAGES)


CONTROLS = {"resnet20": 0.02, "vgg-small": 0.05, "vit": 0.003, "gpt": 0.02}
"""Families in which directions are compared with their signs and with spins, and Muon's rate that is best there."""


def control_jobs():
    """Three seeds of directions at the default's rate, and of Muon at its own."""
    methods = dict.fromkeys(("polar-signs", "ridge-signs", "gradient-signs", "spins"), 1.0) | {"default": None}
    for seed in range(3):
        for family, muon in CONTROLS.items():
            for method, rate in (methods | {"muon": muon}).items():
                job = {"family": family, "method": method, "rate": rate, "seed": seed}
                if rate == 1.0 and family in ("vit", "gpt"):
                    job["scale"] = "auto"  # others were run with learned scales, too
                yield sized(job, GRID_IMAGES)


def weight_jobs():
    """Three seeds of QuboDescent and of its sign, one of its parts and solvers."""
    for method in WEIGHTS:
        for seed in range(3 if method in ("qubo", "qubo, no couplings") else 1):
            for family in ("gpt", "vit", "resnet20", "vgg-small"):
                yield sized({"family": family, "method": method, "rate": None, "seed": seed}, GRID_IMAGES)


if __name__ == "__main__":
    options, rows = arguments("families", processes=14)
    rows.measured(run, options.only(final_jobs(rows.measured(run, options.only(GRID)))))
    rows.measured(run, options.only(control_jobs()))
    rows.measured(run, options.only(weight_jobs()))
