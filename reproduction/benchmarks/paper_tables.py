"""What the documents say of the paper's experiments, from the results of `qpsbgd run` in reproduction/results/paper."""

from collections import Counter

import numpy as np

from benchmarks.tables import RESULTS, lines, markdown, results
from qpsbgd_paper.experiments import EXPERIMENTS, make_experiment
from qpsbgd_paper.framework.claims import Claim, judged
from qpsbgd_paper.framework.comparison import Comparison
from qpsbgd_paper.framework.methods import RIDGE, SPINS
from qpsbgd_paper.report.tables import claims_sentence, mean_and_deviation
from qpsbgd_qubo.files.atomic import without_checksum

UNTOLD = ("random encoder",)
"""Settings that the paper does not have, in claims that are not made of lines."""

BEYOND = ("quality",)
"""Experiments that are not the paper's stand after them, before the digits of the demo."""

FORMS = {
    "qpsbgd-mean": "taken literally with a mean loss",
    "qpsbgd-sum": "with a summed loss",
    "qpsbgd-printed": "with its scale chosen",
}


def summaries():
    """The results of all experiments: the paper's in its order, then those beyond it."""
    names = [name for name in EXPERIMENTS if name not in BEYOND]
    return [*(labelled(name) for name in (*names, *BEYOND)), results("demo/digits")]


def labelled(name):
    """An experiment's results, its claims labelled as the paper's own or beyond it by the present code."""
    found, experiment = results(f"paper/{name}"), make_experiment(name)
    claims = experiment.claims() if isinstance(experiment, Comparison) else ()
    sources = {(claim.text, claim.cases): claim.source for claim in claims}
    for claim in found["claims"]:
        known = sources.get((claim["text"], tuple(claim.get("cases", ()))), claim["source"])
        outside = any(claim["text"].endswith(f"({case})") for case in UNTOLD) or name in BEYOND
        claim["source"] = "beyond" if known == "paper" and outside else known
    return found


def released():
    """Printed, released, ours: the main figures of the two experiments on Adult that the notebooks cover."""
    head = " | printed | released, authors' seeds | released, ten others | released, repaired | ours (spins, ridge)"
    body = []
    for name, theirs in (("adult-10", results("paper/figure3")), ("adult-acc", results("paper/released-acc"))):
        own, key = results(f"paper/{name}"), theirs["metrics"][0]["key"]
        authors, *others, repaired = (case["label"] for case in theirs["cases"])
        printed, *ours = (
            _figure(own, ["gain 1"], line, own["metrics"][0]["key"])
            for line in ("qpsbgd-printed", "qpsbgd", "qpsbgd-ridge")
        )
        cells = [_figure(theirs, cases, "qpsbgd-printed", key) for cases in ([authors], others, [repaired])]
        controls = [_figure(theirs, [authors], line, key) for line in ("bc-sgd", "frozen", "constant")]
        label = f"{name}, {theirs['metrics'][0]['label']}"
        body.append(" | ".join([label, printed, *cells, ", ".join(ours), *controls]))
    idle = {row["line"]: np.mean(row["extra"]["idle"]) for row in results("paper/figure3")["cases"][0]["rows"]}
    table = lines(f'{head} | BC (SGD), authors\' seeds | frozen | always "no"', body)
    return (
        f"{table}\n\nMean ± standard deviation over seeds; gain 1. In the ten-layer network as "
        f"released, {idle['qpsbgd-printed']:.0%} of the first layer's columns have a gradient of exactly zero over all "
        f"updates, and {idle['frozen']:.0%} in the untrained one."
    )


def _figure(summary, cases, line, key):
    found = [row for case in summary["cases"] if case["label"] in cases for row in case["rows"] if row["line"] == line]
    values = [value for row in found for value in row["values"][key]]
    return mean_and_deviation(values) if values else "–"


def drawn():
    """How far our runs are from the curves that the notebooks store, the authors' seeds and others."""
    head = ["figure", "seeds", "method", "rms distance from the drawn curve", "second half, ours", "second half, drawn"]
    body = [
        [name, *row]
        for name, found in (("ten layers", results("paper/figure3")), ("two layers", results("paper/released-acc")))
        for row in found["tables"][0]["body"]
        if "repaired" not in row[0]
    ]
    return markdown(head, body)


def released_qubos():
    """Size and embedding of the released (D) path's QUBOs."""
    table = results("paper/embedding")["tables"][0]
    return markdown(table["head"], table["body"])


