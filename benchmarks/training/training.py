"""Which method trains binary networks best, at which budget? QP-SBGD at its defaults beside tuned baselines.

Test accuracy (for Adult the loss on the training rows) after 1 to 30 epochs, every run with a cosine over its own
length. QP-SBGD takes its default rate; every baseline takes the best of a grid of learning rates, chosen per task and
budget on validation data with another seed than the final ones; the longest budgets take the choice of the next
shorter one (`chosen_up_to`). A best rate at the edge of a grid extends it. Runs with the same seed share initial
weights and batches, so that methods are compared in pairs.

    python benchmarks/training/training.py TASK … [--processes N] [--seeds 5] [--most-epochs 30] [--add] [--methods …]

Finished runs are kept beside the result, so that a stopped study goes on. Runs on CUDA where there is one. Data are
found through QPSBGD_DATA. Writes training_TASK.json for every task, into benchmarks/results or a given folder.
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import argparse
import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant, StraightThrough, real_optimizer
from qpsbgd.nn import BinaryConv2d, BinaryLinear, convert
from qpsbgd.projections import Spins
from qpsbgd_paper.framework.claims import difference_of
from qpsbgd_paper.framework.result_files import environment, write_json

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RESULTS = Path(__file__).parents[1] / "results"

METHODS = {
    "ridge": lambda model, steps, lr: QPSBGD(model, steps=steps, real=True),
    "spins": lambda model, steps, lr: QPSBGD(model, projection="spins", steps=steps, real=True),
    "spins-2": lambda model, steps, lr: QPSBGD(model, projection=Spins(bits=2), steps=steps, real=True),
    "printed": lambda model, steps, lr: QPSBGD(model, projection="printed", steps=steps),
    "bc-adam": lambda model, steps, lr: BinaryConnect(model, lr, "adam", relative=True, steps=steps),
    "bc-sign": lambda model, steps, lr: BinaryConnect(model, lr, "sign", momentum=0.9, relative=True, steps=steps),
    "bc-sgd": lambda model, steps, lr: BinaryConnect(model, lr, "sgd", momentum=0.9, steps=steps),
    "bc-normalized": lambda model, steps, lr: BinaryConnect(
        model, lr, "normalized", momentum=0.9, relative=True, steps=steps
    ),
    "proxquant": lambda model, steps, lr: ProxQuant(model, lr, momentum=0.9, steps=steps),
    "bc-adam, default": lambda model, steps, lr: BinaryConnect(model, steps=steps),
    "st-adamw": lambda model, steps, lr: StraightThrough(model, lr, "adam", steps=steps, real=True),
    "st-muon": lambda model, steps, lr: StraightThrough(model, lr, "muon", steps=steps, real=True),
}
SCALED = ("st-adamw", "st-muon")
"""Methods whose layers have scales that follow the latent weights, in every task."""
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


def dense(widths, *, norm=False, scale=None):
    layers = []
    for n, m in pairwise(widths):
        layers += [BinaryLinear(n, m, scale=scale), *([nn.BatchNorm1d(m)] if norm else []), nn.Hardtanh()]
    return nn.Sequential(*layers[:-1])


def converted(widths, *, norm=False, scale="magnitude"):
    """A network with ReLU as users have it, converted: all layers binary, scales that follow the latent weights."""
    layers = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), *([nn.BatchNorm1d(m)] if norm else []), nn.ReLU()]
    return convert(nn.Sequential(*layers[:-1]), scale=scale)


def deep(*, scale="magnitude"):
    """Nine layers with ReLU and without norms, initialised after He et al., converted."""
    layers = []
    for n, m in pairwise([16, *[128] * 8, 26]):
        layers += [nn.Linear(n, m), nn.ReLU()]
        nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")
        nn.init.zeros_(layers[-2].bias)
    return convert(nn.Sequential(*layers[:-1]), scale=scale)


def convolutional(*, norm, scale=None):
    """3 × 3 convolutions 1 → 32 → 64 with pooling, and a linear layer 3136 → 10."""
    layers = []
    for n, m in ((1, 32), (32, 64)):
        layers += [BinaryConv2d(n, m, 3, padding=1, scale=scale), *([nn.BatchNorm2d(m)] if norm else []), nn.Hardtanh()]
        layers += [nn.MaxPool2d(2)]
    layers += [nn.Flatten(), BinaryLinear(3136, 10, scale=scale), *([nn.BatchNorm1d(10)] if norm else [])]
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *layers)


def wide(width=1024):
    """Three layers with batch norm, ReLU and a little dropout, by default as wide as BinaryConnect's network."""
    layers, n = [nn.Dropout(0.2)], 784
    for m in (width, width, width):
        layers, n = [*layers, BinaryLinear(n, m), nn.BatchNorm1d(m), nn.ReLU(), nn.Dropout(0.2)], m
    return nn.Sequential(*layers, BinaryLinear(n, 10), nn.BatchNorm1d(10))


