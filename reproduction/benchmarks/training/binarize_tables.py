"""The measured parts of docs/binarize.md: what binarising costs, what brings it back, and the figure."""

from itertools import product

import numpy as np
from benchmarks.tables import cross_table, label_axes, results, spread
from benchmarks.training.binarize import BY_TARGETS, OPTIMIZERS, PLAIN, SIZES, STEPS, SUBJECTS
from benchmarks.training.sentences import Sentences
from matplotlib.figure import Figure

from qpsbgd_paper.report.rendering import INK
from qpsbgd_paper.report.styles import COLOURS, RED

NAMES = {PLAIN: "rounding", "rounding": "rounding, scales fitted", "feedback": "feedback (GPTQ)", "search": "search"}
WITH_KICKS = {**NAMES, "no kicks": "search without kicks", "200 kicks": "search with 200 kicks"}
SHOWN = ("mlp", "gpt", "fashion-cnn")
"""Subjects of the tables of sizes and of fine-tuning; the others say the same."""
LOOKS = {
    "rounding": {"color": COLOURS["bc-sign"], "marker": "v"},
    "feedback": {"color": COLOURS["bc-sgd"], "marker": "s"},
    "no kicks": {"color": COLOURS["qpsbgd-virtual"], "marker": "o"},
    "search": {"color": RED, "marker": "o"},
    "200 kicks": {"color": COLOURS["qpsbgd-ridge"], "marker": "o"},
}


def rows_of(part, subject, **wanted):
    """The rows of a part whose jobs have these values."""
    wanted |= {"part": part, "subject": subject, "choosing": None}
    rows = results("binarize")["rows"]
    return [row for row in rows if all(row["job"].get(key) == value for key, value in wanted.items())]


def score(subject, rows):
    """Mean ± deviation of the main score, a dash where there is no row."""
    values = [row[subject.measure] for row in rows]
    return spread(values, 100, 2) if subject.measure == "accuracy" else spread(values)


def bits_of(bits):
    return f"{bits} bit{'s' * (bits > 1)}"


def error(rows):
    lost = [row["lost"] for row in rows if "lost" in row]
    return f" ({100 * np.mean(lost):.1f})" if lost else ""


def binarized():
    """Score and error of every network and method, at one and two bits."""
    columns = [(PLAIN, 1), ("rounding", 1), ("feedback", 1), ("search", 1), ("feedback", 2), ("search", 2)]
    cells = {}
    for subject in SUBJECTS.values():
        network = f"{subject.title}, {subject.measure}{' in %' * (subject.measure == 'accuracy')}"
        cells[network, "float"] = score(subject, rows_of("binarize", subject.name, method="float"))
        for method, bits in columns:
            rows = rows_of("binarize", subject.name, method=method, bits=bits, size=None)
            cells[network, f"{NAMES[method]}, {bits_of(bits)}"] = score(subject, rows) + error(rows)
    return cross_table("network", cells)


def binarized_targets():
    """Scores by the targets of the layers, at one and two bits and with few inputs."""
    columns = [
        ("feedback", 1, None),
        ("search", 1, 64),
        ("search", 1, None),
        ("feedback", 2, None),
        ("search", 2, None),
    ]
    cells = {}
    for subject, targets in product(BY_TARGETS.values(), ("own", "float")):
        network = f"{subject.title}, {subject.measure}{' in %' * (subject.measure == 'accuracy')}"
        row = network, f'"{targets}"'
        cells[row, "float"] = score(subject, rows_of("targets", subject.name, method="float"))
        for way, bits, size in columns:
            method = way if targets == "own" else f"{way}, float targets"
            rows = rows_of("targets", subject.name, method=method, bits=bits, size=size)
            if size is None or rows:
                cells[row, f"{NAMES[way]}, {bits_of(bits)}{f', {size} inputs' if size else ''}"] = score(subject, rows)
    return cross_table(("network", "`targets`"), cells)


