"""Does it work at GPT-2's size? 12 blocks of width 768, 85 million binary weights, trained and binarised on one GPU.

The character GPT of binarize_networks.py in bfloat16, compiled, windows of 256 characters, batch 64. QP-SBGD runs at
its defaults; rivals and real weights take the best of a grid of rates, by the loss on windows of training text after
all steps. The default runs once more, for the steps that fit in the time of straight-through AdamW's.
Last, the network with real weights is binarised without training. One process: times can be compared.

    python benchmarks/training/large.py [--methods …] [--steps N] [--seconds S] [--layers N] [--width N] [--into FILE]

Rows are written as they come; parts that have not begun after S seconds are left out, and the result says which. With
some methods only, FILE keeps its rows of the others.
"""

import argparse
import gc
import json
import statistics
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from binarize_networks import GPT
from networks import DEVICE, METHODS, text_task

from qpsbgd import QPSBGD, binarize
from qpsbgd.nn import BinaryLayer, convert
from qpsbgd.optim.rates import WARMUP, schedule
from qpsbgd.projections import Ridge
from qpsbgd_paper.framework.result_files import environment, write_json

FILE = Path(__file__).parents[1] / "results" / "large.json"
TOKENS = 64 * 256
BLOCK = 20
MOST_RATES = 5
RATES = {"st-adamw": [1e-3, 3e-4], "st-muon": [2e-2, 1e-2], "float-adamw": [3e-4, 1e-3]}


MAKERS = {name: METHODS[name][0] for name in METHODS} | {
    "ridge at 0.0166, real part at 0.00106": lambda m, s, lr: QPSBGD(
        m, 0.0166, "ridge", relative=True, steps=s, real={"lr": 1.06e-3}
    ),
    "ridge, whole layers": lambda m, s, lr: QPSBGD(m, projection=Ridge(block=None), steps=s, real=True),
}
OURS = ["polar", "ridge", "ridge at 0.0166, real part at 0.00106", "ridge, whole layers", "spins"]
"""The default first; a third of the rates is better for the ridge, but was found on this network."""


def memory():
    """The peak since it was last reset, in GiB."""
    return torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0


def empty():
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def train(build, method, lr, steps):
    """A trained network, and what training it took."""
    empty()
    torch.manual_seed(0)
    _, draw, loss, score = text_task(steps, 0, False)
    *_, chosen_by = text_task(steps, 0, True)
    real = method.startswith("float")
    model = (build() if real else convert(build(), first=True, last=False)).to(DEVICE)
    optimizer = MAKERS[method](model, steps, lr)
    compiled = torch.compile(model) if DEVICE == "cuda" else model
    times = [time.perf_counter()]
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            value = loss(compiled, *draw(step))
        value.backward()
        if real:
            optimizer.param_groups[0]["lr"] = lr * schedule(step, steps, WARMUP)
        optimizer.step()
        if step % BLOCK == BLOCK - 1:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())
    blocks = [(b - a) / BLOCK for a, b in pairwise(times[1:])]
    peak = memory()
    model.eval()
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        found, on_training_text = score(model), chosen_by(model)
    return model, {
        "method": method,
        "rate": lr,
        "steps": steps,
        "loss": found,
        "loss on training text": on_training_text,
        "ms": 1e3 * statistics.median(blocks) if blocks else None,
        "tokens per second": TOKENS / statistics.median(blocks) if blocks else None,
        "peak GiB": peak,
        "binary weights": sum(m.weight.numel() for m in model.modules() if isinstance(m, BinaryLayer)),
    }


def binarized(model, bits, solver):
    """A row for the network with so many bits per weight, without training."""
    _, draw, _, score = text_task(0, 0, False)
    torch.manual_seed(1)
    batches = [draw(0)[0] for _ in range(2)]
    empty()
    before = torch.cuda.memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0
    begun = time.perf_counter()
    made = binarize(model, batches, bits=bits, solver=solver).model
    seconds, peak = time.perf_counter() - begun, memory()
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        found = score(made)
    row = {"method": f"binarize, {solver}", "bits": bits, "loss": found, "seconds": seconds}
    return row | {"peak GiB": peak, "model GiB": before}


class Rows:
    """Rows of the result, written as they come until the time is over."""

    def __init__(self, options):
        self.rows, self.left, self.path = [], [], options.into
        if options.into.exists():
            for row in json.loads(options.into.read_text())["rows"]:
                trained = "float-adamw" if row["method"].startswith("binarize") else row["method"]
                if trained not in options.methods:
                    self.rows.append(row)
        self.end = time.monotonic() + options.seconds
        self.settings = {"layers": options.layers, "width": options.width, "steps": options.steps}

    def add(self, name, make):
        """The result of `make`, which returns something and a row; None if the time is over."""
        if time.monotonic() > self.end:
            self.left.append(name)
            made = None
        else:
            made, row = make()
            self.rows.append(row)
            print(row, flush=True)
        write_json(self.path, {"made with": environment(), **self.settings, "rows": self.rows, "left out": self.left})
        return made


def best_of_grid(rows, build, method, steps):
    """The trained network and the row of the best rate of a grid; one at its edge extends it."""
    rates, best = list(RATES.get(method, [None])), (None, None)
    tried = {}
    while rates:
        for rate in rates:
            made = rows.add(f"{method} at {rate}", partial(train, build, method, rate, steps))
            if made is None:
                return best
            row = tried[rate] = rows.rows[-1]
            if best[1] is None or row["loss on training text"] < best[1]["loss on training text"]:
                best = made, row
        chosen = best[1]["rate"]
        beyond = {min(tried): chosen / 3, max(tried): chosen * 3} if len(tried) > 1 else {}
        rates = [beyond[chosen]] if chosen in beyond and len(tried) < MOST_RATES else []
    return best


def main():
    parser = argparse.ArgumentParser()
    every = [OURS[0], *RATES, *OURS[1:]]
    parser.add_argument("--methods", nargs="+", choices=every, default=every)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=36_000)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--into", type=Path, default=FILE)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    build = partial(GPT, layers=options.layers, width=options.width, heads=options.width // 64)
    rows, best = Rows(options), {}
    for method in options.methods:
        made, best[method] = best_of_grid(rows, build, method, options.steps)
        if method == "float-adamw" and made is not None:
            for bits in (1, 2):
                for solver in ("feedback", "kicks"):
                    rows.add(f"{solver}, {bits} bits", lambda m=made, b=bits, s=solver: (None, binarized(m, b, s)))
        del made
    own, base = best.get("polar"), best.get("st-adamw")
    if own and base and own["ms"] > base["ms"]:
        steps = round(options.steps * base["ms"] / own["ms"])
        rows.add("polar, equal time", partial(train, build, "polar", None, steps))


if __name__ == "__main__":
    main()
