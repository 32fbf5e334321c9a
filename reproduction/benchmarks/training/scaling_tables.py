"""The measured and computed parts of docs/scaling.md."""

import math

from benchmarks.tables import crossed, lines, results, spread

from qpsbgd.projections.blocks import Blocks

BLOCK, REFRESH = 1024, 20
"""Defaults of QPSBGD."""


def weights(layers):
    return sum(n * m for n, m in layers)


def grams(layers):
    """Numbers in Q̄ of all layers."""
    cut = [Blocks(1, n, m, math.ceil(n / BLOCK)) for n, m in layers]
    return sum(blocks.count * blocks.width**2 for blocks in cut)


NAMES = {
    "polar": "**QP-SBGD, polar (default)**",
    "float-adamw": "real weights, AdamW",
    "st-adamw": "straight-through AdamW",
    "st-muon": "Muon",
}


def large():
    """A GPT of GPT-2's size: loss after the same number of steps, speed and memory."""
    found, best, body = results("large"), {}, []
    trained = [row for row in found["rows"] if "bits" not in row]
    for row in sorted(trained, key=lambda row: row["loss on training text"]):
        best.setdefault((row["method"], row["steps"]), row)
    for row in sorted(best.values(), key=lambda row: row["loss"]):
        rate = "" if row["rate"] is None else f", rate {row['rate']:.2g}"
        name = NAMES.get(row["method"], row["method"])
        speed = f"{row['ms']:.1f} ms | {row['tokens per second'] / 1e3:.0f},000"
        whole = f"{1e-3 * row['ms'] * row['steps']:.0f} s | {row['peak GiB']:.1f} GiB"
        body.append(f"{name}{rate} | {row['steps']} | {row['loss']:.3f} | {speed} | {whole}")
    head = "method | steps | held-out nats per character | a step | tokens per second | all steps | peak memory"
    made = f"{found['layers']} blocks of width {found['width']}, one seed, NVIDIA H200."
    return f"{made}\n\n" + lines(head, body)


def large_binarized():
    """That network with real weights, binarised without training."""
    rows = results("large")["rows"]
    start = min((r for r in rows if r["method"] == "float-adamw"), key=lambda r: r["loss on training text"])
    made = {(row["bits"], row["method"].split(", ")[1]): row for row in rows if "bits" in row}
    body = [
        f"{bits} | {made[bits, 'feedback']['loss']:.3f} ({made[bits, 'feedback']['seconds']:.0f} s) | "
        f"{made[bits, 'kicks']['loss']:.3f} ({made[bits, 'kicks']['seconds']:.0f} s) | "
        f"{made[bits, 'kicks']['peak GiB']:.1f} GiB"
        for bits in (1, 2)
    ]
    head = "bits per weight | error feedback | `binarize` | peak memory"
    return f"Nats per character; {start['loss']:.3f} with real weights.\n\n" + lines(head, body)


def eight_gpus():
    """What each of eight ranks would hold of that network, by the formulas of docs/scaling.md."""
    found = results("large")
    n = found["width"]
    layers = [(n, 3 * n), (n, n), (n, 4 * n), (4 * n, n)] * found["layers"]
    return (
        f"**Eight GPUs, on paper.** With [FSDP2](processes.md) each rank holds an eighth of latent weights, gradients "
        f"and S̄ (3 × {4 * weights(layers) / 1e6:.0f} MB in all). The polar factor needs all of a layer's S̄: every "
        f"step gathers {4 * weights(layers) / 1e6:.0f} MB, layer by layer. The ridge sums Q̄ over the "
        f"ranks at a renewal instead, but holds all of it and its inverse (2 × {4 * grams(layers) / 1e6:.0f} MB) on "
        f"every rank. Nothing of this has been run on eight GPUs; two to four processes on a CPU "
        "give what one gives (packages/qpsbgd/tests/parallel/test_shards.py)."
    )


def ranks():
    """What a rank sends in a step under DDP, by the formulas of docs/scaling.md."""
    layers, parts = [(784, 512), (512, 512), (512, 10)], []
    for size in (2, 64):
        gradients, moments = (2 * (size - 1) / size * 4e-3 * n for n in (weights(layers), grams(layers) / REFRESH))
        parts.append(f"{gradients:,.0f} kB of gradients and {moments:.0f} kB of moments on {size} ranks")
    return f"A rank of 784-512-512-10 sends per step, on average, {' and '.join(parts)}."


def sampled():
    """Accuracy and time against the rows that are recorded of a pass."""
    found, cells = results("sampled_rows"), {}
    for row in found["results"]:
        rows, name = "all" if row["rows"] is None else str(row["rows"]), row["projection"]
        cells[rows, f"{name}, test accuracy in %"] = spread(row["scores"], 100, 2)
        cells[rows, f"{name}, step"] = f"{row['ms per step']:.1f} ms"
    settings = found["settings"]
    return f"{settings['device']}, {settings['seeds']} seeds.\n\n{crossed('rows per pass', cells)}"
