"""The table and the figure of families.py: docs/training.md, and deep networks in docs/qubo_training.md."""

import numpy as np
from benchmarks.tables import group_by, results, spread
from benchmarks.training.families import CONTROLS
from matplotlib.figure import Figure

from qpsbgd_paper.report.tables import pipes

TITLES = {
    "resnet18": "ResNet-18",
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "vgg16": "VGG-16",
    "densenet": "DenseNet",
    "mobilenet-v2": "MobileNetV2",
    "vit": "ViT",
    "mixer": "MLP-Mixer",
    "convnext": "ConvNeXt",
    "gpt": "character GPT, nats",
    "vgg-small": "VGG-small",
    "mlp": "MLP, 4 layers",
    "mlp-bn": "MLP, 4 layers, batch norm",
    "mlp-deep": "MLP, 9 layers",
    "mlp-deep-ln": "MLP, 9 layers, layer norm",
}
GROUPS = {
    "a norm for every layer, 12 layers or more: polar": list(TITLES)[:6],
    "fewer norms: polar": list(TITLES)[6:10],
    "others: ridge": list(TITLES)[10:],
}
"""Families whose default is one rule."""
FEW_NORMS_RATE = 0.018
"""The rate in the grid that is the default of networks with few norms: 0.1 · 936^(−1/4)."""
RATES = (0.0045, 0.009, 0.018, 0.036, 0.072)


def scores_by_cell(images=20_000, **wanted):
    """Scores by family, method and rate, of rows of CIFAR-10 and text with convert's own scales, or as wanted."""
    same = {"data": None, "scale": None} | wanted
    rows = [row for row in results("families")["rows"] if all(row.get(name) == value for name, value in same.items())]
    rows = [row for row in rows if row["score"] is not None and row.get("images", images) == images]
    return {key: [row["score"] for row in group] for key, group in group_by(rows, "family", "method", "rate").items()}


def worth(family, score):
    """Points of accuracy; a hundredth of a nat counts as half a point."""
    return -50 * score if family == "gpt" else 100 * score


def default(scores, family):
    """The scores of the default."""
    if family in GROUPS["fewer norms: polar"]:
        return scores[family, "polar", FEW_NORMS_RATE]
    return scores[family, "default", None]


def family_scores(family):
    """Those of the default, Muon and AdamW on all images, rivals at the best rates of the grid."""
    scores = scores_by_cell(images=45_000)
    return [
        next(values for key, values in scores.items() if key[:2] == (family, method) and len(values) == 3)
        for method in ("default", "muon", "adamw")
    ]


def families():
    """The default beside rivals, by family: three seeds on all images."""
    body = []
    for family, title in TITLES.items():
        ours, *rivals = family_scores(family)
        ahead = worth(family, np.mean(ours)) - max(worth(family, np.mean(values)) for values in rivals)
        cells = [score_cell(family, values) for values in (ours, *rivals)]
        body.append([title, f"**{cells[0]}**" if ahead > 0.5 else cells[0], *cells[1:]])
    return pipes(["network", "default", "Muon", "AdamW"], body)


def regrets():
    """Points behind the best cell of the grid, by family, projection and rate; NaN where a run failed."""
    scores = scores_by_cell()
    cells = {
        family: [scores.get((family, method, rate), [np.nan])[0] for method in ("ridge", "polar") for rate in RATES]
        for family in TITLES
    }
    points = {family: np.array([worth(family, score) for score in row]) for family, row in cells.items()}
    return {family: np.nanmax(row) - row for family, row in points.items()}


def left_out():
    """By family, what it loses at the rate that is best for the others of its group, for its group's projection."""
    table, lost = regrets(), {}
    for group, members in GROUPS.items():
        part = slice(0, 5) if group.endswith("ridge") else slice(5, 10)
        for family in members:
            others = np.array([table[other][part] for other in members if other != family])
            lost[family] = table[family][part][int(np.nan_to_num(others, nan=99).sum(0).argmin())]
    return lost


