"""Writes what the documents show of benchmarks/results: docs/results.md, the marked tables of other documents, figures.

    python benchmarks/documents.py

Run it after a measurement, or after a change to the report. To keep the results of `qpsbgd run all` and `qpsbgd demo`
first: python benchmarks/documents.py results/paper results/demo
"""

import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "training"), str(Path(__file__).parent)]  # however it is run

import numpy as np
from binarize_tables import (
    binarize_figure,
    binarized,
    binarized_blocks,
    binarized_claims,
    binarized_sizes,
    binarized_times,
    distilled_sentences,
    fine_tuned,
    mixed_and_uniform,
    pretrained,
    sentence_bits,
)
from deploy.deploy_tables import deployed_bytes, deployed_classes, deployed_times, runtime_figures
from rates_figure import rates_figure
from scaling_tables import billion, measured_growth, ranks, sampled
from solvers.problem_tables import (
    constraint_problems,
    dense_problems,
    gpu_chains,
    graph_problems,
    problem_sizes,
    time_figure,
    unseen_constraint_problems,
)
from tables import ROOT, markdown, measured, results
from tools.reliability_tables import attacked, killed, noticed, noticed_at_once
from training_tables import (
    alone,
    bits,
    estimators,
    left_out,
    remarks,
    rivals,
    scores,
    step_cost,
    tasks,
    today,
    today_figure,
    training_figure,
    vectors_figure,
    verdicts,
    winner,
)

from qpsbgd_files.atomic import with_checksum, without_checksum
from qpsbgd_paper.cli.run import INTRO
from qpsbgd_paper.experiments import EXPERIMENTS, make_experiment
from qpsbgd_paper.framework.claims import Claim, judged
from qpsbgd_paper.framework.comparison import Comparison
from qpsbgd_paper.report.drawings import figure_svg
from qpsbgd_paper.report.figures import figures, series_svg
from qpsbgd_paper.report.markdown import markdown as results_document
from qpsbgd_paper.report.overview import picture, sentence
from qpsbgd_paper.report.rendering import svg
from qpsbgd_paper.report.styles import styles_of
from qpsbgd_paper.report.tables import mean_and_deviation

FIGURES = ROOT / "docs" / "figures"
LINK = re.compile(r"figures/([\w.-]+\.svg)")
SECOND = ROOT / "benchmarks" / "results" / "second"
"""Results of `qpsbgd run` on another machine than those in `paper`."""

BASELINES = ("bc-sgd", "bc-sign", "bc-adam", "proxquant")
SOLVERS = ("auto", "descent", "descent, 8 kicks", "annealing", "annealing, 4 reads", "bifurcation")
"""Ours, in solver_quality.json; the others there are peers."""
LEVEL = 1e-6
"""Differences of energies, in parts of what a search can win, up to which two are level."""


def released():
    """Printed, released, ours: the main figures of the two experiments on Adult that the notebooks cover."""
    columns = [
        "printed",
        "released, authors' seeds",
        "released, ten others",
        "released, repaired",
        "ours (spins, ridge)",
    ]
    head = ["", *columns, "BC (SGD), authors' seeds", "frozen", 'always "no"']
    body = []
    for name, theirs in (("adult-10", results("paper/figure3")), ("adult-acc", results("paper/released-acc"))):
        own, key = results(f"paper/{name}"), theirs["metrics"][0]["key"]
        authors, *others, repaired = (case["label"] for case in theirs["cases"])
        ours = [_figure(own, ["gain 1"], line, own["metrics"][0]["key"]) for line in ("qpsbgd", "qpsbgd-ridge")]
        cells = [_figure(theirs, cases, "qpsbgd-printed", key) for cases in ([authors], others, [repaired])]
        controls = [_figure(theirs, [authors], line, key) for line in ("bc-sgd", "frozen", "constant")]
        label = f"{name}, {theirs['metrics'][0]['label']}"
        printed = _figure(own, ["gain 1"], "qpsbgd-printed", own["metrics"][0]["key"])
        body.append([label, printed, *cells, ", ".join(ours), *controls])
    idle = {row["line"]: np.mean(row["extra"]["idle"]) for row in results("paper/figure3")["cases"][0]["rows"]}
    return (
        f"{markdown(head, body)}\n\nMean ± standard deviation over seeds; gain 1. In the ten-layer network as "
        f"released, {idle['qpsbgd-printed']:.0%} of the first layer's columns have a gradient of exactly zero over all "
        f"updates, and {idle['frozen']:.0%} in the untrained one."
    )


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


