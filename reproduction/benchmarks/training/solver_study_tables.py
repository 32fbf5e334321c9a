"""Is a better answer of the QUBO a better network? Tables and figures of controls.py and qubo_descent.py."""

import numpy as np
from benchmarks.tables import group_by, label_axes, results
from benchmarks.training.training_tables import higher, score, tasks
from benchmarks.training.training_tasks import TASKS
from matplotlib.figure import Figure

from qpsbgd_paper.report.rendering import INK
from qpsbgd_paper.report.styles import RED
from qpsbgd_paper.report.tables import pipes

DIRECTIONS = {
    "ridge": "ridge",
    "ridge-signs": "signs of the ridge's answer",
    "polar": "polar",
    "polar-signs": "signs of the polar factor",
    "gradient-signs": "signs of the mean gradient",
}
CONTROLLED = {
    ("adult-10", 4): "ten layers on Adult, loss",
    ("digits", 2): "digits, 2 epochs, %",
    ("digits", 10): "digits, 10 epochs, %",
}


def solver_study(name):
    """Scores by task, budget and method, and by solver the shares of the best known drop in energy.

    Of several rates the best is taken, by the score itself, which favours signs.
    """
    scores, shares = {}, {}
    for (task, budget, method), rows in group_by(results(name)["rows"], "task", "budget", "method").items():
        if method == "energies":
            shares[task, budget] = rows[0]["shares"]
            continue
        best = max if higher(task) else min
        by_rate = {}
        for row in rows:
            by_rate.setdefault(row.get("rate"), []).append(row["score"])
        scores[task, budget, method] = best(by_rate.values(), key=np.mean)
    return scores, shares


def controls_figure():
    """Latent weights: the score against the energy that the spins reach."""
    scores, shares = solver_study("controls")
    settings = list(CONTROLLED)[:2]
    scores |= {(*setting, name): scores[*setting, f"spins, {name}"] for setting in settings for name in shares[setting]}
    lines = ("ridge", "ridge-signs", "gradient-signs")
    titles = {setting: CONTROLLED[setting] for setting in settings}
    return solver_panels(scores, shares, titles, {name: DIRECTIONS[name] for name in lines})


def solver_panels(scores, shares, titles, lines, *, log=""):
    """Mean scores with standard errors against the energy reached, a panel per setting; scores of others as lines."""
    figure = Figure(figsize=(8.2, 2.9), layout="constrained")
    energy = "energy reached, % of the best known" if len(titles) < 4 else "energy, % of the best"
    for axes, (setting, title) in zip(figure.subplots(1, len(titles)), titles.items(), strict=True):
        unit = 100 if higher(setting[0]) else 1
        for number, (solver, share) in enumerate(shares[setting].items()):
            values = scores[*setting, solver]
            error = unit * np.std(values, ddof=1) / len(values) ** 0.5
            place = (100 * share, unit * np.mean(values))
            axes.errorbar(*place, yerr=error, color=RED, marker="o", markersize=4.5, capsize=2.5)
            last = number == len(shares[setting]) - 1
            crowded = log or share > 0.9
            right = not crowded or last or number % 2
            offset = (5 if right else -5, -10 if crowded and number % 2 and not last else 4)
            look = {"textcoords": "offset points", "ha": "left" if right else "right", "fontsize": 7.5}
            axes.annotate(solver.removeprefix("flips-"), place, xytext=offset, **look)
        for (method, label), style in zip(lines.items(), ("-", "--", ":", "-."), strict=False):
            if (*setting, method) in scores:
                level = unit * np.mean(scores[*setting, method])
                axes.axhline(level, color=INK, linewidth=0.9, linestyle=style, label=label)
        label_axes(
            axes,
            title,
            energy,
            log=log,
            size=8.5,
        )
        axes.margins(x=0.14)
        axes.tick_params(labelsize=8)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    return figure


