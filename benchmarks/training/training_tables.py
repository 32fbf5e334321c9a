"""The measured parts of docs/training.md (who won, all scores, the figure, costs and bits) and docs/estimators.md."""

from collections import Counter

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from tables import enumerated, markdown, measured, results
from training import GRIDS, METHODS, OURS, TASKS

from qpsbgd_paper.framework.claims import deviation, verdict
from qpsbgd_paper.report.rendering import ink, tidy
from qpsbgd_paper.report.styles import KNOWN, RED

TITLES = {
    "mnist-dense": "MNIST, 784-512-512-10",
    "mnist-dense-bn": "MNIST, 784-512-512-10, batch norm",
    "mnist-deep": "MNIST, eight layers of 256",
    "mnist-cnn": "MNIST, CNN",
    "mnist-cnn-bn": "MNIST, CNN, batch norm",
    "mnist-wide": "MNIST, three layers of 1024, batch norm, dropout",
    "mnist-wider": "MNIST, three layers of 2048, batch norm, dropout",
    "mnist-cnn-large": "MNIST, four convolutions and two linear layers, batch norm",
    "fashion-dense": "Fashion, 784-512-512-10",
    "fashion-dense-bn": "Fashion, 784-512-512-10, batch norm",
    "fashion-cnn": "Fashion, CNN",
    "fashion-cnn-bn": "Fashion, CNN, batch norm",
    "digits": "Digits, 64-128-10",
    "adult-10": "Adult, ten layers",
    "cora": "Cora, graph network",
    "pubmed": "PubMed, graph network",
    **{
        f"{name}{'-bn' * norm}": f"{title}, {sizes}{', batch norm' * norm}"
        for name, title, sizes in (
            ("letter", "Letter", "16-256-256-26"),
            ("magic", "Magic", "10-256-256-2"),
            ("spambase", "Spambase", "57-256-256-2"),
        )
        for norm in (False, True)
    },
    "letter-deep": "Letter, nine layers of 128",
}
LABELS = {
    "ridge": "QP-SBGD (ridge)",
    "spins": "QP-SBGD (spins)",
    "spins-2": "QP-SBGD (two vectors)",
    "printed": "QP-SBGD (printed)",
    "bc-adam": "BC (Adam)",
    "bc-sign": "BC (sign)",
    "bc-sgd": "BC (SGD)",
    "bc-normalized": "BC (normalised SGD)",
    "proxquant": "ProxQuant",
    "bc-adam, default": "BC (Adam, default)",
    "st-adamw": "straight-through (AdamW)",
    "st-muon": "straight-through (Muon)",
}
NAMES = {"ridge": "ridge", "spins": "spins", "spins-2": "two vectors"}
WORDS = {"yes": "ahead", "no": "behind", "cannot tell": "level"}


def tasks():
    """The measured tasks' rows by budget and method, in the order of training.py."""
    found = {}
    for name, result in measured([f"training_{task}" for task in TASKS]).items():
        by_budget = found[name.removeprefix("training_")] = {}
        for row in result["rows"]:
            by_budget.setdefault(row["budget"], {})[row["method"]] = row
    return found


def compared():
    """One entry per task and budget with baselines: the rows by method."""
    return [
        (task, budget, rows) for task, budgets in tasks().items() for budget, rows in budgets.items() if baselines(rows)
    ]


def baselines(rows):
    return [method for method in rows if method not in (*OURS, "printed")]


def amount(task, budget):
    unit = "step" if task in ("cora", "pubmed") else "epoch"
    return f"{budget} {unit}{'s' if budget > 1 else ''}"


def score(task, values):
    """Mean ± standard deviation: accuracy in percent, or a loss."""
    mean, spread = np.mean(values), deviation(values)
    return f"{100 * mean:.2f} ± {100 * spread:.2f}" if TASKS[task].higher else f"{mean:.3f} ± {spread:.3f}"


def best_baseline(task, rows):
    """The baseline with the best mean; of equal ones that with the larger noise, which is harder to beat."""
    sign = 1 if TASKS[task].higher else -1
    return max(baselines(rows), key=lambda m: (round(sign * np.mean(rows[m]["scores"]), 9), rows[m]["ridge noise"]))


