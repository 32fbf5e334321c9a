"""The figure of docs/training.md."""

from matplotlib.figure import Figure
from tables import results
from training_tables import DEFAULTS, NETWORKS, RIVALS

from qpsbgd_paper.report.rendering import ink, tidy
from qpsbgd_paper.report.styles import RED


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