CHOSEN = {
    ("adult-10", 4): "ten layers on Adult, loss",
    ("digits", 2): "digits, 2 epochs, %",
    ("mnist-dense", 1): "MNIST, dense, 1 epoch, %",
    ("mnist-resnet8", 150): "ResNet-8, 150 steps, %",
}
CHOOSERS = {
    "flips-1": "1 flip",
    "flips-8": "8 flips",
    "descent": "**24 flips, the default**",
    "tabu": "tabu search",
    "window-16": "windows of 16, exact",
    "flips of 0.02": "2 % of all weights at first",
    "float32": "the default with F in single precision",
    "8 bits": "the default with F in 8 bits",
    "last-phase": "QPSBGD, then QuboDescent for a tenth of the steps",
    "no-couplings": "no couplings",
    "real-minimiser": "signs of the real minimiser",
    "bop": "Bop",
    "default": "QPSBGD",
    "muon": "straight-through, Muon",
    "adamw": "straight-through, AdamW",
}


def frozen_features():
    """Heads of K bits on frozen random features, by the answer of their family."""
    rows, body = group_by(results("frozen_features")["rows"], "task", "bits"), []
    ways = {"rounded": "rounded", "descent": "descent", "tabu": "tabu search", "real": "real weights"}
    for (task, bits), runs in rows.items():
        scores = [f"{100 * np.mean([run[way] for run in runs]):.1f}" for way in ways]
        body.append([{"mnist": "MNIST"}.get(task, task), str(bits), str(runs[0]["spins"]), *scores])
    return pipes(["accuracy, %", "bits", "spins per class", *ways.values()], body)


SHOWN_SOLVERS = ("flips-1", "descent", "tabu")


def weight_study():
    """As `solver_study`, of weights that QUBOs choose, with methods that keep latent weights from other studies."""
    scores, shares = solver_study("qubo_descent")
    for task, budget in CHOSEN:
        best = max if higher(task) else min
        for name in ("bop", "muon", "adamw"):
            grid = [values for key, values in scores.items() if key[:2] == (task, budget) and key[2].startswith(name)]
            if grid:
                scores[task, budget, name] = best(grid, key=np.mean)
        if task in TASKS:
            rows = tasks()[task][budget]
            for name, method in {"default": "ridge", "muon": "st-muon", "adamw": "st-adamw"}.items():
                scores[task, budget, name] = rows[method]["scores"]
    return scores, shares


def qubo_training():
    """Weights that QUBOs choose, by solvers from weak to strong, their controls, and latent weights."""
    scores, _ = weight_study()
    body = [
        [label, *(score(key[0], scores.get((*key, method), ())) for key in CHOSEN)]
        for method, label in CHOOSERS.items()
    ]
    return pipes(["method", *CHOSEN.values()], body)


START_METHODS = {
    "before": "before",
    "1 of the flips": "QuboDescent",
    "0.1 of the flips": "a tenth of the flips",
    "0.01 of the flips": "a hundredth",
    "QPSBGD": "QPSBGD",
    "QPSBGD, 0.1 of the rate": "a tenth of the rate",
}


def trained_starts():
    """An MLP trained with real weights, made binary in two ways and trained again."""
    scores = {}
    for row in results("qubo_descent")["rows"]:
        if row["task"] == "mnist-pretrained":
            name, method = row["method"].split(" + ")
            scores.setdefault((name, method), []).append(row["score"])
            scores.setdefault((name, "before"), []).append(row["before"])
    body = [
        [f"`{name}`", *(score("mnist-dense", scores[name, method]) for method in START_METHODS)]
        for name in ("convert", "binarize")
    ]
    return pipes(["test accuracy, %", *START_METHODS.values()], body)


def qubo_training_figure():
    """Weights that QUBOs choose: the score against the energy that solvers reach."""
    scores, shares = weight_study()
    titles = {key: title for key, title in CHOSEN.items() if key in shares}
    shown = {key: {name: shares[key][name] for name in SHOWN_SOLVERS if (*key, name) in scores} for key in titles}
    return solver_panels(scores, shown, titles, {"default": "QPSBGD", "muon": "straight-through, Muon"}, log="x")