def judged(rows, ours, rival):
    """ "ahead", "level" or "behind" a baseline, in pairs."""
    return WORDS[verdict(rows[rival][f"{ours} ahead by"], noise=rows[rival][f"{ours} noise"])]


def rivals_in_reach(rows, ours, rival):
    """Baselines that `ours` is not ahead of, although it is ahead of the one with the best mean."""
    if judged(rows, ours, rival) != "ahead":
        return []
    return [m for m in baselines(rows) if judged(rows, ours, m) != "ahead"]


def counted(ours, *, held_out):
    """Settings in which one of ours is ahead of, level with and behind the best baseline."""
    found = [(task, rows) for task, _, rows in compared() if ours in rows and task.startswith("fashion") == held_out]
    words = Counter(judged(rows, ours, best_baseline(task, rows)) for task, rows in found)
    return [words[word] for word in ("ahead", "level", "behind")]


def winner():
    """Who won, counted: on the data that the defaults were found with, and on held-out data."""
    head = ["QP-SBGD at its defaults, beside the best tuned baseline"]
    head += [f"{data}: {word}" for data in ("design data", "held-out data") for word in ("ahead", "level", "behind")]
    body = [
        [f"**{NAMES[ours]}**", *(str(n) for held_out in (False, True) for n in counted(ours, held_out=held_out))]
        for ours in OURS
    ]
    return markdown(head, body)


def remarks():
    """Where a baseline with a lower mean is within noise of ours."""
    lines = []
    for ours in OURS:
        for task, budget, rows in compared():
            if ours in rows and (others := rivals_in_reach(rows, ours, best_baseline(task, rows))):
                names = enumerated(LABELS[m] for m in others)
                lines.append(f"- {NAMES[ours]}: {TITLES[task]}, {amount(task, budget)}, against {names}")
    return "\n".join(["Ahead of the best baseline, but not of one with a lower mean:", "", *lines])


def verdicts():
    """Per task and budget: ours, the best baseline, and the differences in pairs."""
    head = ["task", "length", *NAMES.values(), "best baseline", *(f"{name}, difference" for name in NAMES.values())]
    body = []
    for task, budget, rows in compared():
        rival = best_baseline(task, rows)
        cells = [score(task, rows[ours]["scores"]) if ours in rows else "–" for ours in OURS]
        cells.append(f"{score(task, rows[rival]['scores'])}, {LABELS[rival]}")
        for ours in OURS:
            if ours not in rows:
                cells.append("–")
                continue
            gap, noise = (rows[rival][f"{ours} {name}"] for name in ("ahead by", "noise"))
            figures = f"{100 * gap:+.2f} ± {100 * noise:.2f}" if TASKS[task].higher else f"{gap:+.3f} ± {noise:.3f}"
            figures = figures.replace("-", "−")
            word = judged(rows, ours, rival)
            cells.append(f"{figures} {word if word == 'level' else f'**{word}**'}")
        body.append([TITLES[task], amount(task, budget), *cells])
    return markdown(head, body)


def scores():
    """One table per task: all methods and budgets; the best mean of a column in bold."""
    parts = []
    for task, budgets in tasks().items():
        if not any(map(baselines, budgets.values())):
            continue
        sign = 1 if TASKS[task].higher else -1
        best = {b: max(rows, key=lambda m: sign * np.mean(rows[m]["scores"])) for b, rows in budgets.items()}
        body = []
        for method in METHODS:
            cells = [score(task, rows[method]["scores"]) if method in rows else "–" for rows in budgets.values()]
            marked = [f"**{cell}**" if best[b] == method else cell for b, cell in zip(budgets, cells, strict=True)]
            body.append([LABELS[method], *marked])
        title = TITLES[task] if TASKS[task].higher else f"{TITLES[task]} (training loss)"
        parts.append(markdown([title, *(amount(task, budget) for budget in budgets)], body))
    return "\n\n".join(["The best mean of a column in bold.", *parts])


def alone():
    """Networks that only the ridge was trained on."""
    body = [
        [TITLES[task], amount(task, budget), score(task, rows["ridge"]["scores"])]
        for task, budgets in tasks().items()
        for budget, rows in budgets.items()
        if not baselines(rows)
    ]
    return markdown(["network", "length", "ridge, test accuracy in %"], body)


