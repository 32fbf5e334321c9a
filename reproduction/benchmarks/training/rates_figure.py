"""The figure of docs/defaults.md on the default rate: what runs in rates.json lose at other rates."""

import math

import numpy as np
from benchmarks.tables import labelled, results
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from qpsbgd.optim.rates import default_rate
from qpsbgd_paper.report.rendering import INK
from qpsbgd_paper.report.styles import PALETTE

FACTOR = 0.25
SIZES = {"vgg": (5, 6), "resnet20": (18, 19), "resnet56": (54, 55), "gpt": (24, 13), "gptdeep": (48, 25)}
SIZES |= {"dense": (3, 0), "deep": (9, 0), "cnn": (3, 0), "densebn": (3, 2), "cnnbn": (3, 3)}
"""Binary layers and norms of the tasks."""
PANELS = {
    "CIFAR-10": {
        ("vgg", 5, "mag"): "VGG-small, 5 epochs",
        ("vgg", 25, "mag"): "VGG-small, 25 epochs",
        ("resnet20", 2, "mag"): "ResNet-20, 2 epochs",
        ("resnet20", 10, "mag"): "ResNet-20, 10 epochs",
        ("resnet20", 30, "mag"): "ResNet-20, 30 epochs",
    },
    "Characters": {
        ("gpt", 1500, "mag"): "GPT, 6 layers of 384",
        ("gptdeep", 1500, "mag"): "GPT, 12 layers of 192",
    },
    "MNIST, 3 epochs": {
        ("dense", 3, "mag"): "dense",
        ("densebn", 3, "mag"): "dense, batch norm",
        ("cnn", 3, "mag"): "CNN",
        ("cnnbn", 3, "mag"): "CNN, batch norm",
        ("deep", 3, "mag"): "nine layers",
        ("deep", 3, "gain"): "nine layers, constant scale",
    },
}
"""Task, budget and scale of every line; ResNet-56 has been run at one rate only."""
HELD_BACK = {"CIFAR-10": 5000, "MNIST, 3 epochs": 10000}
RING = {"linestyle": "", "marker": "o", "markersize": 8, "markerfacecolor": "none"}
FIXED = {"dir": "ridgerow", "delta": 3.0, "real": 0.003}


def regrets_of(task, budget, scale):
    """Rates, the regrets against the best of them in points (text: 0.01 nats), the best score, and the steps."""
    wanted = FIXED | {"task": task, "budget": budget, "scale": scale}
    rows = sorted((row for row in results("rates")["rows"] if wanted.items() <= row.items()), key=lambda row: row["lr"])
    scores = np.array([row["score"] for row in rows])
    best = scores.min() if task.startswith("gpt") else scores.max()
    return np.array([row["lr"] for row in rows]), 100 * abs(scores - best), best, rows[0]["steps"]


def at_default(task, budget, scale):
    """The default rate and its regret, interpolated in the logarithm of the rate; None beyond the measured ones."""
    rates, regrets, _, steps = regrets_of(task, budget, scale)
    layers, norms = SIZES[task]
    fixed = layers if scale == "gain" else 0  # scales by magnitude want no smaller rate
    rate = default_rate(FACTOR, layers=fixed, norms=norms, steps=steps)
    inside = rates[0] <= rate <= rates[-1]
    return rate, float(np.interp(math.log(rate), np.log(rates), regrets)) if inside else None


def rates_figure():
    """What is lost against the best measured rate, a line per run; one seed. The ridge by rows with δ = 3."""
    figure = Figure(figsize=(9.3, 3.9), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        handles, best = [], []
        for (key, label), colour in zip(lines.items(), PALETTE, strict=False):
            rates, regrets, score, _ = regrets_of(*key)
            look = {"color": colour, "linewidth": 1.5, "linestyle": "--" if key[2] == "gain" else "-"}
            handles += axes.plot(rates, regrets, marker=".", markersize=6, label=label, **look)
            rate, regret = at_default(*key)
            if regret is not None:
                axes.plot(rate, regret, **RING, markeredgecolor=colour, clip_on=False)
            best.append(score)
        if title in HELD_BACK:
            error = 100 * np.mean([math.sqrt(p * (1 - p) / HELD_BACK[title]) for p in best])
            axes.axhspan(0, error, color=INK, alpha=0.15, linewidth=0)
        labelled(axes, title, "relative rate", "points lost" if title in HELD_BACK else "0.01 nats lost", log="x")
        axes.set_ylim(*((-0.03, 0.7) if title in HELD_BACK else (-0.3, 7)))
        axes.set_xticks([0.003, 0.01, 0.03, 0.1])
        axes.set_xlim(0.0025, 0.12)
        axes.tick_params(labelsize=8)
        axes.legend(handles=handles, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    ring = Line2D([], [], **RING, markeredgecolor=INK)
    grey = Patch(color=INK, alpha=0.15, linewidth=0)
    labels = ["default rate", "one standard error of an accuracy"]
    figure.legend([ring, grey], labels, loc="outside upper center", ncols=2, frameon=False, fontsize=8.5)
    return figure
