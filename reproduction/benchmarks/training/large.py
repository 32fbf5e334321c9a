"""Does it work at GPT-2's size? 12 blocks of width 768, 85 million binary weights, trained and binarised on one GPU.

The character GPT of binarize_networks.py in bfloat16, compiled, windows of 256 characters, batch 64. QP-SBGD runs at
its defaults; rivals and real weights take the best of a grid of rates, by the loss on windows of training text after
all steps. The default runs once more, for the steps that fit in the time of straight-through AdamW's.
The best network with real weights is binarised without training. One process: times can be compared.

    python benchmarks/training/large.py [method=ridge …] [--steps N] [--layers N] [--width N] [--into FILE]
"""

import gc
import statistics
from functools import partial
from itertools import pairwise

import torch
from benchmarks.study import arguments, best_values
from benchmarks.training.binarize_networks import GPT
from benchmarks.training.networks import METHODS, text_task
from benchmarks.training.training_parts import DEVICE, autocast, clock

from qpsbgd import QPSBGD, binarize
from qpsbgd.nn import BinaryLayer, convert
from qpsbgd.projections import Ridge

TOKENS = 64 * 256
BLOCK = 20
RATES = {"st-adamw": [1e-3, 3e-4], "st-muon": [2e-2, 1e-2], "float-adamw": [3e-4, 1e-3]}


MAKERS = METHODS | {
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


def train(build, job):
    """A trained network, and what training it took."""
    method, lr, steps = job["method"], job["rate"], job["steps"]
    empty()
    torch.manual_seed(0)
    _, draw, loss, score = text_task(steps, 0, False)
    *_, chosen_by = text_task(steps, 0, True)
    model = build() if method.startswith("float") else convert(build(), first=True, last=False)
    model = model.to(DEVICE)
    optimizer = MAKERS[method](model, steps, lr)
    compiled = torch.compile(model) if DEVICE == "cuda" else model
    times = [clock()]
    for step in range(steps):
        optimizer.zero_grad()
        with autocast():
            value = loss(compiled, *draw(step))
        value.backward()
        optimizer.step()
        if step % BLOCK == BLOCK - 1:
            times.append(clock())
    blocks = [(b - a) / BLOCK for a, b in pairwise(times[1:])]
    peak = memory()
    model.eval()
    with torch.no_grad(), autocast():
        held_out, on_training_text = score(model), chosen_by(model)
    return model, {
        **job,
        "loss": held_out,
        "loss on training text": on_training_text,
        "ms": 1e3 * statistics.median(blocks) if blocks else None,
        "tokens per second": TOKENS / statistics.median(blocks) if blocks else None,
        "peak GiB": peak,
        "binary weights": sum(m.weight.numel() for m in model.modules() if isinstance(m, BinaryLayer)),
    }


def binarized(model, job):
    """The row of the network with so many bits per weight, without training."""
    bits, solver = job["bits"], job["method"].split(", ")[1]
    _, draw, _, score = text_task(0, 0, False)
    torch.manual_seed(1)
    batches = [draw(0)[0] for _ in range(2)]
    empty()
    begun = clock()
    made = binarize(model, batches, bits=bits, solver=solver).model
    seconds, peak = clock() - begun, memory()
    with torch.no_grad(), autocast():
        loss = score(made)
    return {**job, "loss": loss, "seconds": seconds, "peak GiB": peak}


def main():
    sizes = {"steps": 1000, "layers": 12, "width": 768}
    options, rows = arguments("large", **{name: {"type": int, "default": n} for name, n in sizes.items()})
    torch.set_float32_matmul_precision("high")
    build = partial(GPT, layers=options.layers, width=options.width, heads=options.width // 64)
    rows.content |= {"layers": options.layers, "width": options.width, "steps": options.steps}

    def row_of(method, rate, steps=options.steps):
        job = {"method": method, "rate": rate, "steps": steps}
        return rows.measured(lambda job: train(build, job)[1], [job])[0]

    def scores_of(wanted):
        return [-row_of(*pair)["loss on training text"] for pair in wanted]

    best = {}
    for method in (job["method"] for job in options.only({"method": name} for name in (OURS[0], *RATES, *OURS[1:]))):
        rate = best_values({method: RATES[method]}, scores_of)[method] if method in RATES else None
        best[method] = row_of(method, rate)
    if real := best.get("float-adamw"):
        bits_and_solvers = [(bits, solver) for bits in (1, 2) for solver in ("feedback", "kicks")]
        jobs = [{"method": f"binarize, {solver}", "bits": bits} for bits, solver in bits_and_solvers]
        if None in map(rows.of, jobs):
            model, _ = train(build, {name: real[name] for name in ("method", "rate", "steps")})
            rows.measured(partial(binarized, model), jobs)
    ours, base = best.get("polar"), best.get("st-adamw")
    if ours and base and ours["ms"] > base["ms"]:
        row_of("polar", None, round(options.steps * base["ms"] / ours["ms"]))


if __name__ == "__main__":
    main()