def large_convolutional():
    """Four 3 × 3 convolutions of 64 and 128 channels and two linear layers, with batch norm."""
    layers, n = [nn.Unflatten(1, (1, 28, 28))], 1
    for m, pool in ((64, []), (64, [nn.MaxPool2d(2)]), (128, []), (128, [nn.MaxPool2d(2)])):
        layers, n = [*layers, BinaryConv2d(n, m, 3, padding=1), *pool, nn.BatchNorm2d(m), nn.Hardtanh()], m
    layers += [nn.Flatten(), BinaryLinear(6272, 256), nn.BatchNorm1d(256), nn.Hardtanh()]
    return nn.Sequential(*layers, BinaryLinear(256, 10), nn.BatchNorm1d(10))


@cache
def mnist(choosing):
    from qpsbgd_paper.datasets import load_mnist

    images = load_mnist()
    parts = (images.train_images, images.train_labels, images.test_images, images.test_labels)
    return prepared_images(parts, choosing, mean=0.1307, deviation=0.3081)


def prepared_images(parts, choosing, *, mean, deviation):
    """Training and test images and labels, or those of the validation split."""
    inputs, targets, test_inputs, test_targets = (part.to(DEVICE) for part in parts)
    inputs, test_inputs = ((x.flatten(1).float() / 255 - mean) / deviation for x in (inputs, test_inputs))
    if choosing:  # the last sixth for validation
        return inputs[:50000], targets[:50000], inputs[50000:], targets[50000:]
    return inputs, targets, test_inputs, test_targets


@cache
def fashion(choosing):
    """Fashion-MNIST, in the folder fashion of QPSBGD_DATA: held out, run once with the defaults frozen."""
    from qpsbgd_paper.datasets.mnist import read_idx

    folder = Path(os.environ["QPSBGD_DATA"]) / "fashion"
    parts = []
    for part in ("train", "t10k"):
        parts.append(torch.from_numpy(read_idx(folder / f"{part}-images-idx3-ubyte.gz", dimensions=3)))
        parts.append(torch.from_numpy(read_idx(folder / f"{part}-labels-idx1-ubyte.gz", dimensions=1)).long())
    return prepared_images(parts, choosing, mean=0.2860, deviation=0.3530)


@cache
def table(file, target, choosing):
    """A set of the UCI repository, in the folder uci of QPSBGD_DATA: every fifth row for testing, features scaled.

    Args:
        file: As the repository names it; `target` is the column of the class.
    """
    lines = (Path(os.environ["QPSBGD_DATA"]) / "uci" / file).read_text().splitlines()
    rows = [line.split(",") for line in lines if line.strip()]
    names = {row[target] for row in rows[1:]}
    rows = rows if rows[0][target] in names else rows[1:]  # some copies have a head
    classes = {name: k for k, name in enumerate(sorted(names))}
    targets = torch.tensor([classes[row.pop(target)] for row in rows])
    inputs = torch.tensor([[float(cell) for cell in row] for row in rows])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]
    test = torch.arange(len(rows)) % 5 == 0
    held = torch.arange(len(rows)) % 5 == 1 if choosing else test
    train = ~test & ~held
    inputs = (inputs - inputs[train].mean(0)) / inputs[train].std(0)
    return [part.to(DEVICE) for part in (inputs[train], targets[train], inputs[held], targets[held])]


@cache
def digits(choosing):
    from qpsbgd_paper.experiments.digits import split_digits

    (inputs, targets), (test_inputs, test_targets) = split_digits("validation" if choosing else "test")
    return inputs, targets, test_inputs, test_targets


