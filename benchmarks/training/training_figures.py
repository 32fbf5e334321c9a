"""The figure of docs/training.md."""

from matplotlib.figure import Figure
from tables import results
from training_tables import DEFAULTS, NETWORKS, RIVALS

from qpsbgd_paper.report.rendering import ink, tidy
from qpsbgd_paper.report.styles import RED


def today_figure():
    """Scores on CIFAR-10's test images, one dot per run."""
    rows = [row for row in results("networks")["rows"] if not row["choosing"]]
    labels = {**DEFAULTS, **RIVALS, "float-sgd": "real weights, SGD"}
    figure = Figure(figsize=(8.2, 2.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2, sharey=True), ("vgg-5", "resnet20-10"), strict=True):
        for place, method in enumerate(reversed(labels)):
            scores = [100 * row["score"] for row in rows if (row["task"], row["method"]) == (task, method)]
            look = {"marker": "o", "color": RED if method in DEFAULTS else ink(), "linestyle": "", "markersize": 5}
            axes.plot(scores, [place] * len(scores), **look)
        tidy(axes)
        axes.set_yticks(range(len(labels)), list(reversed(labels.values())))
        axes.set_title(NETWORKS[task], fontsize=9, loc="left", color=ink())
        axes.set_xlabel("accuracy, %", fontsize=9)
    return figure
