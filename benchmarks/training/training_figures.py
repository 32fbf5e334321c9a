"""The figures of docs/training.md."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from tables import results
from training import TASKS
from training_tables import DEFAULTS, LABELS, NETWORKS, RIVALS, TITLES, amount, tasks

from qpsbgd_paper.framework.claims import deviation
from qpsbgd_paper.report.rendering import ink, tidy
from qpsbgd_paper.report.styles import KNOWN, RED

LOOKS = {
    "ridge": {"color": RED, "marker": "o", "linewidth": 2.4, "zorder": 5},
    "spins": {"color": RED, "marker": "o", "linestyle": (0, (4, 2)), "markerfacecolor": "white", "zorder": 4},
    "spins-2": {"color": RED, "marker": "v", "linestyle": (0, (1, 1)), "zorder": 4},
    "bc-adam": {"color": KNOWN["bc-adam"].colour, "marker": "s"},
    "bc-sign": {"color": KNOWN["bc-sign"].colour, "marker": "^"},
    "bc-sgd": {"color": KNOWN["bc-sgd"].colour, "marker": "D"},
    "bc-normalized": {"color": "#3c434a", "marker": "x"},
    "proxquant": {"color": KNOWN["proxquant"].colour, "marker": "+", "linestyle": (0, (1, 2))},
}
"""Every method has a marker of its own, so that grey prints can be read."""


def training_figure(*, held_out=False):
    """Scores against the length of training, one panel per task with several lengths; bars are standard deviations."""
    found = {task: budgets for task, budgets in tasks().items() if task.startswith("fashion") == held_out}
    shown = {task: budgets for task, budgets in found.items() if len(budgets) > 1}
    columns = 2 if len(shown) in (2, 4) else 3
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.5 * rows + 0.7), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    for axes, (task, budgets) in zip(grid, shown.items(), strict=False):
        panel(axes, task, budgets)
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    look = {"ncols": 4 if columns > 2 else 3, "frameon": False, "fontsize": 9}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", **look)
    return figure


def today_figure():
    """Scores on CIFAR-10: full dots on test images, hollow ones on validation images where there is no final run."""
    rows = results("networks")["rows"]
    labels = {**DEFAULTS, **RIVALS, "float-sgd": "real weights, SGD"}
    figure = Figure(figsize=(8.2, 2.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2, sharey=True), ("vgg-5", "resnet20-10"), strict=True):
        for place, method in enumerate(reversed(labels)):
            own = [row for row in rows if (row["task"], row["method"]) == (task, method)]
            final = [100 * row["score"] for row in own if not row["choosing"]]
            tried = [100 * row["score"] for row in own if row["choosing"]]
            shown = final or [max(tried)] if own else []
            colour = RED if method in DEFAULTS else ink()
            look = {"marker": "o", "color": colour, "linestyle": "", "markersize": 5}
            axes.plot(shown, [place] * len(shown), **look, markerfacecolor=colour if final else "none")
        tidy(axes)
        axes.set_yticks(range(len(labels)), list(reversed(labels.values())))
        axes.set_title(NETWORKS[task], fontsize=9, loc="left", color=ink())
        axes.set_xlabel("accuracy, % (hollow: on validation images)", fontsize=9)
    return figure


def vectors_figure():
    """Accuracy with one and two binary vectors per step and with the ridge, their limit; a line per length."""
    figure = Figure(figsize=(6.6, 2.7), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2), ("mnist-dense", "fashion-dense"), strict=True):
        for shade, (budget, rows) in zip((0.45, 0.7, 1.0), tasks()[task].items(), strict=False):
            means, spreads = (
                [100 * f(rows[ours]["scores"]) for ours in ("spins", "spins-2", "ridge")] for f in (np.mean, deviation)
            )
            look = {"color": RED, "alpha": shade, "marker": "o", "capsize": 2, "label": amount(task, budget)}
            axes.errorbar(range(3), means, spreads, **look)
        tidy(axes)
        axes.set_xticks(range(3), ["1 vector", "2 vectors", "ridge"])
        axes.set_title(TITLES[task], fontsize=9, loc="left", color=ink())
        axes.set_ylabel("test accuracy, %", fontsize=10)
        axes.legend(frameon=False, fontsize=8, loc="center", bbox_to_anchor=(0.5, 0.4))
    return figure


def panel(axes, task, budgets):
    unit = 100 if TASKS[task].higher else 1
    lows, highs = [], []
    for place, (method, look) in enumerate(LOOKS.items()):
        points = [(b, rows[method]["scores"]) for b, rows in budgets.items() if method in rows]
        if not points:
            continue
        beside = (max(budgets) / min(budgets)) ** (0.011 * (place - len(LOOKS) // 2))
        x = [budget * beside for budget, _ in points]
        means, spreads = ([unit * f(values) for _, values in points] for f in (np.mean, deviation))
        settings = {"linewidth": 1.3, "markersize": 5, "capsize": 2, "elinewidth": 0.8, **look}
        far = method == "proxquant"  # and its bars are longer than the panel
        axes.errorbar(x, means, None if far else spreads, label=LABELS[method], **settings)
        if not far:
            lows += [mean - spread for mean, spread in zip(means, spreads, strict=True)]
            highs += [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    tidy(axes, log="x")
    if TASKS[task].higher:  # by the logarithm of the error, so that differences near 100 % can be seen
        axes.set_yscale(
            "function", functions=(lambda y: -np.log(np.maximum(100.5 - y, 0.1)), lambda y: 100.5 - np.exp(-y))
        )
    axes.xaxis.set_major_locator(FixedLocator(list(budgets)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(5))
    margin = 0.05 * (max(highs) - min(lows))
    axes.set_ylim(min(lows) - margin, max(highs) + margin)
    axes.set_title(TITLES[task], fontsize=9, loc="left", color=ink())
    axes.set_xlabel("steps" if task in ("cora", "pubmed") else "epochs", fontsize=10)
    axes.set_ylabel("test accuracy, %" if TASKS[task].higher else "training loss", fontsize=10)
    axes.tick_params(labelsize=9)
