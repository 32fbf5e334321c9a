"""Is a better answer of the QUBO a better network? `QuboDescent` by solvers from one flip to tabu, and its controls.

    python benchmarks/training/qubo_descent.py [task=digits method=tabu seed=0 …] [--seconds S]

Tasks are those of training.py, with learned scales where there are no norms, and others of `SMALL`: steps of 64 images
of SIDE² pixels. Controls: "no-couplings" drops all but the diagonal of A, so that the answer is a sign;
"real-minimiser" is the sign of w₀ − (A + 10 I)⁻¹ F / c; "float32" and "8 bits" keep F otherwise. `energies` are the
shares of the best known drop in energy that each solver reaches on the same problems, those of some steps of a run by
"descent". "last-phase" is QPSBGD for 90 % of the steps, then QuboDescent from its signs. "mnist-pretrained" is an MLP
trained with real weights for an epoch, made binary by `convert` or `binarize`, and trained for some steps. Writes
results/qubo_descent.json.
"""

import copy
import time
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.study import study
from benchmarks.training.training_parts import accuracy, dense, mnist
from benchmarks.training.training_tasks import TASKS
from torch import nn

from qpsbgd import QPSBGD, Bop, QuboDescent, StraightThrough, binarize, recommend
from qpsbgd.nn import convert
from qpsbgd.optim.qubo_descent import default_flips
from qpsbgd.projections.system import inverse
from qpsbgd.projections.weights import WEIGHT_DESCENT, Step, Weights
from qpsbgd_paper.framework.networks import resnet
from qpsbgd_qubo.solvers.search.descent import Descent

SIDE, BATCH = 14, 64
BUDGETS = {"digits": 2, "adult-10": 4, "mnist-dense": 1, "mnist-resnet8": 150}
"""Epochs, or steps of the residual network on small images."""

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


class FloatStep(Step):
    """A step that keeps F in single precision."""

    def stored(self, gradient):
        return gradient


class ByteStep(Step):
    """A step that keeps F in 8 bits, and one scale per output unit, rounded at random."""

    def stored(self, gradient):
        rows = gradient.flatten(1)
        scales = rows.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        below = torch.rand(rows.shape[1], generator=torch.Generator().manual_seed(int(self.state.step)))
        return ((rows / scales + below).floor() * scales).reshape(gradient.shape)


@dataclass(frozen=True)
class FloatState(Weights):
    """Weights with F in single precision."""

    step = FloatStep


@dataclass(frozen=True)
class ByteState(Weights):
    """Weights with F in 8 bits."""

    step = ByteStep


def control(projection, model, lr=None, **options):
    """QPSBGD with a projection of weights, and QuboDescent's other options."""
    share = default_flips(model) if lr is None else lr
    return QPSBGD(model, share, projection, momentum=0.998, clip=None, relative=False, **options)  # β without turnover


class LastPhase:
    """QPSBGD for 90 % of the steps, then QuboDescent from its signs; more flips are worse on digits."""

    def __init__(self, model, *, steps, real):
        first = round(0.9 * steps)
        self.left, self.optimizer = first, QPSBGD(model, steps=first, real=real)
        self.then = partial(QuboDescent, model, 0.01 * default_flips(model), steps=steps - first, real=real)

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.optimizer.step()
        self.left -= 1
        if self.left == 0:
            self.optimizer = self.then()


SOLVERS = {
    **{f"flips-{k}": Descent(max_flips=k, warm=True) for k in (1, 3, 8)},
    "descent": WEIGHT_DESCENT,
    "tabu": Descent(tabu=50, warm=True),
}
"""From one flip per output unit to tabu search, all from where the weights stand."""
WINDOWS = {f"window-{k}": Weights(solver="exact", window=k) for k in (16, 32)}
METHODS = {
    **{name: partial(QuboDescent, solver=solver) for name, solver in SOLVERS.items()},
    "window-16": partial(QuboDescent, window=16),
    "flips of 0.02": partial(QuboDescent, flips=0.02),
    "last-phase": LastPhase,
    "no-couplings": partial(control, Uncoupled()),
    "real-minimiser": partial(control, RealMinimiser()),
    "float32": partial(control, FloatState()),
    "8 bits": partial(control, ByteState()),
    **{
        f"bop-{threshold:g}": partial(Bop, lr=1e-2, threshold=threshold) for threshold in (1e-6, 1e-5, 3e-5, 1e-4, 3e-4)
    },
}
LATENT = {
    "default": QPSBGD,
    **{f"muon-{lr:g}": partial(StraightThrough, lr=lr, update="muon") for lr in (0.005, 0.02, 0.05)},
    **{f"adamw-{lr:g}": partial(StraightThrough, lr=lr, update="adam") for lr in (0.001, 0.003, 0.01)},
}
"""For the network of small images, where training.py has no rows. Optimisers of a model share the number of steps, and
train everything else too."""


@cache
def small_images():
    """MNIST, each pixel the mean of four, in three equal channels: images and digits, to train and to score."""
    parts = mnist(False)

    def prepare(images):
        return F.adaptive_avg_pool2d(images.reshape(-1, 1, 28, 28), SIDE).repeat(1, 3, 1, 1)

    return prepare(parts[0]), parts[1], prepare(parts[2]), parts[3]


