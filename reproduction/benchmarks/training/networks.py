"""Which method trains the networks of today best? VGG-small and ResNets on CIFAR-10, a character GPT; one-bit weights.

First convolution, embeddings and head stay real-valued, as the literature has it. QP-SBGD runs with each projection
in turn, one of which is the default, and no other option but `steps` and `real=True`. Every rival takes the best of a
grid of rates, chosen with one seed on the last 5,000 training images (for text: on windows of training text), and its
real part as in `METHODS`; a best rate at the edge of a grid extends it. All have the same warm-up, cosine, batches and
augmentation (crops of 4 pixels, flips). Passes are CUDA graphs in bfloat16; optimisers' steps are the library's own.

    python benchmarks/training/networks.py [task=vgg-5 task=gpt-1500 …] [--processes N] [--seconds S] [--into FILE]

Needs a GPU and, for CIFAR, QPSBGD_DATA/cifar-10/images.npz (x_train, y_train, x_test, y_test; uint8, NHWC; training
images in random order). CIFAR-100, in cifar-100/images.npz, and Fashion-MNIST, in the four files of fashion/, are held
out: rivals run there at the rates that CIFAR-10 gave them, like ours. Finished runs are kept, so that a stopped study
goes on; none begins after S seconds. Writes results/networks.json.
"""

from functools import cache, partial

import torch
import torch.nn.functional as F
from benchmarks.study import arguments, best_values
from benchmarks.training.binarize_networks import GPT, WINDOW
from benchmarks.training.binarize_networks import characters as text
from benchmarks.training.training_parts import DEVICE, accuracy, autocast, cifar, clock, fashion_parts

from qpsbgd import QPSBGD, BinaryConnect, Bop, StraightThrough
from qpsbgd.nn import BinaryLayer, convert
from qpsbgd.optim.functional import schedule
from qpsbgd.optim.recommend import WARMUP
from qpsbgd.projections import Spins
from qpsbgd_paper.framework.networks import augment, resnet, vgg_small

BATCH, TEXT_BATCH = 128, 64


def float_optimizer(kind, model, steps, lr):
    """Real weights under one of torch's own optimisers, with the schedule of all others."""
    if kind == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, steps, WARMUP))
    optimizer.register_step_post_hook(lambda *_: rates.step())
    return optimizer


def sgd_real(lr):
    """The real part as networks under SGD have it."""
    return {"kind": torch.optim.SGD, "lr": lr, "momentum": 0.9, "weight_decay": 5e-4}


METHODS = {
    "ridge": lambda m, s, lr: QPSBGD(m, projection="ridge", steps=s, real=True),
    "spins": lambda m, s, lr: QPSBGD(m, projection="spins", steps=s, real=True),
    "spins-2": lambda m, s, lr: QPSBGD(m, projection=Spins(bits=2), steps=s, real=True),
    "polar": lambda m, s, lr: QPSBGD(m, projection="polar", steps=s, real=True),
    "st-adamw": lambda m, s, lr: StraightThrough(m, lr, "adam", steps=s, real=True),
    "st-sgd": lambda m, s, lr: StraightThrough(m, lr, "sgd", steps=s, real=sgd_real(lr)),
    "st-muon": lambda m, s, lr: StraightThrough(m, lr, "muon", steps=s, real=True),
    "bc-adam": lambda m, s, lr: BinaryConnect(m, lr, relative=True, steps=s, real=True),
    "bop": lambda m, s, lr: Bop(m, lr, threshold=1e-6, steps=s, real=True),
    "float-sgd": partial(float_optimizer, "sgd"),
    "float-adamw": partial(float_optimizer, "adamw"),
}
"""Optimisers of a model for so many steps at a rate."""
GRIDS = {"st-adamw": [1e-3, 3e-3, 1e-2], "st-sgd": [0.05, 0.1, 0.3], "st-muon": [0.01, 0.02, 0.05]}
GRIDS |= {"bc-adam": [0.01, 0.03, 0.1], "bop": [1e-4, 1e-3]}
FIXED = {"float-sgd": 0.1, "float-adamw": 1e-3}
"""Rates that are tuned, and rates that are not; ours take their defaults."""
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


def home_of(task):
    """Where the rivals of long and of held-out tasks take their rates from: the shortest task of such a network."""
    return next(home for home in ("vgg-5", "resnet20-10", "gpt-1500") if home[:3] in task)


