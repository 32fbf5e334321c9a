"""What the documents say of the paper's experiments, from the results of `qpsbgd run` in reproduction/results/paper."""

import numpy as np

from benchmarks.tables import RESULTS, results
from qpsbgd_paper.experiments import EXPERIMENTS, make_experiment
from qpsbgd_paper.framework.comparison import Comparison
from qpsbgd_paper.framework.methods import RIDGE, SPINS
from qpsbgd_paper.report.tables import mean_and_deviation, pipes
from qpsbgd_qubo.files.atomic import without_checksum

UNTOLD = ("random encoder",)
"""Settings that the paper does not have, in claims that are not made of lines."""

BEYOND = ("quality",)
"""Experiments that are not the paper's stand after them, before the digits of the demo."""


def summaries():
    """The results of all experiments: the paper's in its order, then those beyond it."""
    names = [name for name in EXPERIMENTS if name not in BEYOND]
    return [*(labelled(name) for name in (*names, *BEYOND)), results("demo/digits")]


def labelled(name):
    """An experiment's results, its claims labelled as the paper's own or beyond it by the present code."""
    summary, experiment = results(f"paper/{name}"), make_experiment(name)
    claims = experiment.claims() if isinstance(experiment, Comparison) else ()
    sources = {(claim.text, claim.cases): claim.source for claim in claims}
    for claim in summary["claims"]:
        known = sources.get((claim["text"], tuple(claim.get("cases", ()))), claim["source"])
        outside = any(claim["text"].endswith(f"({case})") for case in UNTOLD) or name in BEYOND
        claim["source"] = "beyond" if known == "paper" and outside else known
    return summary


def released():
    """Printed, released, ours: the main figures of the two experiments on Adult that the notebooks cover."""
    head = ["", "printed", "released, authors' seeds", "released, ten others", "released, repaired"]
    head += ["ours (spins, ridge)", "BC (SGD), authors' seeds", "frozen", 'always "no"']
    body = []
    for name, theirs in (("adult-10", results("paper/figure3")), ("adult-acc", results("paper/released-acc"))):
        tuned, key = results(f"paper/{name}"), theirs["metrics"][0]["key"]
        authors, *others, repaired = (case["label"] for case in theirs["cases"])
        printed, *ours = (
            _figure(tuned, ["gain 1"], line, tuned["metrics"][0]["key"])
            for line in ("qpsbgd-printed", "qpsbgd", "qpsbgd-ridge")
        )
        cells = [_figure(theirs, cases, "qpsbgd-printed", key) for cases in ([authors], others, [repaired])]
        controls = [_figure(theirs, [authors], line, key) for line in ("bc-sgd", "frozen", "constant")]
        label = f"{name}, {theirs['metrics'][0]['label']}"
        body.append([label, printed, *cells, ", ".join(ours), *controls])
    idle = {row["line"]: np.mean(row["extra"]["idle"]) for row in results("paper/figure3")["cases"][0]["rows"]}
    return (
        f"{pipes(head, body)}\n\nMean ± standard deviation over seeds; gain 1. In the ten-layer network as "
        f"released, {idle['qpsbgd-printed']:.0%} of the first layer's columns have a gradient of exactly zero over all "
        f"updates, and {idle['frozen']:.0%} in the untrained one."
    )


def _figure(summary, cases, line, key):
    rows = [row for case in summary["cases"] if case["label"] in cases for row in case["rows"] if row["line"] == line]
    values = [value for row in rows for value in row["values"][key]]
    return mean_and_deviation(values) if values else "–"


def drawn():
    """How far our runs are from the curves that the notebooks store, the authors' seeds and others."""
    head = ["figure", "seeds", "method", "rms distance from the drawn curve", "second half, ours", "second half, drawn"]
    body = [
        [name, *row]
        for name, study in (("ten layers", "figure3"), ("two layers", "released-acc"))
        for row in results(f"paper/{study}")["tables"][0]["body"]
        if "repaired" not in row[0]
    ]
    return pipes(head, body)


def released_qubos():
    """Size and embedding of the released (D) path's QUBOs."""
    table = results("paper/embedding")["tables"][0]
    return pipes(table["head"], table["body"])


def two_machines():
    """Experiments that were run on a second machine too: lines that chose other options, how far figures moved.

    Lines that choose among other options there are left out, and ridge and spins, whose δ has changed since.
    """
    body = []
    for path in sorted((RESULTS / "second").glob("*.json")):
        both = [results(f"paper/{path.stem}"), without_checksum(path.read_bytes())]
        key = both[0]["metrics"][0]["key"]
        first, second = (
            {(case["case"], row["line"]): row for case in summary["cases"] for row in case["rows"]} for summary in both
        )
        pairs = {
            name: (first[name], second[name])
            for name in first
            if name[1] not in (RIDGE, SPINS) and name in second and first[name]["grid"][0] == second[name]["grid"][0]
        }
        other = sum(here["options"] != there["options"] for here, there in pairs.values())
        moves = {name: abs(np.subtract(*(np.mean(row["values"][key]) for row in pair))) for name, pair in pairs.items()}
        most = max(moves, key=moves.get)
        here, there = (
            {
                (claim["text"], *claim["cases"]): claim["verdict"]
                for claim in summary["claims"]
                if claim["source"] != "aim"
            }
            for summary in both
        )
        differ = [claim[0] for claim in here if claim in there and here[claim] != there[claim]]
        machines = " and ".join(summary["made with"]["machine"] for summary in both)
        seeds = [(summary.get("chosen on") or [summary["settings"]["choosing_seeds"]])[-1] for summary in both]
        largest = f"{moves[most]:.3f} ({first[most]['label']}, {most[0]})"
        cells = [path.stem, machines, f"{seeds[0]} and {seeds[1]}", f"{len(pairs)}", f"{other}", largest]
        body.append([*cells, "; ".join(differ) or "none"])
    head = ["experiment", "machines", "options chosen on, seeds", "lines", "other options"]
    return pipes([*head, "largest move of a main figure", "verdicts that differ"], body)


def chip_figure():
    """The part of a Zephyr chip that holds a layer of 84 columns, large enough to see them."""
    drawn = next(figure for figure in results("paper/embedding")["figures"] if figure["name"] == "chip")
    panel = next(panel for panel in drawn["panels"] if panel["title"].startswith("Zephyr"))
    used = max(y for (_, y), colour in zip(panel["nodes"], panel["colours"], strict=True) if colour >= 0)
    shown = [k for k, (_, y) in enumerate(panel["nodes"]) if y <= used + 0.05]
    part = {key: [panel[key][k] for k in shown] for key in ("nodes", "colours")}
    title = "A layer of 84 columns on a Zephyr chip: one colour per column, one submission for all"
    return {**drawn, "panels": [{**panel, **part, "size": 4.4, "title": title}], "columns": 1, "height": 5.2}
