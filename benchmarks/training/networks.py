"""Which method trains the networks of today best? VGG-small and ResNets on CIFAR-10, a character GPT; one-bit weights.

First convolution, embeddings and head stay real-valued, as the literature has it. QP-SBGD runs with each projection
in turn, one of which is the default, and no other option but `steps` and `real=True`. Every rival takes the best of a
grid of rates, chosen with one seed on the last 5,000 training images (for text: on windows of training text), and its
real part at the rate given in `METHODS`; a best rate at the edge of a grid extends it once per round. All have the
same warm-up, cosine, batches and augmentation (crops of 4 pixels, flips). Passes are CUDA graphs in bfloat16; the
optimisers' steps are the library's own.

    python benchmarks/training/networks.py [--tasks NAME …] [--processes N] [--seconds S] [--into FILE]

Needs a GPU and, for CIFAR, QPSBGD_DATA/cifar-10/images.npz (x_train, y_train, x_test, y_test; uint8, NHWC; training
images in random order). CIFAR-100, in cifar-100/images.npz, and Fashion-MNIST, in the four files of fashion/, are held
out: rivals run there at the rates that CIFAR-10 gave them, like ours. Finished runs are kept, so that a stopped study
goes on; runs that have not begun after S seconds are left out, and the result says which. Writes
benchmarks/results/networks.json.
"""

import argparse
import json
import math
import os
import time
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from binarize_networks import GPT
from binarize_networks import characters as text

from qpsbgd import QPSBGD, BinaryConnect, Bop, StraightThrough
from qpsbgd.nn import BinaryLayer, convert
from qpsbgd.optim.rates import WARMUP, schedule
from qpsbgd.projections import Spins
from qpsbgd_paper.datasets.mnist import read_idx
from qpsbgd_paper.experiments.cifar import augmented, resnet, vgg_small
from qpsbgd_paper.framework.result_files import environment, write_json

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WINDOW = 256
BATCH, TEXT_BATCH = 128, 64
LONGEST = 3600
"""Seconds for which runs that have begun are waited for."""
FILE = Path(__file__).parents[1] / "results" / "networks.json"


def float_optimizer(kind, model, steps, lr):
    """Real weights under one of torch's own optimisers."""
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05)


def sgd_real(lr):
    """The real part as networks under SGD have it."""
    return {"kind": torch.optim.SGD, "lr": lr, "momentum": 0.9, "weight_decay": 5e-4}


METHODS = {
    "ridge": (lambda m, s, lr: QPSBGD(m, projection="ridge", steps=s, real=True), [None]),
    "spins": (lambda m, s, lr: QPSBGD(m, projection="spins", steps=s, real=True), [None]),
    "spins-2": (lambda m, s, lr: QPSBGD(m, projection=Spins(bits=2), steps=s, real=True), [None]),
    "polar": (lambda m, s, lr: QPSBGD(m, projection="polar", steps=s, real=True), [None]),
    "st-adamw": (lambda m, s, lr: StraightThrough(m, lr, "adam", steps=s, real=True), [1e-3, 3e-3, 1e-2]),
    "st-sgd": (lambda m, s, lr: StraightThrough(m, lr, "sgd", steps=s, real=sgd_real(lr)), [0.05, 0.1, 0.3]),
    "st-muon": (lambda m, s, lr: StraightThrough(m, lr, "muon", steps=s, real=True), [0.01, 0.02, 0.05]),
    "bc-adam": (
        lambda m, s, lr: BinaryConnect(m, lr, relative=True, steps=s, real=True),
        [0.01, 0.03, 0.1],
    ),
    "bop": (lambda m, s, lr: Bop(m, lr, threshold=1e-6, steps=s, real=True), [1e-4, 1e-3]),
    "float-sgd": (partial(float_optimizer, "sgd"), [0.1]),
    "float-adamw": (partial(float_optimizer, "adamw"), [1e-3]),
}
RIVALS = ["st-muon", "st-adamw", "st-sgd"]
CIFAR = ["ridge", "spins", "polar", *RIVALS, "bc-adam", "float-sgd", "spins-2"]
LONG = ["polar", "st-muon", "ridge", "spins", "st-adamw", "st-sgd", "float-sgd"]
TEXT = ["ridge", "spins", "polar", "st-muon", "st-adamw", "float-adamw"]
TASKS = {
    "vgg-5": ("cifar-10", vgg_small, 5, CIFAR, 3),
    "resnet20-10": ("cifar-10", partial(resnet, 20), 10, [*CIFAR, "bop"], 3),
    "vgg-25": ("cifar-10", vgg_small, 25, LONG, 1),
    "resnet20-30": ("cifar-10", partial(resnet, 20), 30, LONG, 3),
    "resnet56-10": ("cifar-10", partial(resnet, 56), 10, ["ridge", "polar", "spins", *RIVALS], 1),
    "resnet20-100": ("cifar-10", partial(resnet, 20), 100, ["ridge", "polar", "st-sgd", "st-muon", "st-adamw"], 1),
    "gpt-1500": ("text", partial(GPT, layers=6), 1500, TEXT, 2),
    "gpt-5000": ("text", partial(GPT, layers=6), 5000, ["ridge", "polar", "st-muon", "st-adamw"], 1),
    "cifar100-vgg-5": ("cifar-100", partial(vgg_small, 100), 5, LONG, 1),
    "cifar100-resnet20-10": ("cifar-100", partial(resnet, 20, 100), 10, LONG, 1),
    "fashion-vgg-5": ("fashion", vgg_small, 5, ["ridge", "polar", "spins", *RIVALS], 1),
    "fashion-resnet20-10": ("fashion", partial(resnet, 20), 10, ["ridge", "polar", "spins", *RIVALS], 1),
}
"""Name: data, network, epochs (for text: steps), methods, seeds."""
SHORTER = {
    "vgg-25": "vgg-5",
    "cifar100-vgg-5": "vgg-5",
    "fashion-vgg-5": "vgg-5",
    "fashion-resnet20-10": "resnet20-10",
    "resnet20-30": "resnet20-10",
    "resnet20-100": "resnet20-10",
    "resnet56-10": "resnet20-10",
    "cifar100-resnet20-10": "resnet20-10",
    "gpt-5000": "gpt-1500",
}
"""Where rivals of the long and of the held-out tasks take their rates from."""


