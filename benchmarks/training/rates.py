"""Which rate, ridge, scale and warm-up serve every network? Whole training runs, part after part exchanged.

VGG-small, ResNet-20 and -56 on CIFAR-10, a character GPT of 6 layers and a narrow one of 12, and MNIST networks, some
with batch norm, have one-bit weights; CIFAR's first and last layers and the GPTs' heads stay real-valued. `BASE` has
every option, `JOBS` every run. The optimisers stand here in a few lines each, apart from the library's, so that a
whole step is a CUDA graph and any part of it can be exchanged. One seed; scores are accuracies on the last 5,000
(CIFAR) or 10,000 (MNIST) training images, which are held back, or held-out nats per character, where lower is better.

    python benchmarks/training/rates.py [--tasks NAME …] [--budget B] [--processes N] [--into FILE] [--resume]

Needs QPSBGD_DATA with mnist, and cifar-10/images.npz as in networks.py; a GPU for all but tiny runs such as
`--tasks dense --budget 0.01`. Writes benchmarks/results/rates.json, anew after every run; runs that fail are named and
left out, and `--resume` makes those that the file has not. rates_figure.py draws docs/figures/rates.svg.

The committed rows were made by an earlier form of this script, which stacked the layers of one shape (so that
`flip` is theirs together) and had another text: 128 characters, a random tenth of the files held out. Its rows of gpt
and gptdeep compare among themselves only.
"""

import argparse
import json
import math
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from binarize_networks import GPT
from networks import cifar_task, text_task
from torch import nn
from training import DEVICE, mnist

from qpsbgd.optim.rates import schedule
from qpsbgd_paper.experiments.cifar import resnet, vgg_small
from qpsbgd_paper.framework.result_files import as_json, environment, write_json

FILE = Path(__file__).parents[1] / "results" / "rates.json"
RUN = {"task": "resnet20", "budget": 1, "seed": 0, "warm": 0.1}
STEP = {"dir": "ridge", "lr": 0.03, "relative": True, "momentum": 0.9, "nesterov": False, "wd": 0.0, "clip": 2.0}
RIDGE = {"delta": 10.0, "block": 1024, "refresh": 20}
SCALE = {"scale": "gain", "base": "fan", "latent": "own", "magste": "identity", "scale_mult": 1.0}
REAL = {"real": 0.003, "real_wd": 0.0, "realopt": "adamw", "opt": "adamw"}
BASE = RUN | STEP | RIDGE | SCALE | REAL
"""The options, for which a job may have others.

Run: `budget` in epochs (for text: steps), `warm` is the share of them over which rates rise. Step: `dir` is one of
DIRECTIONS, "adam", "sgd" or "float" (real weights); `lr` and `clip` are in units of a layer's initial range, `lr` only
if `relative`. Ridge: `delta` in units of an input's mean square, at most `block` inputs per matrix, `refresh` steps
between two of them. Scale: "gain" is one constant (`base` "fan": 1/√n; "mag": the real layer's mean size), "learned"
one per output (at `scale_mult` times the real rate), "mag" a row's mean size, "magfan" that in units of the gain;
`latent` weights start at the library's size ("own") or the real layer's. Real: the rate and optimiser of all other
parameters; `opt` is that of "float".
"""
MAGNITUDE = {"scale": "mag", "latent": "real"}
ROWS = MAGNITUDE | {"dir": "ridgerow", "delta": 3.0}
THROUGH = MAGNITUDE | {"relative": False, "clip": None}
ADAM = THROUGH | {"dir": "adam", "lr": 0.003, "wd": 0.05}
MUON = [THROUGH | {"dir": "muon", "lr": lr} for lr in (0.02, 0.05)]
AHEAD = {"momentum": 0.95, "nesterov": True}


def at(options, *rates):
    return [options | {"lr": lr} for lr in rates]


def text_jobs():
    learned = {"scale": "learned", "base": "mag"}
    yield from [{"dir": "float", "real": 0.001}, ADAM, *MUON]
    yield from [*at({}, 0.003, 0.01), *at({"delta": 3.0}, 0.01), *at({"base": "mag"}, 0.01, 0.03)]
    yield from [*at(learned, 0.003, 0.01, 0.03, 0.1), *at({"scale": "learned"}, 0.01)]
    yield from [one for name in ("polar", "polarA") for one in at(learned | {"dir": name}, 0.01, 0.03)]
    yield from [*at(MAGNITUDE, 0.003, 0.01, 0.03, 0.06), *at(MAGNITUDE | {"dir": "polar"}, 0.03, 0.06)]
    yield from [MAGNITUDE | {"dir": name} for name in ("polarA", "polarridge", "signpolar", "ridgerow")]
    for change in ({"clip": None}, {"delta": 3.0}, {"delta": 30.0}, {"real": 0.001}, {"warm": 0}, {"momentum": 0.95}):
        yield MAGNITUDE | change
    yield from [ROWS | {"dir": "signridge"}, ROWS | {"delta": 1.0}, *at(ROWS, 0.02, 0.03, 0.045)]


