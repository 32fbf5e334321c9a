"""The measured and computed parts of docs/scaling.md."""

import math

import numpy as np
from tables import markdown, results

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


def exponent(sizes, values):
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measured_growth():
    """Time, memory and state of the largest network measured, and how each grew with the number of weights."""
    head = ["network", "method", "weights", "mean step", "peak memory", "state", "numbers per weight"]
    head += ["by the formula", "time ~", "state ~"]
    rows = results("size")["results"]
    body = []
    for network, method in dict.fromkeys((row["network"], row["method"]) for row in rows):
        own = [row for row in rows if (row["network"], row["method"]) == (network, method)]
        last, sizes = own[-1], [row["binary weights"] for row in own]
        share = int(last["width"].removeprefix("1/"))
        layers = dense_layers(2500 // share) if network == "dense" else convolutional_layers(share)
        keys = ("mean step ms", "state of the optimiser MB")
        time, state = (last[key] for key in keys)
        fits = [f"N^{exponent(sizes, [row[key] for row in own]):.2f}" for key in keys]
        body.append(
            [
                network,
                METHODS[method],
                f"{last['binary weights'] / 1e6:.1f} M",
                f"{time:.1f} ms",
                f"{last['peak memory MB']:.0f} MB",
                f"{state:.0f} MB",
                f"{last['state per weight']:.2f}",
                f"{kept(method, layers) / weights(layers):.2f}",
                *fits,
            ]
        )
    return f"On an {results('size')['device']}, batch {BATCH}.\n\n{markdown(head, body)}"


def sampled():
    """Accuracy and time against the rows that are recorded of a pass."""
    found = results("sampled_rows")
    names = ("ridge", "spins")
    head = ["rows per pass", *(f"{name}, {what}" for name in names for what in ("test accuracy in %", "step"))]
    by_rows = {}
    for row in found["results"]:
        by_rows.setdefault(row["rows"], {})[row["projection"]] = row
    body = []
    for rows, own in by_rows.items():
        cells = []
        for name in names:
            values = [100 * score for score in own[name]["scores"]]
            cells += [f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}", f"{own[name]['ms per step']:.1f} ms"]
        body.append(["all" if rows is None else str(rows), *cells])
    settings = found["settings"]
    return f"{settings['device']}, {settings['seeds']} seeds.\n\n{markdown(head, body)}"


def billion():
    """What 10⁹ weights would take: memory and time between a count by the formulas and what was measured, scaled."""
    width = round((math.sqrt(784**2 + 8 * BILLION) - 784) / 4)
    layers = dense_layers(width)
    rows = {
        row["method"]: row for row in results("size")["results"] if (row["network"], row["width"]) == ("dense", "1/1")
    }
    small = dense_layers(2500)
    head = ["method", "state", "memory, counted", "memory, scaled from the peak", "operations per step"]
    head += ["time, at the peak rate", "time, scaled"]
    body = []
    for method in ("bc-adam", "ridge"):
        numbers = kept(method, layers)
        # Latent weights and gradients; the ridge also has a new S̄, the direction and the inverse of Q̄ during a step.
        counted = numbers + 2 * weights(layers)
        counted += 2 * weights(layers) + grams(layers) if method == "ridge" else 0
        work, before = operations(method, layers), operations(method, small)
        peak = rows[method]["peak memory MB"] * 2**20 * weights(layers) / weights(small)
        body.append(
            [
                METHODS[method],
                f"{4 * numbers / 1e9:.1f} GB",
                f"{4 * counted / 1e9:.0f} GB",
                f"{peak / 1e9:.0f} GB",
                f"{2 * work / 1e12:.1f} · 10¹²",
                f"{2e3 * work / PEAK_FLOPS:.0f} ms",
                f"{rows[method]['mean step ms'] * work / before:.0f} ms",
            ]
        )
    return f"Network 784-{width}-{width}-{width}-10, batch {BATCH}.\n\n{markdown(head, body)}"


def sent(size, reduced, gathered):
    """Bytes that a rank sends in a step: ring all-reduce of sums, ring all-gather of what each one contributes."""
    return 2 * (size - 1) / size * reduced + (size - 1) * gathered


def ranks():
    """Bytes per step as counted with 2 ranks, the same for 64, and the time of a step with 1 and 2."""
    found = results("ranks")
    rows = {(row["network"], row["method"], row["ranks"]): row for row in found["results"]}
    head = ["network", "method", "gathered", "DDP's gradients", "sent with 2 ranks", "sent with 64 ranks"]
    head += ["time at 25 GB/s", "step, 1 rank", "step, 2 ranks", "CPU time, 1 rank", "CPU time, each of 2 ranks"]
    body = []
    for network, method in dict.fromkeys((row["network"], row["method"]) for row in found["results"]):
        one, two, four = (rows[network, method, size] for size in (1, 2, 4))
        own, grads = (two["bytes per step"].get(name, 0) for name in ("gathered", "gradients"))
        # What a rank contributes is a + b/N: a status, and its share of the rows.
        share = 4 * (own - four["bytes per step"]["gathered"])
        many = sent(64, grads, max(own - share / 2, 0) + share / 64)
        volumes = [own, grads, sent(2, grads, own), many]
        body.append(
            [
                network,
                METHODS[method],
                *(f"{volume / 1e3:,.0f} kB" for volume in volumes),
                f"{1e3 * many / LINK:.2g} ms",
                *(f"{row[name]:.1f} ms" for name in ("step ms", "cpu ms") for row in (one, two)),
            ]
        )
    cores, load = found["made with"]["cpus"], found["settings"]["load of the machine before"]
    return f"On {cores} CPU cores; other work was a load of {load:.1f} before the start.\n\n{markdown(head, body)}"