def left_out():
    """What was not run, whose rates were taken from shorter runs, and rates at the end of a grid."""
    gone, inherited, edges = {}, {}, {}
    for task, budget, rows in compared():
        where = task, budget
        missing = [LABELS[method] for method in METHODS if method not in rows]
        if missing:
            gone.setdefault(enumerated(missing), []).append(where)
        chosen = getattr(TASKS[task], "chosen_up_to", budget)
        if budget > chosen:
            shorter = max(b for b in tasks()[task] if b <= chosen)
            inherited.setdefault(f"from {amount(task, shorter)}", []).append(where)
            continue
        ended = [LABELS[m] for m in GRIDS if m in rows and rows[m]["lr"] in ends(GRIDS[m])]
        if ended:
            edges.setdefault(enumerated(ended), []).append(where)
    parts = {
        "Not run, for lack of time": gone,
        "Learning rates taken from shorter runs": inherited,
        "Best rate at the end of a grid that had been extended three times": edges,
    }
    lines = []
    for name, found in parts.items():
        lines += [f"- {name}:"] * bool(found)
        lines += [f"  - {what}: {settings(places)}" for what, places in found.items()]
    return "\n".join(lines)


def settings(places):
    """Tasks and budgets in words."""
    budgets = {}
    for task, budget in places:
        budgets.setdefault(task, []).append(budget)
    return "; ".join(
        f"{TITLES[task]}, {enumerated([*map(str, found[:-1]), amount(task, found[-1])])}"
        for task, found in budgets.items()
    )


def ends(grid):
    """The lowest and the highest rate that `training.chosen_rates` extends a grid to."""
    low, high = min(grid), max(grid)
    for _ in range(3):
        low, high = float(f"{low / 3:.1g}"), float(f"{high * 3:.1g}")
    return low, high


STEPS = {
    "real weights": "real weights",
    "bc-adam": "BinaryConnect",
    "ridge": "ridge",
    "spins": "spins",
    "spins, two vectors": "two vectors",
    "polar": "polar",
    "Muon": "Muon",
}


def step_cost():
    """Milliseconds per training step under AdamW, and the other methods' times and peak memory relative to it."""
    body = []
    for found in measured(("step_cost_cpu", "step_cost_cuda")).values():
        for row in found["results"]:
            device = found["settings"]["device"]
            if device == "CPU":
                device = f"{found['settings']['threads']} CPU threads, {'one core busy' if row['busy'] else 'idle'}"
            times = row["milliseconds"]
            ratios = [f"{times[name] / times['AdamW']:.2f}" if name in times else "–" for name in STEPS]
            body.append([row["network"].replace("cnn", "CNN"), device, f"{times['AdamW']:.2f} ms", *ratios])
            if "MiB" in row:
                peaks = row["MiB"]
                shown = [f"{peaks[name] / peaks['AdamW']:.2f}" for name in STEPS]
                body.append(["", "peak memory", f"{peaks['AdamW']:.0f} MiB", *shown])
    return markdown(["network", "machine", "binary weights, AdamW", *STEPS.values()], body)


def bits():
    found = results("bits")
    by_bits = {}
    for row in found["rows"]:
        by_bits.setdefault(row["bits"], {})[row["method"]] = row["scores"]
    reference = by_bits.pop(32)["adam"]
    body = [
        [f"{count}", *(_percent(rows[method]) for method in ("ridge", "bc-adam"))] for count, rows in by_bits.items()
    ]
    table = markdown(["bits per weight", LABELS["ridge"], LABELS["bc-adam, default"]], body)
    settings = found["settings"]
    return (
        f"{table}\n\nMNIST, network {settings['network']}, {settings['epochs']} epochs, {settings['seeds']} seeds, "
        f"test accuracy in %. The same network with float weights, Adam at the best of {len(settings['float rates'])} "
        f"rates: {_percent(reference)}."
    )


def _percent(values):
    return f"{100 * np.mean(values):.2f} ± {100 * deviation(values):.2f}"