def fashion():
    """Fashion-MNIST in the shape of CIFAR: black edges, three equal channels."""
    folder = Path(os.environ["QPSBGD_DATA"]) / "fashion"
    for part in ("train", "t10k"):
        grey = read_idx(folder / f"{part}-images-idx3-ubyte.gz", dimensions=3)
        yield np.repeat(np.pad(grey, ((0, 0), (2, 2), (2, 2)))[..., None], 3, axis=-1)
        yield read_idx(folder / f"{part}-labels-idx1-ubyte.gz", dimensions=1)


@cache
def images(name, choosing):
    if name == "fashion":
        parts = [torch.from_numpy(np.ascontiguousarray(part)).to(DEVICE) for part in fashion()]
    else:
        found = np.load(Path(os.environ["QPSBGD_DATA"]) / name / "images.npz")
        parts = [torch.from_numpy(found[name]).to(DEVICE) for name in ("x_train", "y_train", "x_test", "y_test")]
    if choosing:
        return parts[0][:-5000], parts[1][:-5000].long(), parts[0][-5000:], parts[1][-5000:].long()
    return parts[0], parts[1].long(), parts[2], parts[3].long()


def cifar_task(name, epochs, seed, choosing):
    """Steps, a function that draws the batch of a step, the loss, and the score."""
    inputs, targets, others, wanted = images(name, choosing)
    per_epoch = len(inputs) // BATCH
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(inputs), generator=generator)[: per_epoch * BATCH] for _ in range(epochs)]
    order = torch.cat(orders).reshape(-1, BATCH).to(DEVICE)

    def draw(step):
        rows = order[step].reshape(-1)
        return augmented(inputs[rows]), targets[rows]

    def score(model):
        parts = zip(others.split(1000), wanted.split(1000), strict=True)
        return sum(int((model(augmented(x, plain=True)).argmax(1) == y).sum()) for x, y in parts) / len(wanted)

    return epochs * per_epoch, draw, lambda model, x, y: F.cross_entropy(model(x).float(), y), score


def text_task(steps, seed, choosing):
    train, held = text()
    offsets = torch.arange(WINDOW + 1, device=DEVICE)
    part = train if choosing else held  # windows of training text that no batch is likely to have seen whole
    starts = torch.randint(len(part) - WINDOW - 1, (512, 1), generator=torch.Generator().manual_seed(7)).to(DEVICE)

    def draw(step):
        windows = train[torch.randint(len(train) - WINDOW - 1, (TEXT_BATCH, 1), device=DEVICE) + offsets]
        return windows[:, :-1], windows[:, 1:]

    def loss(model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())

    def score(model):
        return sum(loss(model, w[:, :-1], w[:, 1:]).item() for w in part[starts + offsets].split(64)) / 8

    return steps, draw, loss, score


class Passes:
    """Forward and backward passes, as a CUDA graph wherever no layer records rows."""

    def __init__(self, model, draw, loss):
        self.model, self.draw, self.loss = model, draw, loss
        self.layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
        self.step = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.graph, self.grads = None, []

    def plain(self):
        torch._foreach_zero_(self.grads)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda", cache_enabled=False):
            loss = self.loss(self.model, *self.draw(self.step))
        loss.backward()

    def run(self, step):
        self.step.fill_(step)
        if not self.grads:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.grads = [parameter.grad for parameter in self.model.parameters()]
        recorded = any(layer.tape is not None and layer.tape.wanted for layer in self.layers)
        if recorded or step < 5 or DEVICE == "cpu":
            self.plain()
            return
        if self.graph is None:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.plain()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.plain()
        self.graph.replay()


