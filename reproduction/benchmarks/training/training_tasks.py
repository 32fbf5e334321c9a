"""The tasks of training.py: networks, data and budgets, the methods that train them, and a single run."""

import time
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import torch
import torch.nn.functional as F
from benchmarks.training import training_parts as parts
from benchmarks.training.training_parts import accuracy, convolutional, dense, digits, fashion, mnist

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant, StraightThrough
from qpsbgd.nn import BinaryLayer
from qpsbgd.projections import Spins
from qpsbgd_paper.framework.training import batches, fit


def binary_connect(update, **options):
    return lambda model, lr, beta, shared: BinaryConnect(model, lr, update, momentum=beta, **options, **shared)


METHODS = {
    "ridge": lambda model, lr, beta, shared: QPSBGD(model, **shared),
    "spins": lambda model, lr, beta, shared: QPSBGD(model, projection="spins", **shared),
    "spins-2": lambda model, lr, beta, shared: QPSBGD(model, projection=Spins(bits=2), **shared),
    "printed": lambda model, lr, beta, shared: QPSBGD(model, projection="printed", **shared),
    "bc-adam": lambda model, lr, beta, shared: BinaryConnect(
        model, lr, "adam", betas=(beta, 0.999), relative=True, **shared
    ),
    "bc-sign": binary_connect("sign", relative=True),
    "bc-sgd": binary_connect("sgd"),
    "bc-normalized": binary_connect("normalized", relative=True),
    "proxquant": lambda model, lr, beta, shared: ProxQuant(
        model, lr, momentum=beta, steps=shared["steps"], real={"steps": shared["steps"], **shared["real"]}
    ),
    "bc-adam, default": lambda model, lr, beta, shared: BinaryConnect(model, **shared),
    "st-adamw": lambda model, lr, beta, shared: StraightThrough(model, lr, "adam", betas=(beta, 0.999), **shared),
    "st-muon": lambda model, lr, beta, shared: StraightThrough(model, lr, "muon", momentum=beta, **shared),
}
"""Optimisers of a model at a rate and momentum; they share the number of steps and options of norms and biases."""
STRAIGHT = ("st-adamw", "st-muon")
OURS = ("ridge", "spins", "spins-2")
SCALES = {"magnitude": "magnitude", "constant": None, "learned": "learned"}
"""Scales of the layers, which the tuned methods choose from in networks without norms; with norms all have `magnitude`
but for the networks that are built of binary layers, where only straight-through methods have it."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained for which budgets, in epochs or steps; left out are some methods at some budgets."""

    budgets: tuple = (1, 3, 10)
    higher: bool = True
    chosen_up_to: int = 3
    left_out: dict = field(default_factory=dict)
    has_choice_of_scales = True  # in networks without norms

    def steps(self, budget):
        return budget


