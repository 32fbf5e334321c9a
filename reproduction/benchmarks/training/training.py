"""Which method trains binary networks best, at which budget? QP-SBGD at its defaults beside tuned baselines.

Test accuracy (for Adult the loss on the training rows) after 1 to 30 epochs, every run with a cosine over its own
length. QP-SBGD takes its default rates; every baseline takes the best of a grid of learning rates, then of rates of
norms and biases, then in runs of fewer than 1,500 steps, where QP-SBGD's momentum is lower, of momenta, then in
networks without norms of the layers' scales, chosen per task and budget on validation data with another seed than the
final ones; the longest budgets take the choice of the next shorter one (`chosen_up_to`). A best rate at the edge of a
grid extends it. In networks without norms QP-SBGD has learned scales, as `convert` gives them by default. Runs with the
same seed share initial weights and batches, so that methods are compared in pairs.

    python benchmarks/training/training.py TASK … [--processes N] [--seeds 5] [--add] [--methods …]
    python benchmarks/training/training.py TASK … --deltas 1 3 10 30 [--batch B] [--budgets B …] [--seeds 2]
    python benchmarks/training/training.py TASK … --real-rates 0.003 0.01 auto [--batch B] [--budgets B …]
    python benchmarks/training/training.py TASK … --momenta 0.7 0.8 0.9 [--projection spins] [--budgets B …]
    python benchmarks/training/training.py TASK … --scales constant learned magnitude [--budgets B …]

The last four compare values of the ridge's δ, rates of norms and biases, momenta, or the layers' scales, on validation
data, and add them to penalties.json, real_rates.json, momenta.json and scales.json.

Finished runs are kept in results/training, so that a stopped study goes on. Runs on CUDA where there is one. Data are
found through QPSBGD_DATA. Writes training_TASK.json for every task, into reproduction/results or a given folder.
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import argparse
import json
import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.training import training_parts as parts
from benchmarks.training.kept_rows import tuned
from benchmarks.training.training_parts import (
    DEVICE_NAME,
    accuracy,
    convolutional,
    dense,
    digits,
    fashion,
    mnist,
)

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant, StraightThrough
from qpsbgd.nn import BinaryLayer
from qpsbgd.projections import Ridge, Spins
from qpsbgd_paper.framework.claims import difference_of
from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_paper.framework.runs import kept_results, run_jobs
from qpsbgd_paper.framework.training import batches, fit
from qpsbgd_paper.framework.workers import local_workers

RESULTS = Path(__file__).parents[2] / "results"
KEPT = Path("results/training")
"""Where finished runs are kept."""
TRIALS = {"delta": "penalties.json", "real": "real_rates.json", "momentum": "momenta.json", "scale": "scales.json"}
"""Options whose values are compared on validation data, and the files of the scores."""

METHODS = {
    "ridge": lambda model, lr, beta, shared: QPSBGD(model, **shared),
    "spins": lambda model, lr, beta, shared: QPSBGD(model, projection="spins", **shared),
    "spins-2": lambda model, lr, beta, shared: QPSBGD(model, projection=Spins(bits=2), **shared),
    "printed": lambda model, lr, beta, shared: QPSBGD(model, projection="printed", **shared),
    "bc-adam": lambda model, lr, beta, shared: BinaryConnect(
        model, lr, "adam", betas=(beta, 0.999), relative=True, **shared
    ),
    "bc-sign": lambda model, lr, beta, shared: BinaryConnect(model, lr, "sign", momentum=beta, relative=True, **shared),
    "bc-sgd": lambda model, lr, beta, shared: BinaryConnect(model, lr, "sgd", momentum=beta, **shared),
    "bc-normalized": lambda model, lr, beta, shared: BinaryConnect(
        model, lr, "normalized", momentum=beta, relative=True, **shared
    ),
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
GRIDS = {
    "bc-adam": (0.01, 0.03, 0.1),
    "bc-sign": (0.003, 0.01, 0.03),
    "bc-sgd": (0.03, 0.1, 0.3),
    "bc-normalized": (0.003, 0.01, 0.03),
    "proxquant": (0.01, 0.03, 0.1),
    "st-adamw": (0.001, 0.003, 0.01),
    "st-muon": (0.01, 0.02, 0.05),
}
"""Learning rates of the tuned methods; those of BinaryConnect but for SGD in units of the initial range."""
REAL_RATES = (0.001, 0.003, 0.01)
"""Rates of norms and biases for the tuned methods, tried at the best learning rate; it is found at their default."""

MOMENTUM = {"st-muon": 0.95}
"""Momentum of the tuned methods, Adam's β₁ too, in long runs, if not 0.9."""
LOWER_MOMENTA, SHORT = (0.7, 0.8), 1500
"""Momenta that are tried beside it, at the best rates, in runs of fewer steps than the second."""
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
    ours_alone: bool = False
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
        return not self.ours_alone and not any(isinstance(one, torch.nn.BatchNorm1d) for one in self.build().modules())

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
        made = {"rows": batches(512, 16, steps), "optimizers": [make(model, steps)]}
        losses = fit(model, loss, **made, measure=lambda: loss(slice(None)).item())
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
    "mnist-wide": Images(parts.wide, budgets=(50,), ours_alone=True),
    "mnist-wider": Images(partial(parts.wide, 2048), budgets=(50,), ours_alone=True),
    "mnist-cnn-large": Images(parts.large_convolutional, budgets=(10,), ours_alone=True),
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