def cifar_jobs():
    """What VGG-small and ResNet-20 have in common."""
    yield from [*MUON, {}, *at(MAGNITUDE, 0.03, 0.06), *at(ROWS, 0.02, 0.03, 0.06)]
    for change in ({"real": 0.001}, {"delta": 1.0}, {"delta": 3.0}, {"dir": "polar"}, {"dir": "ridgerow"}):
        yield MAGNITUDE | change
    for change in ({"dir": "polarridge"}, {"dir": "signridge"}, {"scale": "gain"}, {"real": 0.006}):
        yield ROWS | change
    yield from [ROWS | {"dir": "polar", "lr": 0.06}, ROWS | {"dir": "ridge", "nesterov": True}]


def resnet_jobs():
    sgd = {"dir": "sgd", "lr": 0.1, "wd": 5e-4, "real": 0.1, "realopt": "sgd"}
    yield from [ADAM, THROUGH | sgd, {"dir": "float", "opt": "sgd", "real": 0.1, "real_wd": 5e-4}]
    yield from [*at(MAGNITUDE, 0.015), MUON[1] | AHEAD]


def mnist_jobs(task):
    yield from at(ROWS, 0.01, 0.03, 0.06)
    if not task.endswith("bn"):
        yield from at(ROWS | {"scale": "magfan", "latent": "own"}, 0.003, 0.01, 0.03, 0.06)
        yield from at(ROWS | {"scale": "gain", "latent": "own"}, 0.003, 0.01, 0.03)


GRIDS = [
    ("gpt", 1500, text_jobs()),
    ("gptdeep", 1500, at(ROWS, 0.015, 0.03, 0.06)),
    ("vgg", 5, [*cifar_jobs(), MUON[0] | AHEAD]),
    ("vgg", 25, at(ROWS, 0.015, 0.03)),
    ("resnet20", 2, at(ROWS, 0.03, 0.1)),
    ("resnet20", 10, [*cifar_jobs(), *resnet_jobs()]),
    ("resnet20", 30, [*at(ROWS, 0.015, 0.03), ROWS | {"dir": "polar"}]),
    ("resnet56", 10, [ROWS]),
    *((task, 3, mnist_jobs(task)) for task in ("dense", "densebn", "deep", "cnn", "cnnbn")),
]
JOBS = [BASE | options | {"task": task, "budget": budget} for task, budget, jobs in GRIDS for options in jobs]


def dense(*widths, norm=False):
    layers = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m, bias=False), *([nn.BatchNorm1d(m)] if norm else []), nn.Hardtanh()]
    return nn.Sequential(*layers[:-1])


def convolutional(*, norm=False):
    layers = [nn.Unflatten(1, (1, 28, 28))]
    for n, m in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(n, m, 3, padding=1, bias=False), *([nn.BatchNorm2d(m)] if norm else []), nn.Hardtanh()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), *dense(3136, 10, norm=norm))


def mnist_task(epochs, seed, choosing):
    """Steps, a function that draws the batch of a step, the loss, and the score."""
    inputs, targets, held, wanted = mnist(choosing)
    steps, generator = int(500 * epochs), torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(inputs), generator=generator) for _ in range(math.ceil(epochs))]
    order = torch.cat(orders).view(-1, 100).to(DEVICE)

    def draw(step):
        rows = order[step].view(-1)
        return inputs[rows], targets[rows]

    def score(model):
        return (torch.cat([model(x) for x in held.split(1000)]).argmax(1) == wanted).double().mean().item()

    return steps, draw, lambda model, x, y: F.cross_entropy(model(x), y), score