def families_figure():
    """What every family loses at every rate, and at the rate that the others of its group would choose."""
    table, lost = regrets(), left_out()
    grid = np.array([[*table[family], lost[family]] for family in TITLES])
    figure = Figure(figsize=(8.2, 5.2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(np.minimum(np.nan_to_num(grid, nan=99), 6), cmap="Reds", vmin=0, vmax=8, aspect="auto")
    for (row, column), points in np.ndenumerate(grid):
        text = "fails" if np.isnan(points) else f"{points:.1f}"
        colour = "black" if points < 4 else "white"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_yticks(range(len(TITLES)), TITLES.values(), fontsize=8)
    axes.set_xticks(range(11), [*(f"{rate:g}" for rate in RATES * 2), "left out"], fontsize=8)
    for line in (4.5, 9.5):
        axes.axvline(line, color="white", linewidth=4)
    for line in np.cumsum([len(members) for members in GROUPS.values()])[:-1]:
        axes.axhline(line - 0.5, color="white", linewidth=4)
    axes.text(2, -0.8, "ridge, by rate", ha="center", fontsize=9)
    axes.text(7, -0.8, "polar, by rate", ha="center", fontsize=9)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


DEEP = {"resnet20": "ResNet-20, %", "vgg-small": "VGG-small, %", "vit": "ViT, %", "gpt": "GPT, nats"}
"""Networks of the controls."""
DIRECTIONS = {
    "default": "default",
    "polar-signs": "signs of the polar factor",
    "ridge-signs": "signs of the ridge's answer",
    "gradient-signs": "signs of the mean gradient",
    "spins": "spins: the QUBO nearest to the default's direction",
    "muon": "straight-through, Muon",
}
CHOOSERS = {
    "qubo, turnover 0.25, delta 0.3": "**QuboDescent**",
    "qubo, turnover 0.5, delta 0.3": "half the memory",
    "qubo, turnover None, delta 0.3": "a memory of 500 steps, however few flips",
    "qubo, turnover 0.25, delta 0": "full couplings",
    "qubo, turnover None, delta 0": "full couplings and 500 steps",
    "qubo, gradients, memory 0.998": "– and without the output side",
    "qubo, rare roots": "output side renewed every 100 steps only",
    "qubo, rare roots, no couplings": "– and without couplings",
    "muon": "straight-through, Muon",
    "default": "QPSBGD",
}


def score_cell(name, values):
    """A mean, in nats for GPTs, with a deviation where there are several seeds; "fails" where one did not end."""
    if any(value is None for value in values):
        return "fails"
    return spread(values) if name.startswith("gpt") else spread(values, 100, 1)


def deep_controls():
    """Latent weights by directions and their signs: three seeds, at the default's rate, Muon at its own."""
    rows, body = results("families")["rows"], []
    for method, label in DIRECTIONS.items():
        cells = []
        for family, muon in CONTROLS.items():
            rate = {"default": None, "muon": muon}.get(method, 1.0)
            job = {"family": family, "method": method, "rate": rate}
            fitting = [row for row in rows if job.items() <= row.items() and row.get("images", 20_000) == 20_000]
            scores = {r["seed"]: r["score"] for r in fitting if r.get("scale", "auto") == "auto" and "data" not in r}
            cells.append(score_cell(family, list(scores.values())))
        body.append([label, *cells])
    return pipes(["method", *DEEP.values()], body)


def deep_weights():
    """Weights that QUBOs choose, at the best share of flips by the score shown, beside latent weights."""
    scores, body = scores_by_cell(scale="learned") | scores_by_cell(), []
    for method, label in CHOOSERS.items():
        cells = []
        for family in DEEP:
            grid = [values for key, values in scores.items() if key[:2] == (family, method)]
            best = max(grid, key=lambda values: (len(values), worth(family, np.mean(values))), default=None)
            cells.append("–" if best is None else score_cell(family, best))
        body.append([label, *cells])
    return pipes(["method", *DEEP.values()], body)