def small_run(make, *, steps, seed):
    """Train a converted ResNet-8: its score."""
    x, y, others, wanted = small_images()
    torch.manual_seed(seed)
    model = convert(resnet(8), first=False, last=False)
    optimizer = make(model, steps=steps, real=True)
    for rows in torch.randint(len(x), (steps, BATCH), generator=torch.Generator().manual_seed(seed)):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return {"score": accuracy(model, others, wanted)}


@cache
def pretrained(seed):
    """An MLP with real weights after an epoch of MNIST."""
    x, y, *_ = mnist(False)
    torch.manual_seed(seed)
    model = dense([784, 512, 512, 10], linear=nn.Linear, activation=nn.ReLU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(x) // 100)
    for rows in torch.randperm(len(x))[: len(x) // 100 * 100].split(100):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
    return model


@cache
def start(name, seed):
    """A pretrained MLP made binary, and its score."""
    x, _, others, wanted = mnist(False)
    model = pretrained(seed)
    if name == "convert":
        model = convert(model)
    elif name == "binarize":
        model = binarize(model, [*x[:4000].split(500)], first=True, last=True).model
    with torch.no_grad():
        return model, accuracy(model.eval(), others, wanted)


def from_start(job):
    """The score of an MLP that was trained with real weights, made binary and trained again, and that before."""
    name, method = job["method"].split(" + ")
    x, y, others, wanted = mnist(False)
    model, before = start(name, job["seed"])
    model = copy.deepcopy(model).train()
    optimizer = START_METHODS[method](model, steps=job["budget"], real=True)
    for rows in torch.randint(len(x), (job["budget"], 100), generator=torch.Generator().manual_seed(job["seed"])):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        score = accuracy(model.eval(), others, wanted)
        return {"score": score, "before": before, "real": accuracy(pretrained(job["seed"]), others, wanted)}


START_METHODS = {
    **{
        f"{share:g} of the flips": partial(
            lambda model, share, **how: QuboDescent(model, share * default_flips(model), **how), share=share
        )
        for share in (1, 0.1, 0.01)
    },
    "QPSBGD": QPSBGD,
    "QPSBGD, 0.1 of the rate": lambda model, steps, **how: QPSBGD(
        model, 0.1 * recommend(model, steps).lr, relative=True, steps=steps, **how
    ),
}


def run(job):
    """The row of one run, with the seconds of CPU that it took."""
    torch.set_num_threads(1)
    method, begun = (METHODS | LATENT).get(job["method"]), time.process_time()
    special = {"energies": energies}.get(job["method"], from_start if job["task"] == "mnist-pretrained" else None)
    row = train(job, method) if special is None else special(job)
    return job | row | {"cpu_seconds": round(time.process_time() - begun, 1)}


def train(job, make):
    """The score of a job's network, trained by this optimiser."""
    if job["task"] == "mnist-resnet8":
        return small_run(make, steps=job["budget"], seed=job["seed"])
    how = {"budget": job["budget"], "seed": job["seed"], "choosing": False, "scale": "learned"}
    options = {"real": True}
    return {"score": TASKS[job["task"]].run(lambda model, steps: make(model, steps=steps, **options), **how)["score"]}


@dataclass(frozen=True)
class Compared(Weights):
    """Weights by descent; every `every`th step is also solved by all others, and their drops in energy are noted."""

    others: dict = field(default_factory=dict)
    drops: list = field(default_factory=list)
    every: int = 25

    def capturable(self, inputs):
        return False

    def shares(self):
        """The mean shares of the best drop."""
        table = np.array([drops for drops in self.drops if max(drops) > 0])
        shares = (table / table.max(1, keepdims=True)).mean(0)
        return {"problems": len(table), "shares": dict(zip(self.others, map(float, shares), strict=True))}

    def solve(self, moving):
        for step in moving:
            if step.state.step % self.every == 0:
                self.drops.append([drop(projection, step) for projection in self.others.values()])
        super().solve(moving)


def drop(projection, step):
    """How far a projection lowers the energy of a step; None is what flips every weight that gains alone."""
    step = replace(step, spins=step.start.clone())
    if projection is None:
        gains = step.start * step.slopes > step.matrix.diagonal(dim1=-2, dim2=-1)[:, None]
        step.spins = torch.where(gains, -step.start, step.start)
    else:
        projection.solve([step])
    moved = step.spins - step.start
    return -(moved * (step.slopes + 0.5 * moved @ step.matrix)).sum().item()


COMPARED = {name: Weights(solver=solver) for name, solver in SOLVERS.items()} | WINDOWS | {"no-couplings": None}


def energies(job):
    """Shares of the best known drop in energy, by solver, on the problems of a run by "descent"."""
    wide = job["task"] != "digits"  # windows would take long
    others = {name: other for name, other in COMPARED.items() if not (wide and name in WINDOWS)}
    compared = Compared(others=others, every=25)
    return train(job, partial(control, compared)) | compared.shares()


JOBS = [
    {"task": task, "method": method, "budget": budget, "seed": seed}
    for seed in range(3)
    for task, budget in BUDGETS.items()
    for method in [*METHODS, *(LATENT if task == "mnist-resnet8" else ()), *(["energies"] if seed == 0 else ())]
]
JOBS += [
    {"task": "mnist-pretrained", "method": f"{name} + {method}", "budget": 200, "seed": seed}
    for seed in range(3)
    for name in ("convert", "binarize")
    for method in START_METHODS
]

if __name__ == "__main__":
    study("qubo_descent", run, JOBS)