TASKS = {
    "vgg": (vgg_small, cifar_task, True, True),
    "resnet20": (partial(resnet, 20), cifar_task, True, True),
    "resnet56": (partial(resnet, 56), cifar_task, True, True),
    "gpt": (partial(GPT, layers=6), text_task, False, True),
    "gptdeep": (partial(GPT, layers=12, width=192, heads=4), text_task, False, True),
    "dense": (partial(dense, 784, 512, 512, 10), mnist_task, False, False),
    "densebn": (partial(dense, 784, 512, 512, 10, norm=True), mnist_task, False, False),
    "deep": (partial(dense, 784, *[256] * 8, 10), mnist_task, False, False),
    "cnn": (convolutional, mnist_task, False, False),
    "cnnbn": (partial(convolutional, norm=True), mnist_task, False, False),
}
"""Network, data, and whether the first and the last layer stay real-valued."""


def unit_size(x, dims=(0, 1)):
    """Divided by its root mean square, or by that of each row."""
    return x * (x.square().mean(dims, keepdim=True) + 1e-30).rsqrt()


def polar(x):
    """Muon's orthogonal factor."""
    y = x.mT if len(x) > x.shape[1] else x
    y = (y / (y.square().sum().sqrt() + 1e-20)).to(torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    for _ in range(5):
        square = y @ y.mT
        y = 3.4445 * y + (2.0315 * square @ square - 4.7750 * square) @ y
    return (y.mT if len(x) > x.shape[1] else y).float()


def inverse_root(matrices):
    """M^(−1/2), by the coupled iteration of Newton and Schulz in full precision."""
    norm, one = torch.linalg.matrix_norm(matrices, keepdim=True), torch.eye(matrices.shape[-1], device=DEVICE)
    y, z = matrices / norm, one.expand_as(matrices)
    torch.backends.cuda.matmul.allow_tf32 = False
    for _ in range(14):
        factor = 0.5 * (3 * one - z @ y)
        y, z = y @ factor, factor @ z
    torch.backends.cuda.matmul.allow_tf32 = True
    return z / norm.sqrt()


DIRECTIONS = {
    "ridge": lambda layer, mean: unit_size(layer.solved(mean)),
    "ridgerow": lambda layer, mean: unit_size(layer.solved(mean), 1),
    "polar": lambda layer, mean: unit_size(polar(mean)),
    "polarridge": lambda layer, mean: unit_size(polar(layer.solved(mean))),
    "polarA": lambda layer, mean: unit_size(layer.solved(polar(layer.solved(mean)))),
    "signpolar": lambda layer, mean: polar(mean).sign(),
    "signridge": lambda layer, mean: layer.solved(mean).sign(),
    "muon": lambda layer, mean: polar(mean) * max(1, layer.m / layer.n) ** 0.5,
}
"""Of a layer's mean gradient; `solved` is with the inputs' second moments + δ, for "polarA" with their root."""


class Layer(nn.Module):
    """A real layer made binary, with its optimiser."""

    def __init__(self, real, options):
        super().__init__()
        weight, self.options, self.recording, self.refreshes = real.weight.detach(), options, False, 0
        self.shape, self.m, self.n, self.bias = weight.shape, len(weight), weight[0].numel(), real.bias
        self.conv = {"stride": real.stride, "padding": real.padding} if isinstance(real, nn.Conv2d) else None
        size, own = weight.square().mean().sqrt().item(), options["latent"] == "own"
        self.bound = math.sqrt(1.5 / (self.n + self.m)) if own else math.sqrt(3) * size
        self.latent = nn.Parameter(weight.flatten(1) * (self.bound / math.sqrt(3) / size))
        self.gain = weight.abs().mean().item() if options["base"] == "mag" else 1 / math.sqrt(self.n)
        self.unit = self.gain / self.latent.abs().mean().item() if options["scale"] == "magfan" else 1.0
        self.scale = nn.Parameter(torch.ones(self.m, 1)) if options["scale"] == "learned" else None
        self.parts = math.ceil(self.n / options["block"])
        self.width = math.ceil(self.n / self.parts)
        self.needs = options["dir"] in ("ridge", "ridgerow", "polarridge", "polarA", "signridge")
        for name in ("mean", "square"):
            self.register_buffer(name, torch.zeros(self.m, self.n))
        for name in ("fresh", "moments", "inverse") if self.needs else ():
            self.register_buffer(name, torch.zeros(self.parts, self.width, self.width))

    def weight(self):
        signs, kind = torch.where(self.latent >= 0, 1.0, -1.0), self.options["scale"]
        through = self.latent - self.latent.detach()  # zero, but for its gradient
        if kind in ("gain", "learned"):
            return (signs + through) * (self.gain if kind == "gain" else self.gain * self.scale)
        sizes = self.latent.detach().abs().mean(1, keepdim=True) * self.unit
        return signs * sizes + through if self.options["magste"] == "identity" else (signs + through) * sizes

    def forward(self, x):
        if self.recording and self.training:
            self.record(x.detach())
        weight = self.weight().view(self.shape)
        return F.conv2d(x, weight, self.bias, **self.conv) if self.conv else F.linear(x, weight, self.bias)

    @torch.autocast(DEVICE, enabled=False)
    def record(self, x):
        """Second moments of at most 2048 inputs, in blocks of columns."""
        if self.conv:
            x = F.pad(x, [side for side in self.conv["padding"][::-1] for _ in range(2)]).permute(0, 2, 3, 1)
            x = x.unfold(1, self.shape[2], self.conv["stride"][0]).unfold(2, self.shape[3], self.conv["stride"][1])
        else:
            x = x.reshape(-1, 1, 1, self.n)
        total = x.shape[:3].numel()
        at = torch.arange(min(2048, total), device=DEVICE) * total // min(2048, total)
        x = x[at // x.shape[1:3].numel(), at // x.shape[2] % x.shape[1], at % x.shape[2]].flatten(1).float()
        x = self.blocks(x)
        self.fresh.copy_(x.mT @ x / len(at))

    def blocks(self, x):
        return F.pad(x, (0, self.parts * self.width - self.n)).view(len(x), self.parts, self.width).transpose(0, 1)

    def solved(self, x):
        return (self.blocks(x) @ self.inverse).transpose(0, 1).flatten(1)[:, : self.n]

    def refresh(self):
        self.refreshes += 1
        self.moments.lerp_(self.fresh, 0.1 / (1 - 0.9**self.refreshes))
        size = self.moments.diagonal(dim1=1, dim2=2).sum() / self.n
        matrices = self.moments / size.clamp(min=1e-30)
        matrices.diagonal(dim1=1, dim2=2).add_(self.options["delta"])
        root = self.options["dir"] == "polarA"
        inverse = inverse_root(matrices) if root else torch.cholesky_inverse(torch.linalg.cholesky_ex(matrices)[0])
        self.inverse.copy_(inverse)

    def direction(self, step):
        kind, momentum, gradient = self.options["dir"], self.options["momentum"], self.latent.grad
        if kind == "sgd":
            return self.mean.mul_(momentum).add_(gradient).add_(self.latent, alpha=self.options["wd"])
        self.mean.lerp_(gradient, 1 - momentum)
        if kind == "adam":
            self.square.lerp_(gradient.square(), 0.001)
            root = (self.square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-10
            return self.mean / (1 - momentum ** (step + 1)) / root
        return DIRECTIONS[kind](self, gradient.lerp(self.mean, momentum) if self.options["nesterov"] else self.mean)

    def update(self, step, share):
        direction, rate, clip = self.direction(step), self.options["lr"] * share, self.options["clip"]
        if self.options["dir"] != "sgd":
            self.latent.mul_(1 - self.options["wd"] * rate)
        self.latent.sub_(direction * rate * (self.bound if self.options["relative"] else 1))
        if clip:
            self.latent.clamp_(-clip * self.bound, clip * self.bound)


def converted(model, options, first, last):
    """Makes the model's linear layers and convolutions binary, but for the first and the last where they stay real."""
    names = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for name in names[first : len(names) - last]:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, Layer(model.get_submodule(name), options))
    return [layer for layer in model.modules() if isinstance(layer, Layer)]


def real_optimizer(options, model, rates):
    """The optimiser of all that is not binary, if there is anything; `rates` are tensors that a graph can read."""
    groups = [{"params": [], "lr": rate} for rate in rates]
    for name, parameter in model.named_parameters():
        if not name.endswith("latent"):
            groups[name.endswith("scale")]["params"].append(parameter)
    groups, fast = [group for group in groups if group["params"]], DEVICE == "cuda"
    same = {"weight_decay": options["real_wd"], "lr": rates[0]}
    if "sgd" in (options["opt"], options["realopt"]):
        return torch.optim.SGD(groups, momentum=0.9, nesterov=options["opt"] == "sgd", fused=fast, **same)
    return torch.optim.AdamW(groups, capturable=fast, foreach=fast, **same) if groups else None


def graphs(parts, model, optimizer):
    """The functions as CUDA graphs; what their trial has changed is as before."""
    before = [value.clone() for value in model.state_dict().values()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for part in (parts[0], *parts):
            part()
    torch.cuda.current_stream().wait_stream(stream)
    found = [torch.cuda.CUDAGraph() for _ in parts]
    for graph, part in zip(found, parts, strict=True):
        with torch.cuda.graph(graph):
            part()
    for value, old in zip(model.state_dict().values(), before, strict=True):
        value.copy_(old)
    for value in [v for state in (optimizer.state.values() if optimizer else ()) for v in state.values()]:
        value.zero_()
    return [graph.replay for graph in found]


def run(options):
    """One run: its options, score, last losses, seconds, steps, and the largest share of a layer's flipped signs."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1)
    torch.manual_seed(options["seed"])
    begun, (build, data, first, last) = time.perf_counter(), TASKS[options["task"]]
    model = build()
    layers = converted(model, options, first, last) if options["dir"] != "float" else []
    needs = any(layer.needs for layer in layers)
    model.to(DEVICE).train()
    budget = options["budget"] if data is mnist_task else int(options["budget"])
    steps, draw, loss_of, score = data(budget, options["seed"], data is not text_task)
    shares = torch.tensor([schedule(step, steps, options["warm"]) for step in range(steps)], device=DEVICE)
    now, losses = torch.zeros(1, dtype=torch.long, device=DEVICE), torch.zeros(steps, device=DEVICE)
    rates = [torch.zeros((), device=DEVICE) for _ in range(2)]
    optimizer = real_optimizer(options, model, rates)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    grads = [parameter.grad for parameter in model.parameters()]
    mixed = {"enabled": DEVICE == "cuda" and data is not mnist_task, "dtype": torch.bfloat16, "cache_enabled": False}

    def passes(recording=False):
        torch._foreach_zero_(grads)
        for layer in layers:
            layer.recording = recording
        x, y = draw(now)
        with torch.autocast(DEVICE, **mixed):
            loss = loss_of(model, x, y)
        loss.backward()
        losses.index_copy_(0, now, loss.detach().float().view(1))

    @torch.no_grad()
    def update():
        share = shares[now]
        for layer in layers:
            layer.update(now.float(), share)
        for rate, factor in zip(rates, (1.0, options["scale_mult"]), strict=True):
            rate.copy_((share * options["real"] * factor).view(()))
        if optimizer:
            optimizer.step()
        now.add_(1)

    parts = [passes, update, *([partial(passes, recording=True)] if needs else [])]
    if DEVICE == "cuda":
        parts = graphs(parts, model, optimizer)
        now.zero_()
    before, started = [layer.latent >= 0 for layer in layers], time.perf_counter()
    for step in range(steps):
        if needs and (step % options["refresh"] == 0 or step in (1, 3, 7, 15)):
            parts[2]()
            for layer in layers:
                layer.refresh()
        else:
            parts[0]()
        parts[1]()
    train = losses[-100:].mean().item()  # waits for the device
    seconds = time.perf_counter() - started
    with torch.no_grad(), torch.autocast(DEVICE, **mixed):
        found = score(model.eval())
    flips = [((layer.latent >= 0) != old).float().mean().item() for layer, old in zip(layers, before, strict=True)]
    found = {"score": round(found, 5), "train": round(train, 4), "secs": round(seconds, 1)}
    found |= {"all": round(time.perf_counter() - begun, 1), "steps": steps, "flip": round(max(flips, default=0), 3)}
    return options | found


def attempt(options):
    try:
        return run(options)
    except Exception as error:
        return options | {"error": repr(error)[:300]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--budget", type=float, help="epochs, or steps of text, instead of those of JOBS")
    parser.add_argument("--processes", type=int, default=10 if DEVICE == "cuda" else 1)
    parser.add_argument("--into", type=Path, default=FILE)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    rows = json.loads(options.into.read_text(encoding="utf-8"))["rows"] if options.resume else []
    changed = {"budget": options.budget} if options.budget else {}
    jobs = [job | changed for job in JOBS if job["task"] in options.tasks]
    jobs = [job for job in jobs if not any(job.items() <= row.items() for row in rows)]
    # One process per run: a graph whose capture fails spoils all later ones of its process.
    with torch.multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(attempt, jobs, chunksize=1):
            print({name: value for name, value in row.items() if BASE.get(name) != value}, flush=True)
            rows += [] if "error" in row else [row]
            write_json(options.into, as_json({"made with": environment(), "rows": rows}))


if __name__ == "__main__":
    main()