def binarized_times():
    """Seconds of one call, by machine."""
    places = {("cpu", 2): "two cores", ("cuda", 16): "H200"}
    cells = {}
    for row in results("binarize")["rows"]:
        job = row["job"]
        if job["part"] == "times" and (place := places.get((job["device"], job["threads"]))):
            seconds = f"{row['binarize seconds']:.1f} s"
            cells[SUBJECTS[job["subject"]].title, f"{NAMES[job['method']]}, {place}"] = seconds
    order = [f"{NAMES[way]}, {place}" for place in places.values() for way in ("feedback", "search")]
    return cross_table("one bit", cells, order)


def binarized_sizes():
    """Scores at one bit by the amount of calibration data."""
    cells = {}
    for subject in (SUBJECTS[name] for name in SHOWN):
        sizes = {size: size if size != subject.size else None for size in SIZES}
        by_size = {
            k: rows_of("binarize", subject.name, method="search", bits=1, size=size) for k, size in sizes.items()
        }
        if all(by_size.values()):
            cells |= {(subject.title, f"{size}"): score(subject, rows) + error(rows) for size, rows in by_size.items()}
    return cross_table("network", cells)


def fine_tuned():
    """Scores after 0, 100 and 1000 steps with labels, from the one-bit network and from scratch."""
    cells = {}
    subjects = [SUBJECTS[name] for name in SHOWN]
    for subject, start, method in product(subjects, ("search", "scratch"), OPTIMIZERS):
        job = {"method": method, "start": start, "bits": 1}
        after = {steps: rows_of("tune", subject.name, steps=steps, **job) for steps in STEPS}
        if any(after.values()):
            name = subject.title, "binarised" if start == "search" else start, method
            by_steps = {0: rows_of("binarize", subject.name, method=start, bits=1, size=None), **after}
            cells |= {(name, f"{steps} steps"): score(subject, rows) for steps, rows in by_steps.items()}
    return cross_table(("network", "from", "method"), cells)


def both(rows):
    """Cosine / neighbours."""
    if not rows:
        return "–"
    return " / ".join(f"{np.mean([row[key] for row in rows]):.3f}" for key in ("cosine", "neighbours"))


def sentence_bits():
    """MiniLM without training, one to four bits."""
    subject = next(s for s in SUBJECTS.values() if isinstance(s, Sentences))
    cells = {
        (NAMES[method], bits_of(bits)): both(rows_of("binarize", subject.name, method=method, bits=bits, size=None))
        for method in ("rounding", "feedback", "search")
        for bits in (1, 2, 3, 4)
    }
    return cross_table("cosine / neighbours kept", cells)


def binarize_figure():
    """The score against the error of the layers: every dot is one network, method and draw of calibration data."""
    subjects = [SUBJECTS[name] for name in ("mlp", "cnn", "gpt", "minilm")]
    figure = Figure(figsize=(9.3, 2.7), layout="constrained")
    for axes, subject in zip(figure.subplots(1, len(subjects)), subjects, strict=True):
        unit = 100 if subject.measure == "accuracy" else 1
        for method, look in LOOKS.items():
            for bits, filled in ((1, True), (2, False)):
                rows = rows_of("binarize", subject.name, method=method, bits=bits, size=None)
                if rows:
                    x, y = [100 * row["lost"] for row in rows], [unit * row[subject.measure] for row in rows]
                    dots = {"linestyle": "", "markersize": 4.5, "label": WITH_KICKS[method] if filled else None}
                    axes.plot(x, y, markerfacecolor=look["color"] if filled else "none", **dots, **look)
        level = unit * rows_of("binarize", subject.name, method="float")[0][subject.measure]
        axes.axhline(level, color=INK, linewidth=0.8, linestyle=":")
        names = {"accuracy": "test accuracy, %", "loss": "validation loss", "cosine": "mean cosine"}
        label_axes(axes, subject.title, "relative squared error, %", names[subject.measure], log="x", size=8.5)
        axes.tick_params(labelsize=8)
    handles = figure.axes[0].get_legend_handles_labels()
    options = {"ncols": len(LOOKS), "frameon": False, "fontsize": 8.5, "title_fontsize": 8.5}
    figure.legend(*handles, loc="outside lower center", title="one bit; hollow: two bits", **options)
    return figure