def gap_study():
    """What the study of spectral gaps found, in its own words and figures."""
    found = results("paper/gap-options")
    lines = [f"- {claim['text']}: **{claim['verdict']}** ({claim['detail']})." for claim in found["claims"]]
    batch = next(table for table in found["tables"] if table["title"].startswith("Batch 16"))
    reads = {row[0]: row[batch["head"].index("optimal reads, %")] for row in batch["body"]}
    lines.append(
        f"- Chains stronger than needed cost optimal reads: with batches of 16, chain strength 1 gave "
        f"{reads['chain strength 1']} % instead of {reads['scale 1']} % at 0.3. Dropping couplings below half of the "
        f"largest gave {reads['couplings below 0.5 of the largest dropped']} %, of a different problem."
    )
    return "\n".join(lines)


def paper_summary():
    """How many of the paper's statements hold, and how its form does beside BinaryConnect with and without a scale."""
    reasons = (
        "Two reasons for what does not: the equation leaves the size of the gradient open, and taken literally nearly "
        "ignores it; and the networks are so small that five seeds, or layers that are never trained, rank methods by "
        "chance ([claim by claim](docs/results.md), [what made its figures](docs/released.md))."
    )
    return " ".join(filter(None, ("- **Does the paper hold?**", sentence(summaries()), scales(), reasons)))


def scales():
    """How often the paper's form is ahead of BinaryConnect, by the scale of its gradient; empty before it was run."""
    forms = {
        "qpsbgd-mean": "taken literally with a mean loss",
        "qpsbgd-sum": "with a summed loss",
        "qpsbgd-printed": "with its scale chosen",
    }
    counted = {line: Counter(_beside_bc(line)) for line in forms}
    told = [
        f"{words} {counted[line]['yes']}, {counted[line]['cannot tell']} and {counted[line]['no']}"
        for line, words in forms.items()
    ]
    settings = counted["qpsbgd-mean"].total()
    start = (
        f"In {settings} settings QP-SBGD as printed is ahead of, level with and behind the better of BC (SGD) and BC "
    )
    earlier = [name for name in EXPERIMENTS if _before_scales(name)]
    rest = f" Published before the scale was chosen, and to be run again: {', '.join(earlier)}." if earlier else ""
    return (f"{start}(signSGD): {', '.join(told)}." if settings else "") + rest


