"""The figure of docs/training.md."""

from matplotlib.figure import Figure
from tables import labelled, results
from training_tables import DEFAULTS, NETWORKS, RIVALS

from qpsbgd_paper.report.rendering import ink
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
        labelled(axes, NETWORKS[task], "accuracy, %")
        axes.set_yticks(range(len(labels)), list(reversed(labels.values())))
    return figure