def run(*, task, method, lr, real, momentum, scale, budget, seed, choosing):
    """One run: its score, of images also its seconds by the clock."""
    layers = {} if scale is None else {"scale": SCALES[scale]}

    def make(model, steps):
        return METHODS[method](model, lr, momentum, {"steps": steps, "real": {"lr": real} if real else {}})

    return TASKS[task].run(make, budget=budget, seed=seed, choosing=choosing, **layers)


def first_scale(task, method):
    """The scales of a method's layers before a choice; None for those of the task's network."""
    if method in STRAIGHT:
        return "magnitude"
    return "learned" if method in (*OURS, "bc-adam, default") and TASKS[task].has_choice_of_scales else None


def results_of(jobs, workers, run=run):
    """The results of jobs, in their order; the longest begin first, and finished ones are kept."""
    kept = {"experiment": "training", "folder": KEPT}
    for done in run_jobs(run, sorted(jobs, key=lambda job: -job["budget"]), workers=workers, **kept):
        if not done.reused:
            print(done.settings, done.result, flush=True)
    return kept_results(run, jobs, **kept)


def methods(task, budget):
    """The methods that are run on a task at a budget."""
    if TASKS[task].ours_alone:
        return ["ridge"]
    return [method for method in METHODS if method not in TASKS[task].left_out.get(budget, ())]


def chosen_rates(workers, task, wanted):
    """The best options of these methods and budgets on validation data, one after the other.

    Long budgets take those of the longest for which there was a choice.
    """
    homes = {(method, budget): (method, min(budget, TASKS[task].chosen_up_to)) for method, budget in wanted}
    options = {
        (m, b): {
            "lr": None,
            "real": None,
            "momentum": MOMENTUM.get(m, 0.9) if m in GRIDS else None,
            "scale": first_scale(task, m),
        }
        for m, b in homes.values()
    }
    grids = {home: GRIDS[home[0]] for home in options if home[0] in GRIDS}
    tune(workers, task, options, grids, "lr")
    if grids and isinstance(TASKS[task], Images) and TASKS[task].has_real_part():
        tune(workers, task, options, dict.fromkeys(grids, REAL_RATES), "real")
    short = [home for home in grids if TASKS[task].steps(home[1]) < SHORT]
    momenta = {home: (*LOWER_MOMENTA, options[home]["momentum"]) for home in short}
    tune(workers, task, options, momenta, "momentum", most=3)
    if TASKS[task].has_choice_of_scales:
        tune(workers, task, options, dict.fromkeys(grids, tuple(SCALES)), "scale", most=3)
    return {pair: options[home] for pair, home in homes.items()}


def tune(workers, task, options, grids, name, *, most=6):
    """Set this option of every method and budget to the best of its grid, which grows to so many values."""

    def scores_of(wanted):
        shared = {"task": task, "seed": 1000, "choosing": True}
        jobs = [shared | {"method": m, "budget": b, **options[m, b], name: value} for (m, b), value in wanted]
        sign = 1 if TASKS[task].higher else -1
        return [sign * result["score"] for result in results_of(jobs, workers)]

    for pair, best in tuned(grids, scores_of, digits=1, most=most).items():
        options[pair][name] = best


