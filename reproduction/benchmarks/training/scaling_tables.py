"""The tables of a large network in docs/training.md."""

from benchmarks.tables import results

from qpsbgd_paper.report.tables import pipes

NAMES = {
    "polar": "**QP-SBGD, polar** at 0.25 · steps^(−1/4)",
    "float-adamw": "real weights, AdamW",
    "st-adamw": "straight-through AdamW",
    "st-muon": "Muon",
}


def large():
    """A GPT of GPT-2's size: loss after the same number of steps, speed and memory."""
    best, body = {}, []
    trained = [row for row in results("large")["rows"] if "bits" not in row]
    for row in sorted(trained, key=lambda row: row["loss on training text"]):
        best.setdefault((row["method"], row["steps"]), row)
    for row in sorted(best.values(), key=lambda row: row["loss"]):
        rate = "" if row["rate"] is None else f", rate {row['rate']:.2g}"
        name = NAMES.get(row["method"], row["method"])
        cost = [f"{row['ms']:.1f} ms", f"{row['peak GiB']:.1f} GiB"]
        body.append([f"{name}{rate}", f"{row['steps']}", f"{row['loss']:.3f}", *cost])
    return pipes(["method", "steps", "held-out nats per character", "a step", "peak memory"], body)


def large_binarized():
    """That network with real weights, binarised without training."""
    rows = results("large")["rows"]
    start = min((r for r in rows if r["method"] == "float-adamw"), key=lambda r: r["loss on training text"])
    binarized = {(row["bits"], row["method"].split(", ")[1]): row for row in rows if "bits" in row}
    body = []
    for bits in (1, 2):
        feedback, kicks = (binarized[bits, method] for method in ("feedback", "kicks"))
        losses = [f"{row['loss']:.3f} ({row['seconds']:.0f} s)" for row in (feedback, kicks)]
        body.append([f"{bits} bit{'s' * (bits > 1)}", f"{start['loss']:.3f}", *losses, f"{kicks['peak GiB']:.1f} GiB"])
    head = ["nats per character", "real weights", "error feedback", "`binarize`", "peak memory"]
    return pipes(head, body)