@dataclass(frozen=True)
class Images(Task):
    """A classifier of images: batches of `batch`, scored by accuracy."""

    build: object
    data: object = mnist
    batch: int = 100
    left_out: dict = field(default_factory=lambda: {10: ("printed",)}, kw_only=True)

    def has_real_part(self):
        """Whether the network has parameters besides binary weights, such as norms and biases."""
        model = self.build()
        return len([*model.parameters()]) > sum(isinstance(module, BinaryLayer) for module in model.modules())

    @property
    def has_choice_of_scales(self):
        norms = [layer for layer in self.build().modules() if isinstance(layer, torch.nn.BatchNorm1d)]
        return not norms

    def steps(self, budget, choosing=False):
        return budget * (len(self.data(choosing)[0]) // self.batch)

    def run(self, make, *, budget, seed, choosing, **scale):
        inputs, targets, test_inputs, test_targets = self.data(choosing)
        torch.manual_seed(seed)
        model = self.build(**scale).to(inputs.device)
        steps = self.steps(budget, choosing)
        optimizers = [make(model, steps)]
        order = torch.Generator().manual_seed(seed)

        def batches():
            for _ in range(budget):
                rows = torch.randperm(len(inputs), generator=order).to(inputs.device)
                yield from rows[: len(rows) // self.batch * self.batch].split(self.batch)

        def loss(rows):
            return F.cross_entropy(model(inputs[rows]), targets[rows])

        start = time.perf_counter()
        fit(model, loss, rows=batches(), optimizers=optimizers)
        model.eval()
        with torch.no_grad():
            score = accuracy(model, test_inputs, test_targets)
        return {"score": score, "clock": time.perf_counter() - start}


def with_cosine(optimizer, steps):
    """The optimiser, whose rate falls with every step."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


@dataclass(frozen=True, kw_only=True)
class Adult(Task):
    """Ten layers on 512 rows of Adult, `budget` epochs of 32 batches of 16; the mean loss on them in the last epoch."""

    budgets: tuple = (4, 16)
    higher: bool = False
    chosen_up_to: int = 16

    def steps(self, budget):
        return 32 * budget

    def run(self, make, *, budget, seed, choosing, **scale):
        from qpsbgd_paper.datasets.adult import training_rows

        inputs, targets = training_rows()
        torch.manual_seed(seed + 500 * choosing)
        rows = torch.randperm(len(inputs))[:512]
        inputs, targets = inputs[rows], targets[rows]
        model = dense([123, *[128] * 9, 1], **scale)

        def loss(rows):
            return F.binary_cross_entropy_with_logits(model(inputs[rows])[:, 0], targets[rows])

        steps = self.steps(budget)
        how = {"optimizers": [make(model, steps)], "measure": lambda: loss(slice(None)).item()}
        losses = fit(model, loss, rows=batches(512, 16, steps), **how)
        return {"score": sum(losses[-32:]) / 32}


@dataclass(frozen=True, kw_only=True)
class Citation(Task):
    """The graph network of the paper's citation experiments, `budget` steps; accuracy at the best validation score."""

    graph: str
    budgets: tuple = (100,)
    chosen_up_to: int = 100
    left_out: dict = field(default_factory=lambda: {100: STRAIGHT})
    has_choice_of_scales = False

    def run(self, make, *, budget, seed, choosing):
        from qpsbgd_paper.experiments.citation import CitationNet, prepared

        nodes = prepared(self.graph)
        known = nodes.graph
        torch.manual_seed(seed)
        model = CitationNet(nodes, encoder="trained", features=10, width=32, gain="fan_in")
        layers = [module for module in model.modules() if isinstance(module, BinaryLayer)]
        real = [p for p in model.parameters() if all(p is not layer.weight for layer in layers)]
        encoder = with_cosine(torch.optim.Adam(real, lr=0.01, weight_decay=5e-4), budget)
        around = nodes.around(known.train)
        held = [(nodes.around(part), known.labels[part]) for part in (known.validation, known.test)]
        scores = fit(
            model,
            lambda rows: F.nll_loss(model(around), known.labels[rows]),
            rows=repeat(known.train, budget),
            optimizers=[make(layers, budget), encoder],
            measure=lambda: [(model(part).argmax(1) == labels).double().mean().item() for part, labels in held],
            every=10,
        )
        validation, test = max(scores, key=lambda pair: pair[0])
        return {"score": validation if choosing else test}


HELD_OUT = dict.fromkeys((1, 3, 10), ("proxquant", "printed", "bc-adam, default"))
"""On Fashion-MNIST the methods that are far behind everywhere are left out."""

TASKS = {
    "mnist-dense": Images(
        partial(dense, [784, 512, 512, 10]),
        budgets=(1, 3, 10, 30),
        chosen_up_to=10,
        left_out={
            10: ("proxquant", "printed"),
            30: ("proxquant", "spins", "spins-2", "printed", "bc-adam, default"),
        },
    ),
    "mnist-dense-bn": Images(partial(dense, [784, 512, 512, 10], norm=True)),
    "mnist-deep": Images(partial(dense, [784, *[256] * 8, 10]), budgets=(3,)),
    "mnist-cnn": Images(partial(convolutional, norm=False)),
    "mnist-cnn-bn": Images(partial(convolutional, norm=True)),
    "fashion-dense": Images(partial(dense, [784, 512, 512, 10]), fashion, left_out=HELD_OUT),
    "fashion-dense-bn": Images(partial(dense, [784, 512, 512, 10], norm=True), fashion, left_out=HELD_OUT),
    "fashion-cnn": Images(partial(convolutional, norm=False), fashion, left_out=HELD_OUT),
    "fashion-cnn-bn": Images(partial(convolutional, norm=True), fashion, left_out=HELD_OUT),
    "digits": Images(partial(dense, [64, 128, 10]), digits, batch=32, budgets=(2, 10), chosen_up_to=10, left_out={}),
    "adult-10": Adult(),
    "cora": Citation(graph="cora"),
    "pubmed": Citation(graph="pubmed"),
    **{
        f"{name}{'-bn' * norm}": Images(
            partial(parts.converted, [features, 256, 256, classes], norm=norm),
            partial(parts.table, file, target),
            budgets=(5,),
            chosen_up_to=5,
            left_out={5: ("printed", "proxquant", "bc-sgd")},
        )
        for name, file, target, features, classes in (
            ("letter", "letter-recognition.data", 0, 16, 26),
            ("magic", "magic04.data", -1, 10, 2),
            ("spambase", "spambase.data", -1, 57, 2),
        )
        for norm in (False, True)
    },
    "letter-deep": Images(
        partial(parts.converted, [16, *[128] * 8, 26], he=True),
        partial(parts.table, "letter-recognition.data", 0),
        budgets=(3,),
        left_out={3: ("printed", "proxquant", "bc-sgd", "bc-sign", "bc-normalized")},
    ),
}


def run(job):
    """The row of one run: its job and score, of images also its seconds by the clock."""
    layers = {} if job["scale"] is None else {"scale": SCALES[job["scale"]]}

    def make(model, steps):
        real = {"lr": job["real"]} if job["real"] else {}
        return METHODS[job["method"]](model, job["lr"], job["momentum"], {"steps": steps, "real": real})

    how = {name: job[name] for name in ("budget", "seed", "choosing")}
    return {"job": job, **TASKS[job["task"]].run(make, **how, **layers)}


def first_scale(task, method):
    """The scales of a method's layers before a choice; None for those of the task's network."""
    if method in STRAIGHT:
        return "magnitude"
    return "learned" if method in (*OURS, "bc-adam, default") and TASKS[task].has_choice_of_scales else None