def _before_scales(name):
    """Whether the published results of an experiment lack the lines of the literal readings that it has by now."""
    experiment = make_experiment(name)
    known = isinstance(experiment, Comparison) and "qpsbgd-mean" in experiment.lines(experiment.cases()[0])
    return known and not any(row["line"] == "qpsbgd-mean" for row in results(f"paper/{name}")["cases"][0]["rows"])


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

    Lines that choose among other options there are left out.
    """
    head = ["experiment", "machines", "options chosen on, seeds", "lines", "other options"]
    head += ["largest move of a main figure", "verdicts that differ"]
    body = []
    for path in sorted(SECOND.glob("*.json")):
        first, second = results(f"paper/{path.stem}"), without_checksum(path.read_bytes())
        rows = [
            {(case["case"], row["line"]): row for case in found["cases"] for row in case["rows"]}
            for found in (first, second)
        ]
        given = [{name: row["grid"][0] for name, row in found.items()} for found in rows]
        both, key = [name for name in given[0] if given[0][name] == given[1].get(name)], first["metrics"][0]["key"]
        other = sum(rows[0][name]["options"] != rows[1][name]["options"] for name in both)
        moves = {
            name: abs(float(np.mean(rows[0][name]["values"][key])) - float(np.mean(rows[1][name]["values"][key])))
            for name in both
        }
        most = max(moves, key=moves.get)
        said = [{claim["text"]: claim["verdict"] for claim in found["claims"]} for found in (first, second)]
        differ = [text for text in said[0] if text in said[1] and said[0][text] != said[1][text]]
        machines = " and ".join(found["made with"]["machine"] for found in (first, second))
        move = f"{moves[most]:.3f} ({rows[0][most]['label']}, {most[0]})"
        few = [found.get("chosen on") or [found["settings"]["choosing_seeds"]] for found in (first, second)]
        chosen = " and ".join(f"{each[-1]}" for each in few)
        body.append([path.stem, machines, chosen, f"{len(both)}", f"{other}", move, "; ".join(differ) or "none"])
    return markdown(head, body) if body else "No experiment has been run on a second machine."


def _figure(summary, cases, line, key):
    found = [row for case in summary["cases"] if case["label"] in cases for row in case["rows"] if row["line"] == line]
    values = [value for row in found for value in row["values"][key]]
    return mean_and_deviation(values) if values else "–"


def layer():
    every = results("layer_projection")["results"]
    rows = [(f"128 × 128, {row['rows']}", row) for row in every if row["scale"] != 2]  # at most ten rows in a table
    rows += [("784 × 512, MNIST", row) for row in results("solver_claims")["wide_layer"]]
    head = ["layer", "scale κ", "auto", "annealing loop", "times faster", "sampling alone", "times faster"]
    head += ["mean energy, auto", "mean energy, loop"]
    body = [
        [
            name,
            f"{row['scale']:g}",
            f"{row['auto_seconds'] * 1e3:.1f} ms",
            f"{row['annealing_loop_seconds']:.3g} s",
            f"{row['times_faster']:.0f}",
            *_alone(row.get("annealing_loop_seconds_in_sampler"), row["auto_seconds"]),
            f"{row['auto_mean_energy']:.3f}",
            f"{row['annealing_loop_mean_energy']:.3f}",
        ]
        for name, row in rows
    ]
    return markdown(head, body)


def _alone(inside, ours, unit=1):
    """The time inside the sampler and how many times longer it is than ours; dashes where it was not measured."""
    return ["–", "–"] if inside is None else [f"{inside / unit:.3g} s", f"{inside / ours:.0f}"]


def layer_inputs():
    """Who has the lower mean energy on every kind of inputs, over all scales, and how long it takes."""
    if not (kept := measured(["layer_inputs"])):
        return "Not measured yet."
    found = {}
    for row in kept["layer_inputs"]["results"]:
        found.setdefault(row["kind"], []).append(row)
    scales = list(dict.fromkeys(row["scale"] for row in kept["layer_inputs"]["results"]))
    head = ["inputs", "auto lower", "level", "loop lower", *(f"difference, κ = {scale:g}" for scale in scales)]
    body = []
    for kind, rows in found.items():
        lower, higher = (sum(sign * row["difference"] > LEVEL for row in rows) for sign in (-1, 1))
        means = [np.mean([row["difference"] for row in rows if row["scale"] == scale]) for scale in scales]
        ratios = [
            [row[key] / row["auto_seconds"] for row in rows] for key in ("loop_seconds", "loop_seconds_in_sampler")
        ]
        spans = [f"{min(values):.0f} to {max(values):.0f}" for values in ratios]
        counts = [f"{count}" for count in (lower, len(rows) - lower - higher, higher)]
        body.append([kind, *counts, *(f"{100 * mean:+.3f} %" for mean in means), *spans])
    return markdown([*head, "times faster", "sampling alone"], body)


def exact():
    rows = results("solver_claims")["exact"]["against_gurobi"]
    scales = list(dict.fromkeys(row["scale"] for row in rows))
    named = {}
    for row in rows:
        own = f"{row['exact_seconds_per_column'] * 1e3:.3f}"
        theirs = f"{row['gurobi_seconds_per_column'] * 1e3:.1f}"
        cell = f"{own} / {theirs} ({row['times_faster']:.0f}×)"
        named.setdefault((row["spins"], row["rows"]), {})[row["scale"]] = cell
    head = ["spins", "rows", *(f"κ = {scale:g}" for scale in scales)]
    return markdown(head, [[str(n), kind, *map(cells.get, scales)] for (n, kind), cells in named.items()])


def gpu():
    found = results("gpu")
    step = found["step"]
    body = [
        [
            f"64 flips from the sign vector, 784 × 512, κ = {row['scale']:g}",
            f"{row['descent_64_flips_ms']:.2f} ms",
            f"plain torch {row['plain_torch_64_flips_ms']:.1f} ms",
        ]
        for row in found["projection"]
    ]
    beside = (
        f"BinaryConnect (Adam) {step['binaryconnect_adam_ms']:.2f} ms, torch.optim.Adam {step['torch_adam_ms']:.2f} ms"
    )
    body.append(["optimiser step, 784-512-512-10, batch 100", f"{step['qpsbgd_auto_ms']:.2f} ms", beside])
    return markdown(["on an H200", "qpsbgd", "for comparison"], body)


def growth():
    fits = results("solver_quality")["growth"]
    parts = [
        f"{name}^{fit['exponent']:.2f} ({symbol} = {fit['values'][0]} to {fit['values'][-1]})"
        for (name, fit), symbol in zip(fits.items(), ("n", "m", "B"), strict=True)
    ]
    text = ", ".join(parts).replace("rows^", "B^")
    return f"On Gaussian layers, the time from rows to spins with tabu descent grows as {text}."


def cost():
    found = results("qpu_cost")
    head = ["", "chip", "submissions", "submissions, one by one", "QPU time", "QPU time, reads shared"]
    head += ["QPU time, one by one", "times less", "times less, reads shared"]
    body = []
    for row in found["results"]:
        ways = [row[way] for way in ("packed", "shared", "one_by_one")]
        packed, shared, single = ways
        times = [f"{way['chip_seconds']:.3g} s" for way in ways]
        counts = [f"{packed['submissions']}", f"{single['submissions']}"]
        ratios = [f"{way['times_less_chip_time']:.0f}" for way in (packed, shared)]
        body.append([row["what"], row["chip"], *counts, *times, *ratios])
    run, whole = found["results"][0], found["experiment_mnist"]
    minutes = {way: f"{whole[way]['chip_seconds'] / 60:.1f}" for way in ("packed", "shared", "one_by_one")}
    table = markdown(head, body)
    hosts = {name: f"{run['packed'][name]:.2g} s" for name in ("host_seconds", "host_seconds_again")}
    return (
        f"{table}\n\nAll {whole['steps']} steps of `qpsbgd run mnist`, choice of options included, would take "
        f"{minutes['packed']} minutes of QPU time, {minutes['shared']} with shared reads, and "
        f"{minutes['one_by_one']} one by one. Beside the QPU, {found['settings']['updates']} updates took this machine "
        f"{hosts['host_seconds_again']} ({hosts['host_seconds']} the first time, when it searched for cliques), and "
        f"{run['one_by_one']['host_seconds']:.0f} s one by one, mostly for embeddings."
    )


def virtual():
    head = ["", "columns solved", "optimal reads", "mean energy gap", "broken chains"]
    rows = [("by default" if row["way"] == "default" else row["way"], row) for row in results("virtual_qpu")["means"]]
    return markdown(head, [[name, *_virtual_cells(row)] for name, row in rows])


def virtual_sizes():
    rows = [row for row in results("virtual_qpu")["results"] if row["way"] == "default"]
    head = ["inputs", "scale κ", "columns solved", "optimal reads", "mean energy gap", "broken chains"]
    body = []
    for n, scale in dict.fromkeys((row["spins"], row["scale"]) for row in rows):
        both = [row for row in rows if (row["spins"], row["scale"]) == (n, scale)]
        keys = ("optimal", "optimal_reads", "gap", "chain_breaks")
        body.append([f"{n}", f"{scale:g}", *_virtual_cells({key: np.mean([row[key] for row in both]) for key in keys})])
    return markdown(head, body)


def _virtual_cells(row):
    reads = f"{row['optimal_reads']:.0%}" if "optimal_reads" in row else "–"
    return [f"{row['optimal']:.0%}", reads, f"{row['gap']:.4f}", f"{row['chain_breaks']:.1%}"]


def busy():
    head = ["OMP_WAIT_POLICY", "other core", "passes of 64-128-10", "step", "auto, 128 × 128", "annealing loop"]
    head += ["times faster", "sampling alone", "times faster"]
    head += ["exact, per column", "Gurobi, per column", "times faster"]
    body = [
        [
            row["policy"],
            "busy" if row["busy"] else "idle",
            f"{row['passes_ms']:.2f} ms",
            f"{row['step_ms']:.2f} ms",
            f"{row['auto_ms']:.1f} ms",
            f"{row['annealing_loop_ms'] / 1e3:.2f} s",
            f"{row['annealing_loop_ms'] / row['auto_ms']:.0f}",
            *_alone(row.get("annealing_loop_ms_in_sampler"), row["auto_ms"], unit=1e3),
            f"{row['exact_ms_per_column']:.3f} ms",
            f"{row['gurobi_ms_per_column']:.1f} ms",
            f"{row['gurobi_ms_per_column'] / row['exact_ms_per_column']:.0f}",
        ]
        for row in results("busy_machine")["results"]
    ]
    return markdown(head, body)


def step_ratios():
    """What steps of the ridge and of spins cost, at least and at most."""
    costs = []
    for name, machine in (("step_cost_cpu", "two CPU cores"), ("step_cost_cuda", "an H200")):
        rows = [row["milliseconds"] for row in results(name)["results"] if not row["busy"]]
        spans = [sorted(row[ours] / row["AdamW"] for row in rows) for ours in ("ridge", "spins")]
        ranges = [f"{span[0]:.1f} to {span[-1]:.1f}" for span in spans]
        costs.append(f"{ranges[0]} (ridge) and {ranges[1]} times (spins) on {machine}")
    return f"- Beside the same binary network under AdamW, a training step takes {costs[0]}, {costs[1]}."


def far():
    dense, cnn = (tasks()[task] for task in ("mnist-wide", "mnist-cnn-large"))
    scores = [f"{100 * np.mean(next(iter(found.values()))['ridge']['scores']):.1f} %" for found in (dense, cnn)]
    return (
        f"One bit per weight, no augmentation, MNIST: {scores[0]} with three dense layers of 1024 units, "
        f"{scores[1]} with a CNN."
    )


def deployed():
    sizes = results("deploy_x86_64")["networks"][0]["bytes"]
    return (
        f"784-512-512-10 takes {sizes['packed'] / 1e3:.0f} KB instead of {sizes['float32 parameters'] / 1e6:.1f} MB, "
        "as a packed file without torch, as C99 or as ONNX."
    )


def without_training():
    """Accuracy of the dense network at one bit, by error feedback and by QUBOs."""
    rows = [row for row in results("binarize")["rows"] if row["job"]["part"] == "binarize"]

    def accuracy(method):
        found = [
            row["accuracy"]
            for row in rows
            if (row["job"]["subject"], row["job"]["method"], row["job"]["size"]) == ("mlp", method, None)
            and row["job"]["bits"] in (1, 32)
        ]
        return f"{100 * np.mean(found):.1f} %"

    return (
        f"A float network 784-512-512-10 with {accuracy('float')} on MNIST has {accuracy('search')} at one bit per "
        f"weight, without any training; GPTQ's error feedback leaves {accuracy('feedback')}."
    )


def headline():
    """Who won, and reasons with the figure of one benchmark each."""
    ratios = [row["times_faster"] for row in results("solver_claims")["exact"]["against_gurobi"] if row["spins"] == 32]
    layer = next(row for row in results("qpu_cost")["results"] if "84 columns" in row["what"])
    packed, single = layer["packed"], layer["one_by_one"]
    reasons = {
        "It goes far.": far(),
        "It binarises trained networks.": without_training(),
        "It deploys one bit per weight.": deployed(),
        "It solves a layer's QUBOs together.": (
            f"The exact solver proves 128 columns of 32 spins {min(ratios):.0f} to {max(ratios):.0f} times faster per "
            "column than Gurobi, one by one."
        ),
        "It fills an annealer.": (
            f"A layer of 16 inputs and 84 outputs takes {packed['submissions']} submission instead of "
            f"{single['submissions']}, by the times of D-Wave's mock chip."
        ),
    }
    caption = (
        "One-bit weights on CIFAR-10 and text, first and last layer real. QP-SBGD at its defaults, no option but "
        "`steps` and `real=True`; every rival at the best rate of a grid. ±: deviation over seeds; –: not run. "
        "[docs/training.md](docs/training.md) has the grids, tabular sets, digits and Adult, and MNIST, Fashion-MNIST "
        "and graphs, which were measured with the defaults of the version before."
    )
    return "\n".join([today(), "", caption, "", *(f"- **{reason}** {text}" for reason, text in reasons.items())])


DOCUMENTS = {
    "README.md": (headline, step_ratios, paper_summary),
    "docs/solving.md": (
        *(layer, layer_inputs, exact, growth, busy, gpu),
        *(dense_problems, graph_problems, problem_sizes, gpu_chains),
    ),
    "docs/qubo.md": (constraint_problems, unseen_constraint_problems),
    "docs/annealers.md": (cost, virtual, virtual_sizes, gap_study),
    "docs/training.md": (
        today,
        rivals,
        winner,
        verdicts,
        remarks,
        scores,
        alone,
        left_out,
        step_cost,
        bits,
    ),
    "docs/scaling.md": (measured_growth, sampled, billion, ranks),
    "docs/deployment.md": (deployed_classes, runtime_figures, deployed_times, deployed_bytes),
    "docs/reliability.md": (killed, attacked, noticed, noticed_at_once),
    "docs/estimators.md": (estimators,),
    "docs/released.md": (released, drawn, released_qubos, two_machines),
    "docs/binarize.md": (
        *(binarized_blocks, mixed_and_uniform, binarized, binarized_claims, binarized_times, binarized_sizes),
        pretrained,
        *(fine_tuned, sentence_bits, distilled_sentences),
    ),
}
"""What stands between `<!-- name -->` and `<!-- end -->` in these, by the functions that make it."""


def written(name, text):
    """A document with every marked block made anew.

    Raises:
        ValueError: A marker is missing, unknown or there twice, or a block has no end.
    """
    makers = {make.__name__: make for make in DOCUMENTS[name]}
    marks = re.findall(r"<!-- (\w+) -->", text)
    wanted = [mark for begin in marks[::2] for mark in (begin, "end")]
    if sorted(marks[::2]) != sorted(makers) or marks != wanted:
        raise ValueError(
            f"{name} must have each of the blocks {', '.join(makers)} once, from <!-- name --> to <!-- end -->; "
            f"its markers are {', '.join(marks)}"
        )

    def block(match):
        return f"<!-- {match[1]} -->\n{makers[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


RESULTS = """\
`qpsbgd run all` made these results, `python benchmarks/documents.py` this page, from
[benchmarks/results](../benchmarks/results); `qpsbgd report` shows all figures, tables and options. A square is a claim
in one setting; what the paper's authors released is compared in [Printed, released, ours](released.md).