def run(job):
    """One run, by its description: score and seconds."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    data, build, budget, _, _ = TASKS[job["task"]]
    torch.manual_seed(job["seed"])
    model, real = build(), job["method"].startswith("float")
    model = (model if real else convert(model, first=data == "text", last=False)).to(DEVICE)
    made = text_task if data == "text" else partial(cifar_task, data)
    steps, draw, loss, score = made(budget, job["seed"], job["choosing"])
    optimizer = METHODS[job["method"]][0](model, steps, job["lr"])
    passes = Passes(model, draw, loss)
    begun = time.perf_counter()
    for step in range(steps):
        passes.run(step)
        if real:
            optimizer.param_groups[0]["lr"] = job["lr"] * schedule(step, steps, WARMUP)
        optimizer.step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    model.eval()
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        found = score(model)
    return job, {"score": found, "seconds": seconds, "steps": steps}


def worker(queue, answers, end):
    torch.set_num_threads(1)
    while (job := queue.get()) is not None:
        if time.time() > end:
            answers.put((job, None))
            continue
        try:
            answers.put(run(job))
        except Exception as error:
            answers.put((job, {"error": repr(error)[:300]}))
        torch.cuda.empty_cache()


def key(job):
    return json.dumps(job, sort_keys=True)


class Study:
    """Runs that are kept in a file, made by several processes until the time is over."""

    def __init__(self, result, processes, seconds):
        self.path, self.end, self.found = result.with_suffix(".jsonl"), time.time() + seconds, {}
        if result.exists():
            for row in json.loads(result.read_text())["rows"]:
                job = {name: row.pop(name) for name in ("task", "method", "lr", "seed", "choosing")}
                self.found[key(job)] = row
        if self.path.exists():
            self.found |= {key(job): kept for job, kept in map(json.loads, self.path.read_text().splitlines())}
        context = torch.multiprocessing.get_context("spawn")
        self.queue, self.answers = context.Queue(), context.Queue()
        target, args = worker, (self.queue, self.answers, self.end)
        self.workers = [context.Process(target=target, args=args, daemon=True) for _ in range(processes)]
        for one in self.workers:
            one.start()

    def add(self, jobs):
        """Ask for jobs that are new; how many they are."""
        new = [job for job in jobs if key(job) not in self.found]
        for job in new:
            self.found[key(job)] = None
            self.queue.put(job)
        return len(new)

    def wait(self):
        """One more result, kept unless the time was over before it began; None if a worker never answers."""
        while time.time() < self.end + LONGEST:
            try:
                job, result = self.answers.get(timeout=5)
            except Exception:
                if time.time() > self.end and not any(one.is_alive() for one in self.workers):
                    return None
                continue
            if result is None:
                return job
            self.found[key(job)] = result
            with self.path.open("a") as file:
                file.write(json.dumps([job, result]) + "\n")
            print(job["task"], job["method"], job["lr"], job["seed"], job["choosing"], result, flush=True)
            return job
        return None


def better(task, one, two):
    """Whether a score is better than another."""
    return one < two if TASKS[task][0] == "text" else one > two


def grid_of(study, task, method):
    """Results on validation data by rate."""
    found = {}
    for text_key, result in study.found.items():
        job = json.loads(text_key)
        if (job["task"], job["method"], job["choosing"]) == (task, method, True) and result and "score" in result:
            found[job["lr"]] = result["score"]
    return found


def best_of(task, grid):
    best = None
    for rate in sorted(grid):
        if best is None or better(task, grid[rate], grid[best]):
            best = rate
    return best


def next_jobs(study, task):
    """What is to be run once the present results are known: finals of ours, grids of rivals, then their finals."""
    _, _, _, names, seeds = TASKS[task]
    jobs = []
    for method in names:
        grid = METHODS[method][1]
        rate = grid[0]
        if len(grid) > 1:
            home = SHORTER.get(task, task)
            tried, open_grid = grid_of(study, home, method), [*grid]
            if len(tried) >= len(grid):
                rate = best_of(home, tried)
                if math.isclose(rate, min(tried)) and len(tried) < 6:
                    open_grid.append(min(tried) / 3)
                if math.isclose(rate, max(tried)) and len(tried) < 6:
                    open_grid.append(max(tried) * 3)
            job = {"task": home, "method": method, "seed": 100, "choosing": True}
            missing = [r for r in open_grid if key({**job, "lr": r}) not in study.found]
            jobs += [{**job, "lr": r} for r in missing]
            if missing or len(tried) < len(open_grid):
                continue
        jobs += [{"task": task, "method": method, "lr": rate, "seed": s, "choosing": False} for s in range(seeds)]
    return jobs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=36_000)
    parser.add_argument("--into", type=Path, default=FILE)
    options = parser.parse_args()
    study = Study(options.into, options.processes, options.seconds)
    waiting = sum(study.add(next_jobs(study, task)) for task in options.tasks)
    while waiting and study.wait() is not None:
        waiting += sum(study.add(next_jobs(study, task)) for task in options.tasks) - 1
    for _ in study.workers:
        study.queue.put(None)
    rows = [{**json.loads(job), **result} for job, result in study.found.items() if result]
    left = [json.loads(job) for job, result in study.found.items() if not result]
    write_json(options.into, {"made with": environment(), "rows": rows, "left out": left})
    study.path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