def pretrained():
    """Accuracy of the pretrained ResNets by method."""
    names = {"feedback": "feedback (GPTQ)", "search": 'search, `targets="own"`', "float targets": "search"}
    names["distilled"] = "the same, then `distill`"
    order = ["float", *(f"{names[method]}, {bits_of(bits)}" for bits in (1, 2) for method in names)]
    cells = {}
    for row in sorted(results("binarize_pretrained")["rows"], key=lambda row: row["depth"]):
        column = "float" if row["method"] == "float" else f"{names[row['method']]}, {bits_of(row['bits'])}"
        images = f" ({row['images']})" if row["images"] else ""
        cells[f"ResNet-{row['depth']}", column] = f"{100 * row['accuracy']:.1f}{images}"
    return cross_table("network", cells, order)


def form_name(job):
    """A job's form in words, and its targets."""
    names = {"GPTQ": "feedback, no bias (GPTQ)", "feedback": "feedback", "search": "search"}
    names |= {name: name for name in ("search, no bias", "second vector for 10 %", "scales per input")}
    name, bits, by_layer = job["method"], job["bits"], {}
    if isinstance(bits, dict):
        by_layer = {layer: number for layer, number in bits.items() if layer != "others"}
        bits = bits["others"]
    if name in names:
        name = f"{names[name]}, {bits_of(bits)}"
    if by_layer:
        name += f", {max(by_layer.values()):g} for {' and '.join(f'`{layer}`' for layer in by_layer)}"
    return name, job.get("targets", "own" if job["method"] == "GPTQ" else "float")


def by_stored_bits(subject):
    """The rows of a subject of language_models.py, and what they store as text, in its order."""
    rows = [row for row in results("language_models")["rows"] if row["job"].get("subject") == subject]
    for row in sorted(rows, key=lambda row: row.get("stored", 32)):
        yield row, f"{row['stored']:.2f}" if "stored" in row else "32"


def forms_by_targets(subject, scores):
    """A subject's scores(rows) by form and targets, in the order of what is stored."""
    rows = {}
    for row, stored in by_stored_bits(subject):
        name, targets = form_name(row["job"])
        rows.setdefault(((name, stored), f'`targets="{targets}"`'), []).append(row)
    return cross_table(("form", "stored bits per weight"), {place: scores(some) for place, some in rows.items()})


def language_models():
    """Loss of the Llama by form and targets."""
    return forms_by_targets("llama", lambda rows: spread([row["loss"] for row in rows], digits=2))


def encoder_forms():
    """MiniLM by form and targets."""
    return forms_by_targets("minilm", both)


def wide_gpt():
    """Loss of the GPT of 12 layers of 768 by form and targets, seconds and memory."""
    cells = {}
    for row, stored in by_stored_bits("gpt-12x768"):
        name, targets = form_name(row["job"])
        line = (name, stored, f'"{targets}"' if "stored" in row else "–")
        cells[line, "loss"] = f"{row['loss']:.3f}"
        if "seconds" in row:
            cells |= {(line, "seconds"): f"{row['seconds']:.0f}", (line, "GPU memory"): f"{row['memory'] / 1e9:.1f} GB"}
    return cross_table(("form", "stored bits per weight", "`targets`"), cells)


def trained_llama():
    """The Llama's loss after 100 steps from the binarised one."""
    rows = [row for row in results("language_models")["rows"] if row["job"].get("part") == "trained"]
    names = {"ridge": "QP-SBGD", "straight-through": "straight-through"}
    cells = {}
    for row in sorted(rows, key=lambda row: (row["job"]["bits"], row["job"]["method"])):
        job = row["job"]
        towards = "float model's logits" if job["loss"] == "logits" else "labels"
        line = f"{job['bits']}", f"{row['before']:.2f}", towards, names[job["method"]]
        cells[line, f"{job['lr']:g}"] = f"{row['loss']:.2f}"
    return cross_table(("bits", "before", "towards", "method"), cells, sorted({rate for _, rate in cells}))
