"""What does a whole training step cost? Forward, backward and update, methods taking turns in one process.

On a CPU: 64-128-10 (batch 32), 784-256-256-10, 784-512-512-10 and a CNN (batch 100) on real images, and ResNet-20
(batch 32); measured on an otherwise idle machine.
On a GPU: ResNet-20 and VGG-small with batches of 128 and 512 and the character GPT, in bfloat16, with the peak
memory. Times are compared with the same binary network under torch's fused AdamW. Blocks of steps are timed, each
as long as the ridge's system serves, so that its renewal is part of every block; the first does not count.

    python benchmarks/training/step_cost.py [FILE]   writes results/step_cost_cpu.json or _cuda.json, or FILE
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import copy
import statistics
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.training.binarize_networks import CHARACTERS, GPT
from benchmarks.training.training_parts import (
    DEVICE,
    DEVICE_NAME,
    autocast,
    clock,
    convolutional,
    dense,
    digits,
    mnist,
)

from qpsbgd import QPSBGD, BinaryConnect, StraightThrough
from qpsbgd.nn import BinaryLayer, convert
from qpsbgd.projections import Spins
from qpsbgd_paper.framework.measurements import print_rows, publish
from qpsbgd_paper.framework.networks import resnet, vgg_small

CUDA = DEVICE == "cuda"
BLOCK = 20
"""Steps that are timed together: those for which a system serves."""
STEPS = 10_000
"""Length of the training that the steps are taken from."""


def fused_adamw(model):
    return torch.optim.AdamW(model.parameters(), 3e-3, fused=True)


METHODS = {
    "AdamW": fused_adamw,
    "bc-adam": lambda model: BinaryConnect(model, steps=STEPS, real=True),
    "ridge": lambda model: QPSBGD(model, projection="ridge", steps=STEPS, real=True),
    "spins": lambda model: QPSBGD(model, projection="spins", steps=STEPS, real=True),
    "spins, two vectors": lambda model: QPSBGD(model, projection=Spins(bits=2), steps=STEPS, real=True),
    "polar": lambda model: QPSBGD(model, projection="polar", steps=STEPS, real=True),
    "Muon": lambda model: StraightThrough(model, update="muon", steps=STEPS, real=True),
}
"""All on the same binary network; a real-valued one under AdamW is measured beside them."""
REAL = "real weights"


def images(batch, classes=10):
    return torch.randn(batch, 3, 32, 32, device=DEVICE), torch.randint(classes, (batch,), device=DEVICE)


def characters(batch):
    tokens = torch.randint(len(CHARACTERS), (batch, 257), device=DEVICE)
    return tokens[:, :-1], tokens[:, 1:]


def of(data, batch):
    """A batch of real images."""
    inputs, targets, *_ = data(False)
    return inputs[:batch].to(DEVICE), targets[:batch].to(DEVICE)


ON_GPU = {
    "ResNet-20, batch 128": (partial(resnet, 20), partial(images, 128)),
    "ResNet-20, batch 512": (partial(resnet, 20), partial(images, 512)),
    "VGG-small, batch 128": (vgg_small, partial(images, 128)),
    "VGG-small, batch 512": (vgg_small, partial(images, 512)),
    "GPT, 6 × 384, batch 64": (partial(GPT, layers=6), partial(characters, 64)),
}
ON_CPU = {
    "64-128-10": (lambda: dense([64, 128, 10]), partial(of, digits, 32)),
    "784-256-256-10": (lambda: dense([784, 256, 256, 10]), partial(of, mnist, 100)),
    "784-512-512-10": (lambda: dense([784, 512, 512, 10]), partial(of, mnist, 100)),
    "cnn": (lambda: convolutional(norm=False), partial(of, mnist, 100)),
    "ResNet-20, batch 32": (partial(resnet, 20), partial(images, 32)),
}


def train_block(model, optimizer, inputs, targets):
    """Milliseconds per step of one block, and the peak of the memory in MiB."""
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = clock()
    for _ in range(BLOCK):
        optimizer.zero_grad()
        with autocast():
            outputs = model(inputs)
            loss = F.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten())
        loss.backward()
        optimizer.step()
    spent = clock() - start
    return 1e3 * spent / BLOCK, (torch.cuda.max_memory_allocated() - before) / 2**20 if CUDA else 0.0


def measure(build, draw, blocks):
    """Milliseconds of a step, and the peak memory beyond the other methods' states, per method."""
    torch.manual_seed(0)
    real = build().to(DEVICE)
    made_binary = any(isinstance(module, BinaryLayer) for module in real.modules())
    binary = real if made_binary else convert(copy.deepcopy(real), first=isinstance(real, GPT), last=False)
    inputs, targets = draw()
    pairs = {}
    for name, make in METHODS.items():
        model = copy.deepcopy(binary)
        pairs[name] = model, make(model)
    if not made_binary:
        pairs[REAL] = real, fused_adamw(real)
    times, memory = {name: [] for name in pairs}, {}
    for _ in range(1 + blocks):
        for name, (model, optimizer) in pairs.items():
            spent, memory[name] = train_block(model, optimizer, inputs, targets)
            times[name].append(spent)
    return {name: statistics.median(values[1:]) for name, values in times.items()}, memory


def rows():
    for network, (build, draw) in (ON_GPU if CUDA else ON_CPU).items():
        times, memory = measure(build, draw, 6 if CUDA else 1)
        row = {"network": network, "milliseconds": times}
        yield row | ({"MiB": memory} if CUDA else {})


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.backends.cudnn.benchmark = True
    settings = {"device": DEVICE_NAME, "threads": torch.get_num_threads()}
    publish(Path(__file__).with_stem(f"step_cost_{DEVICE}"), settings=settings, results=print_rows(rows()))
