"""What the documents say of the paper's experiments, from the results of `qpsbgd run` in reproduction/results/paper."""

import numpy as np

from benchmarks.tables import cross_table, group_by, results
from qpsbgd_paper.experiments import EXPERIMENTS
from qpsbgd_paper.report.curves import plot_verdicts
from qpsbgd_paper.report.drawings import plot_panels
from qpsbgd_paper.report.tables import escape, mean_and_deviation, pipes


def summaries():
    """The results of all experiments: the paper's in its order, then the demo's."""
    return [*(results(f"paper/{name}") for name in EXPERIMENTS), results("demo/digits")]


def verdicts_figure():
    """Every claim of the paper as a square of its verdict's colour."""
    return plot_verdicts(summaries())


def claims():
    """Every claim of the paper with its verdict."""
    body = [
        [f"`{summary['experiment']}`", escape(claim["text"]), claim["verdict"].replace("cannot tell", "inconclusive")]
        for summary in summaries()
        for claim in _claims(summary)
    ]
    return pipes(["experiment", "claim", "verdict"], body)


def _claims(summary):
    return [claim for claim in summary.get("claims", ()) if claim["source"] == "paper"]


PRINTED = {
    "logreg": "chosen learning rates",
    **dict.fromkeys(("adult-2", "adult-10", "adult-acc"), "gain 1"),
    "mnist": ("0/2, paper", "1/2, paper", "1/7, paper"),
    "karate": "paper",
    **dict.fromkeys(("cora", "pubmed"), "trained encoder"),
}
"""The experiments that compare methods, and the paper's own setting in each."""

LINES = {
    "as printed": ("qpsbgd-printed",),
    "spins": ("qpsbgd",),
    "ridge": ("qpsbgd-ridge",),
    "BinaryConnect": ("bc-sgd", "bc-sign", "bc-adam"),
    "ProxQuant": ("proxquant",),
    "untrained": ("frozen",),
}


def methods():
    """The main figure of every method in the paper's own setting; of BinaryConnect's updates, the best."""
    body = []
    for name, cases in PRINTED.items():
        summary = results(f"paper/{name}")
        metric = summary["metrics"][0]
        chosen = [case for case in summary["cases"] if case["label"] in np.atleast_1d(cases)]
        means = {
            line: np.mean([values for row in rows for values in row["values"][metric["key"]]])
            for line, rows in group_by([row for case in chosen for row in case["rows"]], "line").items()
        }
        best = max if metric["higher"] else min
        cells = [best((means[line] for line in lines if line in means), default=None) for lines in LINES.values()]
        head = f"`{name}`: {'accuracy' if metric['higher'] else 'loss'}"
        body.append([head, *("–" if cell is None else f"{cell:.3f}" for cell in cells)])
    return pipes(["", *LINES], body)


def released():
    """The main figures of the two experiments that the released notebooks cover, in each of the three forms."""
    cells = {}
    for name, theirs in (("adult-10", results("paper/figure3")), ("adult-acc", results("paper/released-acc"))):
        tuned, key = results(f"paper/{name}"), theirs["metrics"][0]["key"]
        authors, *others, repaired = (case["label"] for case in theirs["cases"])
        head = f"`{name}`, {'loss' if name == 'adult-10' else 'accuracy'}"
        for label, line in (("printed", "qpsbgd-printed"), ("ours, spins", "qpsbgd"), ("ours, ridge", "qpsbgd-ridge")):
            cells[label, head] = _figure(tuned, ["gain 1"], line, tuned["metrics"][0]["key"])
        forms = {"the authors' seeds": [authors], "ten other seeds": others, "repaired": [repaired]}
        for label, shown in forms.items():
            cells[f"released, {label}", head] = _figure(theirs, shown, "qpsbgd-printed", key)
        controls = {"BC (SGD), the authors' seeds": "bc-sgd", "untrained": "frozen", 'always "no"': "constant"}
        for label, line in controls.items():
            cells[label, head] = _figure(theirs, [authors], line, key)
    return cross_table("", cells)


def _figure(summary, cases, line, key):
    rows = [row for case in summary["cases"] if case["label"] in cases for row in case["rows"] if row["line"] == line]
    values = [value for row in rows for value in row["values"][key]]
    return mean_and_deviation(values) if values else "–"


def drawn():
    """How far our runs are from the curves that the notebooks store, with the authors' seeds."""
    cells = {
        (row[1], name): row[2]
        for name, study in (("ten layers", "figure3"), ("two layers", "released-acc"))
        for row in results(f"paper/{study}")["tables"][0]["body"]
        if row[0] in ("seeds 5 to 9", "seeds 0 to 4") and (name, row[0]) != ("two layers", "seeds 5 to 9")
    }
    return cross_table("rms distance from the drawn curve", cells)


def released_qubos():
    """Size and embedding of the released (D) path's QUBOs."""
    table = results("paper/embedding")["tables"][0]
    return pipes(table["head"], table["body"])


def chip_figure():
    """The part of a Zephyr chip that holds a layer of 84 columns, large enough to see them."""
    drawn = next(figure for figure in results("paper/embedding")["figures"] if figure["name"] == "chip")
    panel = next(panel for panel in drawn["panels"] if panel["title"].startswith("Zephyr"))
    used = max(y for (_, y), colour in zip(panel["nodes"], panel["colours"], strict=True) if colour >= 0)
    shown = [k for k, (_, y) in enumerate(panel["nodes"]) if y <= used + 0.05]
    part = {key: [panel[key][k] for k in shown] for key in ("nodes", "colours")}
    title = "A layer of 84 columns on a Zephyr chip: one colour per column, one submission for all"
    panels = [{**panel, **part, "size": 4.4, "title": title}]
    return plot_panels({**drawn, "panels": panels, "columns": 1, "height": 5.2})


def attacked():
    """For docs/design.md, one row per attack: how often it was tried, and how often the library held."""
    rows = results("attacks")["attacks"].values()
    return pipes(["attack", "trials", "held"], ([row["about"], f"{row['trials']}", f"{row['held']}"] for row in rows))