NETWORKS = {
    "vgg-5": "VGG-small, 5 epochs",
    "vgg-25": "VGG-small, 25 epochs",
    "resnet20-10": "ResNet-20, 10 epochs",
    "resnet20-30": "ResNet-20, 30 epochs",
    "resnet20-100": "ResNet-20, 100 epochs",
    "resnet56-10": "ResNet-56, 10 epochs",
    "gpt-1500": "character GPT, 1,500 steps",
    "gpt-5000": "character GPT, 5,000 steps",
}
RIVALS = {
    "st-adamw": "straight-through, AdamW",
    "st-sgd": "straight-through, SGD",
    "st-muon": "straight-through, Muon",
    "bc-adam": "BinaryConnect, Adam",
    "bop": "Bop",
}
DEFAULTS = {
    "ridge": "QP-SBGD, ridge",
    "spins": "QP-SBGD, spins",
    "spins-2": "QP-SBGD, two vectors",
    "polar": "QP-SBGD, polar",
}


def _score(task, values):
    """The mean, with the standard deviation where there are several seeds."""
    unit, digits, name = (1, 3, "nats") if task.startswith("gpt") else (100, 1, "%")
    spread = f" ± {unit * np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{unit * np.mean(values):.{digits}f}{spread} {name}"


def today():
    """Test scores on today's networks: QP-SBGD at its defaults, tuned rivals and real weights."""
    rows = [row for row in results("networks")["rows"] if not row["choosing"]]
    methods = {**DEFAULTS, **RIVALS, "float-sgd": "real weights, SGD", "float-adamw": "real weights, AdamW"}
    tasks = [task for task in NETWORKS if any(row["task"] == task for row in rows)]
    table = []
    for method, label in methods.items():
        scores = {t: [r["score"] for r in rows if (r["task"], r["method"]) == (t, method)] for t in tasks}
        if any(scores.values()):
            table.append([label, *(_score(t, found) if found else "–" for t, found in scores.items())])
    return markdown(["test score", *(NETWORKS[task] for task in tasks)], table)


def rivals():
    """The rivals' grids on validation data: every rate that was tried, the best in bold."""
    rows = [row for row in results("networks")["rows"] if row["choosing"]]
    table = []
    for task in NETWORKS:
        for method, label in RIVALS.items():
            tried = {r["lr"]: r["score"] for r in rows if (r["task"], r["method"]) == (task, method)}
            if tried:
                best = (min if task.startswith("gpt") else max)(tried, key=tried.get)
                cells = [
                    f"{'**' * (rate == best)}{_score(task, [tried[rate]])}{'**' * (rate == best)} at {rate:.2g}"
                    for rate in sorted(tried)
                ]
                table.append([NETWORKS[task], label, ", ".join(cells)])
    return markdown(["network", "rival", "validation score by rate"], table)


def estimators():
    """Mean scores of all models on every data set, and their mean ranks."""
    if not (kept := measured(["estimators"])):
        return "Not measured yet."
    found = {}
    for row in kept["estimators"]["rows"]:
        found.setdefault(row["data"], {})[row["model"]] = row
    names = ("qpsbgd", "qpsbgd spins", "MLP", "linear")
    names = [name for name in names if all(name in rows for rows in found.values())]
    if "qpsbgd" not in names:
        return "Not measured yet."
    head = [
        "data",
        "rows × columns",
        *("logistic or linear regression" if name == "linear" else name for name in names),
        "fit",
        "fit, MLP",
    ]
    body, ranks = [], {True: [], False: []}
    for data, rows in found.items():
        scores = np.array([100 * np.mean(rows[name]["scores"]) for name in names])
        first = rows["qpsbgd"]
        compared = [k for k, name in enumerate(names) if name != "qpsbgd spins"]
        places = {k: 1 + sum(scores[j] > scores[k] for j in compared) for k in compared}
        ranks[first["design"]].append([places.get(k, np.nan) for k in range(len(names))])
        cells = [f"**{score:.1f}**" if score == scores.max() else f"{score:.1f}" for score in scores]
        seconds = [f"{rows[name]['seconds']:.1f} s" for name in ("qpsbgd", "MLP")]
        mark = "" if first["design"] else " (apart)"
        body.append([f"{data}{mark}", f"{first['rows']} × {first['columns']}", *cells, *seconds])
    for title, design in (("mean rank, chosen on", True), ("mean rank, apart", False)):
        means = np.array(ranks[design]).mean(0)
        body.append([title, "", *("–" if np.isnan(mean) else f"{mean:.2f}" for mean in means), "", ""])
    return markdown(head, body)


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