def paper_summary():
    """How many of the paper's statements hold, and how its form does beside BinaryConnect with and without a scale."""
    reasons = (
        "Two reasons for what does not: the equation leaves the size of the gradient open, and taken literally nearly "
        "ignores it; and the networks are so small that five seeds, or layers that are never trained, rank methods by "
        "chance ([claim by claim](docs/results.md), [what made its figures](docs/released.md))."
    )
    return " ".join(("- **Does the paper hold?**", claims_sentence(summaries()), scales(), reasons))


def scales():
    """How often the paper's form is ahead of BinaryConnect, by the scale of its gradient."""
    counted = {line: Counter(_beside_bc(line)) for line in FORMS}
    told = [
        f"{words} {counted[line]['yes']}, {counted[line]['cannot tell']} and {counted[line]['no']}"
        for line, words in FORMS.items()
    ]
    return (
        f"In {counted['qpsbgd-mean'].total()} settings QP-SBGD as printed is ahead of the better of BC (SGD) and "
        f"BC (signSGD), cannot be told apart from it, and is behind it: {', '.join(told)}."
    )


def _beside_bc(line):
    """The verdict on "better than BinaryConnect" in every case of the paper's experiments that has both readings."""
    for summary in (results(f"paper/{name}") for name in EXPERIMENTS):
        for case in summary.get("cases", ()):
            rows = {row["line"]: row for row in case["rows"]}
            rivals = tuple(name for name in ("bc-sgd", "bc-sign") if name in rows)
            if rivals and {"qpsbgd-mean", line} <= rows.keys():
                key = summary["metrics"][0]["key"]
                values = {(case["case"], name, key): row["values"][key] for name, row in rows.items()}
                higher = {key: summary["metrics"][0].get("higher", True)}
                yield judged(Claim("", line, key, (case["case"],), rivals), values, higher)["verdict"]


def two_machines():
    """Experiments that were run on a second machine too: lines that chose other options, how far figures moved.

    Lines that choose among other options there are left out, and ridge and spins, whose δ has changed since.
    """
    body = []
    for path in sorted((RESULTS / "second").glob("*.json")):
        both = [results(f"paper/{path.stem}"), without_checksum(path.read_bytes())]
        key = both[0]["metrics"][0]["key"]
        first, second = (
            {(case["case"], row["line"]): row for case in found["cases"] for row in case["rows"]} for found in both
        )
        pairs = {
            name: (first[name], second[name])
            for name in first
            if name[1] not in (RIDGE, SPINS) and name in second and first[name]["grid"][0] == second[name]["grid"][0]
        }
        other = sum(one["options"] != two["options"] for one, two in pairs.values())
        moves = {n: abs(np.mean(one["values"][key]) - np.mean(two["values"][key])) for n, (one, two) in pairs.items()}
        most = max(moves, key=moves.get)
        claims = [[claim for claim in found["claims"] if claim["source"] != "aim"] for found in both]
        said, said_there = ({(one["text"], *one["cases"]): one["verdict"] for one in found} for found in claims)
        differ = [claim[0] for claim in said if claim in said_there and said[claim] != said_there[claim]]
        machines = " and ".join(found["made with"]["machine"] for found in both)
        seeds = [(found.get("chosen on") or [found["settings"]["choosing_seeds"]])[-1] for found in both]
        largest = f"{moves[most]:.3f} ({first[most]['label']}, {most[0]})"
        cells = [path.stem, machines, f"{seeds[0]} and {seeds[1]}", f"{len(pairs)}", f"{other}", largest]
        body.append([*cells, "; ".join(differ) or "none"])
    head = ["experiment", "machines", "options chosen on, seeds", "lines", "other options"]
    return markdown([*head, "largest move of a main figure", "verdicts that differ"], body)


def chip_figure():
    """The part of a Zephyr chip that holds a layer of 84 columns, large enough to see them."""
    drawn = next(figure for figure in results("paper/embedding")["figures"] if figure["name"] == "chip")
    panel = next(panel for panel in drawn["panels"] if panel["title"].startswith("Zephyr"))
    used = max(y for (_, y), colour in zip(panel["nodes"], panel["colours"], strict=True) if colour >= 0)
    shown = [k for k, (_, y) in enumerate(panel["nodes"]) if y <= used + 0.05]
    part = {key: [panel[key][k] for k in shown] for key in ("nodes", "colours")}
    title = "A layer of 84 columns on a Zephyr chip: one colour per column, one submission for all"
    return {**drawn, "panels": [{**panel, **part, "size": 4.4, "title": title}], "columns": 1, "height": 5.2}
