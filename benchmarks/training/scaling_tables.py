"""The measured and computed parts of docs/scaling.md."""

import math

import numpy as np
from tables import grouped, lines, markdown, results

from qpsbgd.projections.blocks import Blocks

BATCH, ROWS, REFRESH, BLOCK = 100, 2048, 20, 1024
"""Of benchmarks/training/size.py, and the defaults of QPSBGD."""
BILLION = 10**9
PEAK_FLOPS = 67e12
"""Single-precision operations per second of an H200, by its data sheet."""
LINK = 25e9
"""Bytes per second that a GPU can send, as assumed for 64 of them: half of a 400 Gbit/s network link."""
METHODS = {
    "bc-adam": "BC (Adam)",
    "ridge": "ridge",
    "ridge, no blocks": "ridge, `block=None`",
    "spins": "spins",
}


def dense_layers(width):
    return [(784, width), (width, width), (width, width), (width, 10)]


def convolutional_layers(share):
    layers, channels = [], 3
    for width in (128, 256, 512):
        for _ in range(2):
            layers, channels = [*layers, (9 * channels, width // share)], width // share
    return [*layers, (16 * channels, 1024 // share), (1024 // share, 1024 // share), (1024 // share, 10)]


def weights(layers):
    return sum(n * m for n, m in layers)


def grams(layers, limit=BLOCK):
    """Numbers in Q̄ of all layers."""
    cut = [Blocks(1, n, m, 1 if limit is None else math.ceil(n / limit)) for n, m in layers]
    return sum(blocks.count * blocks.width**2 for blocks in cut)


def kept(method, layers):
    """Numbers in the optimiser's state, by the formulas of docs/scaling.md."""
    if method == "bc-adam":
        return 2 * weights(layers)
    means = 2 if method == "spins" else 1
    return means * weights(layers) + grams(layers, None if method == "ridge, no blocks" else BLOCK)


def operations(method, layers):
    """Multiply-adds per step of dense layers: forward and backward pass, and the ridge's product and renewals."""
    passes = 3 * BATCH * weights(layers)
    if method == "bc-adam":
        return passes
    widths = [(n, m, Blocks(1, n, m, math.ceil(n / BLOCK)).width) for n, m in layers]
    return passes + sum(n * m * w + (BATCH * n * w + n * w * w) / REFRESH for n, m, w in widths)


NAMES = {
    "polar": "**QP-SBGD, polar (default)**",
    "float-adamw": "real weights, AdamW",
    "st-adamw": "straight-through AdamW",
    "st-muon": "Muon",
}


def large():
    """A GPT of GPT-2's size: loss after the same number of steps, speed and memory."""
    found, best, body = results("large"), {}, []
    for row in sorted(found["rows"], key=lambda row: row.get("loss on training text", row["loss"])):
        best.setdefault((row["method"], row["steps"]), row)
    for row in sorted(best.values(), key=lambda row: row["loss"]):
        rate = "" if row["rate"] is None else f", rate {row['rate']:.2g}"
        peak = f"{row['peak GiB']:.1f} GiB" if "peak GiB" in row else ""
        name = NAMES.get(row["method"], row["method"])
        speed = f"{row['ms']:.1f} ms | {row['tokens per second'] / 1e3:.0f},000"
        seconds = 1e-3 * row["ms"] * row["steps"]
        body.append(f"{name}{rate} | {row['steps']} | {row['loss']:.3f} | {speed} | {seconds:.0f} s | {peak}")
    head = "method | steps | held-out nats per character | a step | tokens per second | all steps | peak memory"
    made = f"{found['layers']} blocks of width {found['width']}, one seed, NVIDIA H200."
    return f"{made}\n\n" + lines(head, body)


def eight_gpus():
    """What each of eight ranks would hold of that network, by the formulas of docs/scaling.md."""
    found = results("large")
    n = found["width"]
    layers = [(n, 3 * n), (n, n), (n, 4 * n), (4 * n, n)] * found["layers"]
    return (
        f"**Eight GPUs, on paper.** With [FSDP2](processes.md) each rank holds an eighth of latent weights, gradients "
        f"and S̄ (3 × {4 * weights(layers) / 1e6:.0f} MB in all). The polar factor needs all of a layer's S̄: every "
        f"step gathers {4 * weights(layers) / 1e6:.0f} MB, layer by layer. The ridge gathers at most {ROWS} rows per "
        f"layer at a renewal instead, but holds all of Q̄ and its inverse (2 × {4 * grams(layers) / 1e6:.0f} MB) on "
        f"every rank. Nothing of this has been run on eight GPUs; two to four processes on a CPU "
        "give what one gives (tests/qpsbgd/parallel/test_shards.py)."
    )


def exponent(sizes, values):
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measured_growth():
    """Time, memory and state of the largest network measured, and how each grew with the number of weights."""
    found, body, keys = results("size"), [], ("mean step ms", "state of the optimiser MB")
    for (network, method), own in grouped(found["results"], "network", "method").items():
        last, sizes = own[-1], [row["binary weights"] for row in own]
        share = int(last["width"].removeprefix("1/"))
        layers = dense_layers(2500 // share) if network == "dense" else convolutional_layers(share)
        time, state = (f"N^{exponent(sizes, [row[key] for row in own]):.2f}" for key in keys)
        body.append(
            f"{network} | {METHODS[method]} | {last['binary weights'] / 1e6:.1f} M | {last[keys[0]]:.1f} ms | "
            f"{last['peak memory MB']:.0f} MB | {last[keys[1]]:.0f} MB | {last['state per weight']:.2f} | "
            f"{kept(method, layers) / weights(layers):.2f} | {time} | {state}"
        )
    head = "network | method | weights | mean step | peak memory | state | numbers per weight | by the formula"
    return f"On an {found['device']}, batch {BATCH}.\n\n{lines(f'{head} | time ~ | state ~', body)}"


def sampled():
    """Accuracy and time against the rows that are recorded of a pass."""
    found, names = results("sampled_rows"), ("ridge", "spins")
    head = ["rows per pass", *(f"{name}, {what}" for name in names for what in ("test accuracy in %", "step"))]
    body = []
    for rows, own in grouped(found["results"], "rows").items():
        cells = ["all" if rows is None else str(rows)]
        for row in sorted(own, key=lambda row: names.index(row["projection"])):
            values = [100 * score for score in row["scores"]]
            cells += [f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}", f"{row['ms per step']:.1f} ms"]
        body.append(cells)
    settings = found["settings"]
    return f"{settings['device']}, {settings['seeds']} seeds.\n\n{markdown(head, body)}"


def billion():
    """What 10⁹ weights would take: memory and time between a count by the formulas and what was measured, scaled."""
    width = round((math.sqrt(784**2 + 8 * BILLION) - 784) / 4)
    layers, small, body = dense_layers(width), dense_layers(2500), []
    measured = [row for row in results("size")["results"] if (row["network"], row["width"]) == ("dense", "1/1")]
    for row in measured:
        method = row["method"]
        if method not in ("bc-adam", "ridge"):
            continue
        numbers = kept(method, layers)
        # Latent weights and gradients; the ridge also has a new S̄, the direction and the inverse of Q̄ during a step.
        counted = numbers + 2 * weights(layers)
        counted += 2 * weights(layers) + grams(layers) if method == "ridge" else 0
        work, before = operations(method, layers), operations(method, small)
        peak = row["peak memory MB"] * 2**20 * weights(layers) / weights(small)
        body.append(
            f"{METHODS[method]} | {4 * numbers / 1e9:.1f} GB | {4 * counted / 1e9:.0f} GB | {peak / 1e9:.0f} GB | "
            f"{2 * work / 1e12:.1f} · 10¹² | {2e3 * work / PEAK_FLOPS:.0f} ms | "
            f"{row['mean step ms'] * work / before:.0f} ms"
        )
    head = "method | state | memory, counted | memory, scaled from the peak | operations per step"
    table = lines(f"{head} | time, at the peak rate | time, scaled", body)
    return f"Network 784-{width}-{width}-{width}-10, batch {BATCH}.\n\n{table}"


def sent(size, reduced, gathered):
    """Bytes that a rank sends in a step: ring all-reduce of sums, ring all-gather of what each one contributes."""
    return 2 * (size - 1) / size * reduced + (size - 1) * gathered


def ranks():
    """Bytes per step as counted with 2 ranks, the same for 64, and the time of a step with 1 and 2."""
    found, body = results("ranks"), []
    for (network, method), (one, two, four) in grouped(found["results"], "network", "method").items():
        own, grads = (two["bytes per step"].get(name, 0) for name in ("gathered", "gradients"))
        # What a rank contributes is a + b/N: a status, and its share of the rows.
        share = 4 * (own - four["bytes per step"]["gathered"])
        many = sent(64, grads, max(own - share / 2, 0) + share / 64)
        volumes = " | ".join(f"{volume / 1e3:,.0f} kB" for volume in (own, grads, sent(2, grads, own), many))
        times = " | ".join(f"{row[name]:.1f} ms" for name in ("step ms", "cpu ms") for row in (one, two))
        body.append(f"{network} | {METHODS[method]} | {volumes} | {1e3 * many / LINK:.2g} ms | {times}")
    head = "network | method | gathered | DDP's gradients | sent with 2 ranks | sent with 64 ranks | time at 25 GB/s"
    head += " | step, 1 rank | step, 2 ranks | CPU time, 1 rank | CPU time, each of 2 ranks"
    cores, load = found["made with"]["cpus"], found["settings"]["load of the machine before"]
    return f"On {cores} CPU cores; other work was a load of {load:.1f} before the start.\n\n{lines(head, body)}"