Two reasons explain most of what does not hold. **The size of the gradient**: taken literally, the quadratic part of the
QUBO drowns it, and the answer hardly depends on it. {scales}
**Noise and controls**: the networks are so small, and the encoder of the graphs is so strong, that
five seeds rank methods by chance, and layers that are never trained do as well. Not counted are claims of the paper in
settings or forms that it does not have (other gains, a random encoder, `Spins`); `qpsbgd report` shows them as "the
paper, elsewhere".

![Verdicts on the claims of the paper](figures/verdicts.svg)

"""
UNTOLD = ("random encoder",)
"""Settings that the paper does not have, in claims that are not made of lines."""

BEYOND = ("quality", "gap-options")
"""Experiments that are not the paper's stand after them, before the digits of the demo."""


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


def document():
    """docs/results.md."""
    return results_document(
        summaries(), title="Results", intro=RESULTS.format(scales=scales()) + INTRO, figures="figures"
    )


def pictures():
    """Everything in docs/figures that a document shows, by name."""
    found = {}
    for name in EXPERIMENTS:
        found |= figures(results(f"paper/{name}"), ["svg"])
    long = results("demo/digits")
    long["cases"] = long["cases"][-1:]
    found["digits.svg"] = series_svg(long, long["series"][0]).encode()
    found["training.svg"] = svg(training_figure, name="training").encode()
    found["vectors.svg"] = svg(vectors_figure, name="vectors").encode()
    found["held_out.svg"] = svg(partial(training_figure, held_out=True), name="held_out").encode()
    found["time_to_target.svg"] = svg(time_figure, name="time_to_target").encode()
    found["binarize.svg"] = svg(binarize_figure, name="binarize").encode()
    found["today.svg"] = svg(today_figure, name="today").encode()
    found["rates.svg"] = svg(rates_figure, name="rates").encode()
    found["chip.svg"] = figure_svg(chip(), name="chip").encode()
    found["verdicts.svg"] = picture(summaries()).encode()
    linked = {name for path in (ROOT / "docs").rglob("*.md") for name in LINK.findall(path.read_text(encoding="utf-8"))}
    linked |= set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    return {name: content for name, content in found.items() if name in linked}