def accuracy(model, inputs, targets):
    right = sum(
        int((model(x).argmax(1) == y).sum()) for x, y in zip(inputs.split(2000), targets.split(2000), strict=True)
    )
    return right / len(targets)


@dataclass(frozen=True)
class Images:
    """A classifier of images: batches of `batch` for `epochs` epochs, scored by accuracy."""

    build: object
    data: object = mnist
    batch: int = 100
    budgets: tuple = (1, 3, 10)
    higher: bool = True
    chosen_up_to: int = 3
    left_out: dict = field(default_factory=lambda: {10: ("printed",)})
    ours_alone: bool = False

    def run(self, make, *, budget, seed, choosing, **scale):
        inputs, targets, test_inputs, test_targets = self.data(choosing)
        torch.manual_seed(seed)
        model = self.build(**scale).to(inputs.device)
        steps = budget * (len(inputs) // self.batch)
        binary = make(model, steps)
        optimizers = [binary]
        if sum(p.numel() for p in model.parameters()) > sum(
            p.numel() for g in binary.param_groups for p in g["params"]
        ):
            optimizers.append(real_optimizer(model, binary, lr=1e-3))
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, steps) for o in optimizers[1:]]
        order = torch.Generator().manual_seed(seed)
        start = time.perf_counter()
        for _ in range(budget):
            rows = torch.randperm(len(inputs), generator=order).to(inputs.device)
            for batch in rows[: len(rows) // self.batch * self.batch].split(self.batch):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                outputs = model(inputs[batch])
                F.cross_entropy(outputs, targets[batch]).backward()
                for each in (*optimizers, *schedules):
                    each.step()
        model.eval()
        with torch.no_grad():
            score = accuracy(model, test_inputs, test_targets)
        return {"score": score, "seconds": time.perf_counter() - start}


@dataclass(frozen=True)
class Adult:
    """Ten layers on 512 rows of Adult, `budget` epochs of 32 batches of 16; the mean loss on them in the last epoch."""

    budgets: tuple = (4, 16)
    higher: bool = False

    def run(self, make, *, budget, seed, choosing, **scale):
        from qpsbgd_paper.experiments.adult_convergence import _load

        start = time.perf_counter()
        inputs, targets = _load("all")
        torch.manual_seed(seed + 500 * choosing)
        rows = torch.randperm(len(inputs))[:512]
        inputs, targets = inputs[rows], targets[rows]
        model = dense([123, *[128] * 9, 1], **scale)
        optimizer = make(model, 32 * budget)
        losses = []
        for _ in range(budget):
            for batch in torch.randperm(512).split(16):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(model(inputs[batch])[:, 0], targets[batch]).backward()
                optimizer.step()
                with torch.no_grad():
                    losses.append(F.binary_cross_entropy_with_logits(model(inputs)[:, 0], targets).item())
        return {"score": sum(losses[-32:]) / 32, "seconds": time.perf_counter() - start}


@dataclass(frozen=True)
class Citation:
    """The graph network of the paper's citation experiments, `budget` steps; accuracy at the best validation score."""

    graph: str
    budgets: tuple = (100,)
    higher: bool = True
    left_out: dict = field(default_factory=lambda: {100: SCALED})

    def run(self, make, *, budget, seed, choosing):
        from qpsbgd.nn import BinaryLayer
        from qpsbgd_paper.experiments.citation import CitationNet, prepared

        start = time.perf_counter()
        nodes = prepared(self.graph)
        torch.manual_seed(seed)
        model = CitationNet(nodes, width=32, gain="fan_in")
        layers = [module for module in model.modules() if isinstance(module, BinaryLayer)]
        binary = {layer.weight for layer in layers}
        optimizer = make(layers, budget)
        encoder = torch.optim.Adam((p for p in model.parameters() if p not in binary), lr=0.01, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(encoder, budget)
        rows, around = nodes.train, nodes.around(nodes.train)
        held = [(nodes.around(part), nodes.labels[part]) for part in (nodes.validation, nodes.test)]
        scores = []
        for step in range(budget):
            model.train()
            for each in (optimizer, encoder):
                each.zero_grad()
            F.nll_loss(model(around), nodes.labels[rows]).backward()
            for each in (optimizer, encoder, schedule):
                each.step()
            if (step + 1) % 10 == 0:
                model.eval()
                with torch.no_grad():
                    parts = [model(part).argmax(1) == labels for part, labels in held]
                scores.append([part.double().mean().item() for part in parts])
        validation, test = max(scores, key=lambda pair: pair[0])
        return {"score": validation if choosing else test, "seconds": time.perf_counter() - start}


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
    "mnist-wide": Images(wide, budgets=(50,), ours_alone=True),
    "mnist-wider": Images(partial(wide, 2048), budgets=(50,), ours_alone=True),
    "mnist-cnn-large": Images(large_convolutional, budgets=(10,), ours_alone=True),
    "fashion-dense": Images(partial(dense, [784, 512, 512, 10]), fashion, left_out=HELD_OUT),
    "fashion-dense-bn": Images(partial(dense, [784, 512, 512, 10], norm=True), fashion, left_out=HELD_OUT),
    "fashion-cnn": Images(partial(convolutional, norm=False), fashion, left_out=HELD_OUT),
    "fashion-cnn-bn": Images(partial(convolutional, norm=True), fashion, left_out=HELD_OUT),
    "digits": Images(partial(dense, [64, 128, 10]), digits, batch=32, budgets=(2, 10), chosen_up_to=10, left_out={}),
    "adult-10": Adult(),
    "cora": Citation("cora"),
    "pubmed": Citation("pubmed"),
    **{
        f"{name}{'-bn' * norm}": Images(
            partial(converted, [features, 256, 256, classes], norm=norm),
            partial(table, file, target),
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
        deep,
        partial(table, "letter-recognition.data", 0),
        budgets=(3,),
        left_out={3: ("printed", "proxquant", "bc-sgd", "bc-sign", "bc-normalized")},
    ),
}


def run(job):
    """One run, by its description."""
    torch.set_num_threads(1)
    make = partial(METHODS[job["method"]], lr=job["lr"])
    task = TASKS[job["task"]]
    scale = {"scale": "magnitude"} if job["method"] in SCALED else {}
    result = task.run(make, budget=job["budget"], seed=job["seed"], choosing=job["choosing"], **scale)
    return job, result


class Runs:
    """Runs that are kept in a file, made by several processes."""

    def __init__(self, path, processes):
        self.path, self.kept = path, {}
        if path.exists():
            self.kept = {self._key(job): result for job, result in map(json.loads, path.read_text().splitlines())}
        self.pool = torch.multiprocessing.get_context("spawn").Pool(processes)

    @staticmethod
    def _key(job):
        return hashlib.sha1(json.dumps(job, sort_keys=True).encode()).hexdigest()

    def all(self, jobs):
        """The results of jobs, in their order; the longest begin first."""
        new = sorted((j for j in jobs if self._key(j) not in self.kept), key=lambda j: -j["budget"])
        with self.path.open("a") as file:
            for count, (job, result) in enumerate(self.pool.imap_unordered(run, new), 1):
                self.kept[self._key(job)] = result
                file.write(json.dumps([job, result]) + "\n")
                file.flush()
                if count % 20 == 0 or count == len(new):
                    print(f"{count}/{len(new)}", flush=True)
        return [self.kept[self._key(job)] for job in jobs]


def methods(task, budget, chosen=METHODS):
    """The chosen methods that are run on a task at a budget."""
    if getattr(TASKS[task], "ours_alone", False):
        return ["ridge"]
    out = getattr(TASKS[task], "left_out", {}).get(budget, ())
    return [method for method in METHODS if method in chosen and method not in out]


def chosen_rates(runs, tasks, budgets, kept, chosen):
    """The best learning rate of every tuned method per task and budget, on validation data, or that of a kept row."""
    choices = {t: [b for b in budgets(t) if b <= getattr(TASKS[t], "chosen_up_to", b)] for t in tasks}
    found = {key: row["lr"] for key, row in kept.items()}
    grids = {(t, m, b): list(GRIDS[m]) for t in tasks for b in choices[t] for m in methods(t, b, chosen) if m in GRIDS}
    grids = {key: rates for key, rates in grids.items() if key not in found}
    while grids:
        jobs = [
            {"task": t, "method": m, "lr": lr, "budget": b, "seed": 1000, "choosing": True}
            for (t, m, b), rates in grids.items()
            for lr in rates
        ]
        scores = iter([result["score"] for result in runs.all(jobs)])
        wider = {}
        for (t, m, b), rates in grids.items():
            better = 1 if TASKS[t].higher else -1
            own = {lr: better * next(scores) for lr in rates}
            best = max(own, key=own.get)
            found[t, m, b] = best
            if best in (min(rates), max(rates)) and len(rates) < 6:
                factor = 1 / 3 if best == min(rates) else 3
                wider[t, m, b] = [*rates, float(f"{best * factor:.1g}")]
        grids = wider
    for t in tasks:
        for b in budgets(t):
            for m in methods(t, b, chosen):
                if m in GRIDS and (t, m, b) not in found:
                    found[t, m, b] = found[t, m, max(choices[t])]
    return found


def final_jobs(task, budget, method, rates, seeds):
    lr = rates.get((task, method, budget))
    shared = {"task": task, "method": method, "lr": lr, "budget": budget}
    return [{**shared, "seed": seed, "choosing": False} for seed in range(seeds)]


def summary(task, runs, rates, seeds, budgets, kept, chosen):
    """Scores of all methods and seeds, and how ours compare in pairs with each other method."""
    rows = []
    better = 1 if TASKS[task].higher else -1
    for budget in budgets(task):
        scores = {}
        for method in methods(task, budget):
            if method not in chosen and (task, method, budget) not in kept:
                continue
            row = kept.get((task, method, budget)) or measured(task, budget, method, runs, rates, seeds)
            rows.append(row)
            scores[method] = row["scores"]
            for ours in OURS if method in GRIDS or "default" in method else ():
                if ours in scores:
                    gap, noise = difference_of(scores[ours], scores[method])
                    row[f"{ours} ahead by"], row[f"{ours} noise"] = better * gap, noise
    return rows


def measured(task, budget, method, runs, rates, seeds):
    found = runs.all(final_jobs(task, budget, method, rates, seeds))
    seconds = sorted(result["seconds"] for result in found)[seeds // 2]
    scores = [result["score"] for result in found]
    return {
        "budget": budget,
        "method": method,
        "lr": rates.get((task, method, budget)),
        "scores": scores,
        "seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--most-epochs", type=int, default=30, help="leave longer budgets out")
    parser.add_argument("--add", action="store_true", help="measure what the kept results lack, with the same seeds")
    parser.add_argument("--again", nargs="*", default=[], metavar="METHOD", help="measure these anew, with --add")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="measure only these")
    parser.add_argument("--into", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    runs = Runs(given.into / "training_runs.jsonl", given.processes)

    def budgets(task):
        return [b for b in TASKS[task].budgets if not isinstance(TASKS[task], Images) or b <= given.most_epochs]

    kept = {
        (task, row["method"], row["budget"]): row
        for task in given.tasks
        if given.add and (RESULTS / f"training_{task}.json").exists()
        for row in json.loads((RESULTS / f"training_{task}.json").read_text())["rows"]
        if row["method"] not in given.again
    }
    rates = chosen_rates(runs, given.tasks, budgets, kept, given.methods)
    runs.all(  # all tasks together, so that no process waits
        [
            job
            for t in given.tasks
            for b in budgets(t)
            for m in methods(t, b, given.methods)
            if (t, m, b) not in kept
            for job in final_jobs(t, b, m, rates, given.seeds)
        ]
    )
    for task in given.tasks:
        rows = summary(task, runs, rates, given.seeds, budgets, kept, given.methods)
        settings = {
            "task": task,
            "seeds": given.seeds,
            "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        }
        write_json(
            given.into / f"training_{task}.json", {"made with": environment(), "settings": settings, "rows": rows}
        )
        for row in rows:
            mean = sum(row["scores"]) / len(row["scores"])
            ahead = f"ridge {row['ridge ahead by']:+.4f} ± {row['ridge noise']:.4f}" if "ridge ahead by" in row else ""
            print(f"{task:16}{row['budget']:5} {row['method']:18}{mean:.4f}  lr {row['lr']}  {ahead}", flush=True)


if __name__ == "__main__":
    main()