def summary(task, workers, kept, chosen, seeds):
    """Scores of all methods and seeds, kept or new, and how ours compare in pairs with each other method."""
    pairs = [(method, budget) for budget in TASKS[task].budgets for method in methods(task, budget)]
    rates = chosen_rates(workers, task, [pair for pair in pairs if pair[0] in chosen and pair not in kept])
    settings = [{"task": task, "method": m, **own, "budget": b, "choosing": False} for (m, b), own in rates.items()]
    jobs = [one | {"seed": seed} for one in settings for seed in seeds]
    rows, better, found = {}, 1 if TASKS[task].higher else -1, iter(results_of(jobs, workers))
    for (method, budget), own in rates.items():
        row = rows[method, budget] = {"budget": budget, "method": method, **own}
        results = list(islice(found, len(seeds)))
        row["scores"] = [result["score"] for result in results]
    rows = {pair: (kept | rows)[pair] for pair in pairs if pair in kept | rows}
    for (method, budget), row in rows.items():
        for ours in OURS if method in GRIDS or "default" in method else ():
            if (ours, budget) in rows:
                own = rows[ours, budget]["scores"][: len(row["scores"])]  # with the same seeds
                gap, noise = difference_of(own, row["scores"])
                row[f"{ours} ahead by"], row[f"{ours} noise"] = better * gap, noise
    return list(rows.values())


def run_trial(
    *, task, batch, budget, seed, projection="ridge", scale="auto", delta="auto", real="auto", momentum="auto"
):
    """The validation score of a run with options of its own."""
    chosen = replace(TASKS[task], batch=batch) if batch else TASKS[task]
    projection = {"ridge": Ridge, "spins": Spins}[projection](delta=delta)
    options = {} if momentum == "auto" else {"momentum": momentum}
    scale = first_scale(task, "ridge") if scale == "auto" else scale
    layers = {} if scale is None else {"scale": SCALES[scale]}

    def make(model, steps):
        return QPSBGD(model, projection=projection, steps=steps, real={} if real == "auto" else {"lr": real}, **options)

    return chosen.run(make, budget=budget, seed=seed, choosing=True, **layers)


def compare(given, workers, option, values):
    """Add a row for every task, budget and value of an option to the option's file."""
    file = given.into / TRIALS[option]
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    settings = [
        {"task": task, "batch": given.batch, "budget": budget, "projection": given.projection, option: value}
        for task in given.tasks
        for budget in given.budgets or TASKS[task].budgets
        for value in values
    ]
    rows = [row for row in rows if not any(one.items() <= ({"projection": "ridge"} | row).items() for one in settings)]
    jobs = [one | {"seed": 1000 + seed} for one in settings for seed in range(given.seeds)]
    found = iter([result["score"] for result in results_of(jobs, workers, run_trial)])
    rows += [one | {"scores": list(islice(found, given.seeds))} for one in settings]
    write_json(file, {"made with": environment(), "device": DEVICE_NAME, "rows": rows})


def value(text):
    """A value of an option that is compared: a number, or a word."""
    return text if text.isalpha() else float(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--add", action="store_true", help="measure what the kept results lack, with the same seeds")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="measure only these")
    parser.add_argument("--into", type=Path, default=RESULTS)
    for option, name in zip(TRIALS, ("--deltas", "--real-rates", "--momenta", "--scales"), strict=True):
        parser.add_argument(name, dest=option, nargs="+", type=value, help="compare these on validation data")
    parser.add_argument("--projection", choices=("ridge", "spins"), default="ridge", help="with a comparison")
    parser.add_argument("--batch", type=int, help="with a comparison: another batch than the task's")
    parser.add_argument("--budgets", nargs="+", type=int, help="with a comparison: others than the task's")
    given = parser.parse_args()
    with local_workers(given.processes) as workers:
        if compared := {option: values for option in TRIALS if (values := vars(given)[option])}:
            for option, values in compared.items():
                compare(given, workers, option, values)
            return
        for task in given.tasks:
            before = RESULTS / f"training_{task}.json"
            known = json.loads(before.read_text())["rows"] if given.add and before.exists() else []
            kept = {(row["method"], row["budget"]): row for row in known}
            rows = summary(task, workers, kept, given.methods, range(given.seeds))
            settings = {"task": task, "seeds": given.seeds, "device": DEVICE_NAME}
            content = {"made with": environment(), "settings": settings, "rows": rows}
            write_json(given.into / f"training_{task}.json", content)


if __name__ == "__main__":
    main()
