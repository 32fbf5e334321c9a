"""Does it work at GPT-2's size? 12 blocks of width 768, 85 million binary weights, trained and binarised on one GPU.

The character GPT of binarize_networks.py in bfloat16, compiled, windows of 256 characters, batch 64. Rivals and real
weights take the best of a grid of rates, by the loss on training text after a fifth of the steps. All methods then make
the same number of steps; those slower than straight-through AdamW once more, for as many steps as it makes in the same
time. Last, the network with real weights is binarised without training. One process: times can be compared.

    python benchmarks/training/large.py [--steps N] [--seconds S] [--layers N] [--width N] [--into FILE]

Rows are written as they come; parts that have not begun after S seconds are left out, and the result says which.
"""

import argparse
import copy
import gc
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
from qpsbgd.optim.rates import WARMUP, default_rate, schedule
from qpsbgd.projections import Ridge
from qpsbgd_paper.framework.result_files import environment, write_json

FILE = Path(__file__).parents[1] / "results" / "large.json"
TOKENS = 64 * 256
BLOCK = 20
MOST_RATES = 5
RATES = {
    "st-adamw": [1e-3, 3e-4, 3e-3],
    "st-muon": [1e-2, 3e-3, 2e-2],
    "float-adamw": [1e-3, 3e-4, 3e-3],
}


def narrow(steps):
    """The default rate of networks that are not wide."""
    return default_rate(0.25, layers=1, norms=1, steps=steps)


MAKERS = {name: METHODS[name][0] for name in METHODS} | {
    "ridge": lambda m, s, lr: QPSBGD(m, narrow(s), relative=True, steps=s, real={"lr": 3e-3}),
    "ridge, whole layers": lambda m, s, lr: QPSBGD(
        m, narrow(s), Ridge(block=None), relative=True, steps=s, real={"lr": 3e-3}
    ),
    "ridge, real part at 0.001": lambda m, s, lr: QPSBGD(m, narrow(s), relative=True, steps=s, real={"lr": 1e-3}),
    "ridge at 0.015, real part at 0.001": lambda m, s, lr: QPSBGD(m, 0.015, relative=True, steps=s, real={"lr": 1e-3}),
    "ridge, defaults": lambda m, s, lr: QPSBGD(m, steps=s, real=True),
}
OURS = [name for name in MAKERS if name.startswith("ridge")]
"""At the rates of narrow networks, with less of one at a time, and at the defaults; not tuned further."""


def memory():
    """The peak since it was last reset, in GiB."""
    return torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0


def empty():
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def train(build, method, lr, steps, *, choosing=False):
    """A trained network, and what training it took."""
    empty()
    torch.manual_seed(0)
    _, draw, loss, score = text_task(steps, 0, choosing)
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
        found = score(model)
    return model, {
        "method": method,
        "rate": lr,
        "steps": steps,
        "choosing": choosing,
        "loss": found,
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
    widest = max(8 * module.weight.shape[1] ** 2 for module in made.modules() if isinstance(module, BinaryLayer))
    row = {"method": f"binarize, {solver}", "bits": bits, "loss": found, "seconds": seconds}
    return row | {"peak GiB": peak, "model GiB": before, "largest moments GiB": widest / 2**30}


class Rows:
    """Rows of the result, written as they come until the time is over."""

    def __init__(self, options):
        self.rows, self.left, self.path = [], [], options.into
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

    def of(self, method, *, choosing):
        return [row for row in self.rows if row["method"] == method and row.get("choosing") == choosing]


def chosen(rows, build, method, steps):
    """The best rate of a grid; one at its edge extends it."""
    if method not in RATES:
        return None
    rates, tried = list(RATES[method]), {}
    while rates:
        for rate in rates:
            rows.add(f"{method} {rate}", partial(train, build, method, rate, steps, choosing=True))
        tried = {row["rate"]: row["loss"] for row in rows.of(method, choosing=True)}
        best = min(tried, key=tried.get, default=RATES[method][0])
        beyond = {min(tried, default=0): best / 3, max(tried, default=0): best * 3}
        rates = [beyond[best]] if best in beyond and len(tried) < MOST_RATES else []
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=36_000)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--into", type=Path, default=FILE)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    build = partial(GPT, layers=options.layers, width=options.width, heads=options.width // 64)
    rows, float_model = Rows(options), None
    for method in (*OURS, "spins", *RATES):
        rate = chosen(rows, build, method, options.steps // 5)
        made = rows.add(method, partial(train, build, method, rate, options.steps))
        float_model = made if method == "float-adamw" else float_model
        del made
    if float_model is not None:
        float_model = copy.deepcopy(float_model)
        for bits in (1, 2):
            for solver in ("feedback", "kicks"):
                rows.add(f"{solver}, {bits} bits", lambda b=bits, s=solver: (None, binarized(float_model, b, s)))
        del float_model
    base = rows.of("st-adamw", choosing=False)
    for method in ("ridge", "st-muon"):
        own = rows.of(method, choosing=False)
        if own and base and own[0]["ms"] > base[0]["ms"]:
            steps = round(options.steps * base[0]["ms"] / own[0]["ms"])
            rows.add(f"{method}, equal time", partial(train, build, method, own[0]["rate"], steps))


if __name__ == "__main__":
    main()