@cache
def images(name, choosing):
    """Training images and labels and those for the score; Fashion-MNIST gets black edges and three equal channels."""
    if name == "fashion":
        x, y, others, wanted = fashion_parts()
        x, others = (F.pad(grey, (2, 2, 2, 2))[..., None].expand(-1, -1, -1, 3) for grey in (x, others))
    else:
        x, y, others, wanted = cifar(name)
    if choosing:
        x, y, others, wanted = x[:-5000], y[:-5000], x[-5000:], y[-5000:]
    return x.to(DEVICE), y.to(DEVICE).long(), others.to(DEVICE), wanted.to(DEVICE).long()


def epochs_of(count, batch, epochs, seed):
    """The rows of every batch, (steps, batch), each epoch in another order."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(count, generator=generator)[: count // batch * batch] for _ in range(epochs)]
    return torch.cat(orders).reshape(-1, batch)


def classification(data, order, seen=lambda x, plain=False: x):
    """A task: steps, a function that draws the batch of a step, the loss, and the score.

    Args:
        data: Training inputs and classes, and those for the score.
        order: The rows of every batch.
        seen: What the network sees of inputs; of those for the score with `plain=True`.
    """
    inputs, targets, others, wanted = data
    order = order.to(DEVICE)

    def draw(step):
        rows = order[step].reshape(-1)
        return seen(inputs[rows]), targets[rows]

    def score(model):
        return accuracy(lambda x: model(seen(x, plain=True)), others, wanted)

    return len(order), draw, lambda model, x, y: F.cross_entropy(model(x).float(), y), score


def cifar_task(name, epochs, seed, choosing, count=None):
    x, y, *held = images(name, choosing)
    data = x[:count], y[:count], *held
    return classification(data, epochs_of(len(data[0]), BATCH, epochs, seed), augment)


def text_task(steps, seed, choosing):
    """The same for windows of text."""
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
        with autocast(cache_enabled=False):
            loss = self.loss(self.model, *self.draw(self.step))
        loss.backward()

    def run(self, step):
        self.step.fill_(step)
        if not self.grads:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
            self.grads = [parameter.grad for parameter in trained]
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


def train(model, optimizer, task):
    """Train for all steps of a task: score, seconds and steps."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    steps, draw, loss, score = task
    passes, begun = Passes(model, draw, loss), clock()
    for step in range(steps):
        passes.run(step)
        optimizer.step()
    seconds = clock() - begun
    model.eval()
    with torch.no_grad(), autocast():
        return {"score": score(model), "seconds": seconds, "steps": steps}


def run(job):
    """The row of one run."""
    data, build, budget, _, _ = TASKS[job["task"]]
    torch.manual_seed(job["seed"])
    model = build()
    if not job["method"].startswith("float"):
        model = convert(model, first=data == "text", last=False)
    made = text_task if data == "text" else partial(cifar_task, data)
    task = made(budget, job["seed"], job["choosing"])
    optimizer = METHODS[job["method"]](model.to(DEVICE), task[0], job["lr"])
    return job | train(model, optimizer, task)


def choosing_job(pair, rate):
    return {"task": pair[0], "method": pair[1], "lr": rate, "seed": 100, "choosing": True}


def final_jobs(task, method, rate):
    return [
        {"task": task, "method": method, "lr": rate, "seed": seed, "choosing": False} for seed in range(TASKS[task][4])
    ]


def main():
    given, study = arguments("networks", processes=10)
    measured = partial(study.measured, run)

    def scores_of(wanted):
        rows = measured([choosing_job(*entry) for entry in wanted])
        return [-row["score"] if TASKS[row["task"]][0] == "text" else row["score"] for row in rows]

    pairs = given.only({"task": task, "method": method} for task, entry in TASKS.items() for method in entry[3])
    pairs = [(pair["task"], pair["method"]) for pair in pairs]
    homes = {(task, method): (home_of(task), method) for task, method in pairs if method in GRIDS}
    grids = {home: GRIDS[home[1]] for home in homes.values()}
    jobs = [job for pair in pairs if pair not in homes for job in final_jobs(*pair, FIXED.get(pair[1]))]
    jobs += [choosing_job(home, rate) for home, grid in grids.items() for rate in grid]
    measured(jobs)  # together, so that no process waits
    best = best_values(grids, scores_of)
    measured([job for pair, home in homes.items() for job in final_jobs(*pair, best[home])])


if __name__ == "__main__":
    main()