def chip():
    """The part of a Zephyr chip that holds a layer of 84 columns, large enough to see them."""
    drawn = next(figure for figure in results("paper/embedding")["figures"] if figure["name"] == "chip")
    panel = next(panel for panel in drawn["panels"] if panel["title"].startswith("Zephyr"))
    used = max(y for (_, y), colour in zip(panel["nodes"], panel["colours"], strict=True) if colour >= 0)
    shown = [k for k, (_, y) in enumerate(panel["nodes"]) if y <= used + 0.05]
    part = {key: [panel[key][k] for k in shown] for key in ("nodes", "colours")}
    title = "A layer of 84 columns on a Zephyr chip: one colour per column, one submission for all"
    return {**drawn, "panels": [{**panel, **part, "size": 4.4, "title": title}], "columns": 1, "height": 5.2}


def solvers():
    """Gap against time, ours as dots and peers as crosses."""
    found = [one for one in results("solver_quality")["results"] if re.search("κ=(0.5|1)$", one["family"])]
    names = [name for name in found[0]["solvers"] if name != "sign(−s)"]
    looks = styles_of({name: "ours" if name in SOLVERS else "baseline" for name in names})
    panels = []
    for scale in ("κ=0.5", "κ=1"):
        for one in found:
            if one["family"].endswith(scale):
                lines = [
                    {
                        "x": [one["solvers"][name]["ms_per_column"]],
                        "y": [max(one["solvers"][name]["gap"], 1e-6)],
                        "label": name if name in SOLVERS else f"{name} (peer)",
                        "colour": looks[name].colour,
                        "style": "points",
                        "mark": "o" if name in SOLVERS else "x",
                        "width": 3.2 if name in SOLVERS else 3.8,
                    }
                    for name in names
                ]
                axes = {"x_label": "ms per column", "y_label": "gap to the best known energy"}
                limits = {"log": "xy", "y_limits": [4e-7, 2], "x_limits": [1e-2, 2e4]}
                panels.append(
                    {"title": one["family"].capitalize().replace("Mnist", "MNIST"), "lines": lines, **axes, **limits}
                )
    return {"name": "solvers", "title": "", "kind": "lines", "panels": panels, "columns": 3, "height": 2.4}


def keep(folder):
    """Copy the results of a run, in compact form."""
    target = ROOT / "benchmarks" / "results" / folder.name
    if not (folder.is_dir() and target.is_dir()):
        raise SystemExit(f"{folder} is not a folder of results named paper or demo")
    for path in folder.glob("*.json"):
        if path.stem in (*EXPERIMENTS, "digits"):
            (target / path.name).write_bytes(with_checksum(without_checksum(path.read_bytes())))


def main(folders):
    for folder in folders:
        keep(Path(folder))
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(written(name, text), encoding="utf-8")
    (ROOT / "docs" / "results.md").write_text(document(), encoding="utf-8")
    (ROOT / "docs" / "solvers.svg").write_text(figure_svg(solvers(), name="solvers"), encoding="utf-8")
    made = pictures()
    FIGURES.mkdir(exist_ok=True)
    for path in FIGURES.iterdir():
        if path.name not in made:
            path.unlink()
    for file, content in made.items():
        (FIGURES / file).write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1:])
