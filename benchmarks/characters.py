"""How well does a small transformer with binary weights model text, by training method?

A character model of the standard library's sources: two blocks of width 64 with causal attention, embeddings and head
real-valued. The held-out loss is in nats per character, after the same steps on the same windows for every method:
ridge and spins at their defaults, BinaryConnect at its default and at the rate of a grid that is best on training
text it has not seen, and the same network with real weights under AdamW at the best rate of a grid.

    python benchmarks/characters.py [FILE] [--steps N] [--seeds N]      writes benchmarks/results/characters.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import argparse
import statistics
import time
from pathlib import Path

import torch
from binarize_networks import GPT
from binarize_networks import characters as text
from torch.nn import functional as F
from training import DEVICE

from qpsbgd import QPSBGD, BinaryConnect
from qpsbgd.nn import convert
from qpsbgd_paper.framework.result_files import environment, write_json

WINDOW, BATCH = 64, 16
SIZES = {"layers": 2, "width": 64, "heads": 4}


def windows(part, count, seed):
    starts = torch.randint(len(part) - WINDOW, (count, 1), generator=torch.Generator().manual_seed(seed))
    return part[starts + torch.arange(WINDOW + 1)]


def network(seed, *, binary=True):
    torch.manual_seed(seed)
    model = GPT(**SIZES)
    return (convert(model, last=False) if binary else model).to(DEVICE)


def loss(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def trained(model, optimizer, *, steps, seed, schedule=None):
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, windows(text()[0], BATCH, 10_000 * (1 + seed) + step)).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


@torch.no_grad()
def score(model, part, seed):
    """The mean loss over 256 windows, in evaluation mode."""
    batches = windows(part, 256, seed).split(64)
    return statistics.mean(loss(model.eval(), batch).item() for batch in batches)


def ridge(model, steps, rate):
    return QPSBGD(model, steps=steps, real=True)


def spins(model, steps, rate):
    return QPSBGD(model, projection="spins", steps=steps, real=True)


def binaryconnect(model, steps, rate):
    return BinaryConnect(model, rate, steps=steps, relative=True, real=True)


def adamw(model, steps, rate):
    return torch.optim.AdamW(model.parameters(), lr=rate)


METHODS = {
    "QP-SBGD, ridge": (ridge, [None]),
    "QP-SBGD, spins": (spins, [None]),
    "BinaryConnect (Adam), default": (binaryconnect, [None]),
    "BinaryConnect (Adam), tuned": (binaryconnect, [0.01, 0.02, 0.05, 0.1]),
    "real weights (AdamW), tuned": (adamw, [1e-3, 3e-3, 1e-2]),
}


def run(name, rate, *, steps, seed):
    model = network(seed, binary="real" not in name)
    optimizer = METHODS[name][0](model, steps, rate)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if "real" in name else None
    begun = time.process_time()
    trained(model, optimizer, steps=steps, seed=seed, schedule=cosine)
    seconds = time.process_time() - begun
    return {
        "rate": rate,
        "loss": score(model, text()[1], 1),
        "training text": score(model, text()[0], 2),
        "seconds": seconds,
    }


def chosen(name, rates, *, steps):
    """All rates that were tried, with a seed that takes no part in the results; a best one at the edge extends them."""
    tried = []
    while rates:
        tried = sorted(tried + [run(name, rate, steps=steps, seed=100) for rate in rates], key=lambda one: one["rate"])
        grid, best = [one["rate"] for one in tried], min(tried, key=lambda one: one["training text"])["rate"]
        rates = [best / 2] if best == grid[0] else [2 * best] if best == grid[-1] else []
    return tried


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).parent / "results" / "characters.json")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (_, rates) in METHODS.items():
        tried = chosen(name, rates, steps=options.steps) if len(rates) > 1 else []
        best = min(tried, key=lambda found: found["training text"])["rate"] if tried else rates[0]
        found = [run(name, best, steps=options.steps, seed=seed) for seed in range(options.seeds)]
        rows.append({"method": name, "rate": best, "tried": tried, "runs": found})
        print(f"{name}: {statistics.mean(one['loss'] for one in found):.3f} at {best}", flush=True)
    write_json(options.file, {"made with": environment(), "steps": options.steps, "rows": rows})


if __name__ == "__main__":
    main()
