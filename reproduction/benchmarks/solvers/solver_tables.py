"""Tables and the figure of solvers that answer families: docs/qubo.md and docs/annealers.md."""

import re

import numpy as np

from benchmarks.tables import crossed, grouped, results
from qpsbgd_paper.report.styles import line_looks
from qpsbgd_paper.report.tables import pipes

SOLVERS = ("auto", "descent", "annealing", "annealing, 4 reads")
"""Ours, in solver_quality.json; the others there are peers."""
RECORDED = {"mnist": "MNIST, 784 × 512", "adult": "Adult, 128 × 128", "cora": "Cora, 1433 × 64"}
LOOP = "dwave SA, 100 sweeps × 4"


def layer():
    """`auto` beside a loop of simulated annealing on layers recorded in training."""
    body = []
    for row in results("solver_quality")["results"]:
        name, _, scale = row["family"].partition(" κ=")
        if name in RECORDED:
            auto, loop = row["solvers"]["auto"], row["solvers"][LOOP]
            times = [auto["ms_per_column"], loop["ms_per_column"]]
            cells = [f"{times[0]:.2f} ms", f"{times[1]:.0f} ms", f"{times[1] / times[0]:.0f}"]
            body.append([RECORDED[name], scale, *cells, f"{auto['gap']:.1g}", f"{loop['gap']:.1g}"])
    head = ["layer", "scale κ", "auto, per column", "annealing loop, per column", "times faster", "gap, auto"]
    return pipes([*head, "gap, loop"], body)


def exact():
    cells = {}
    for row in results("solver_claims")["exact"]["against_gurobi"]:
        ours, theirs = (1e3 * row[f"{solver}_seconds_per_column"] for solver in ("exact", "gurobi"))
        times = f"{ours:.3f} / {theirs:.1f} ({row['times_faster']:.0f}×)"
        cells[(f"{row['spins']}", row["rows"]), f"κ = {row['scale']:g}"] = times
    return crossed(("spins", "rows"), cells)


def cost():
    body = []
    for row in results("qpu_cost")["results"]:
        packed, shared, single = (row[way] for way in ("packed", "shared", "one_by_one"))
        times = [f"{way['chip_seconds']:.3g} s" for way in (packed, shared, single)]
        factors = [f"{way['times_less_chip_time']:.0f}" for way in (packed, shared)]
        submissions = [f"{way['submissions']}" for way in (packed, single)]
        body.append([row["what"], row["chip"], *submissions, *times, *factors])
    head = ["", "chip", "submissions", "submissions, one by one", "QPU time", "QPU time, reads shared"]
    head += ["QPU time, one by one", "times less", "times less, reads shared"]
    return pipes(head, body)


def many():
    body = []
    for row in results("many_problems")["results"]:
        ways = [row[way] for way in ("packed_again", "parallel", "one_by_one")]
        submissions = " / ".join(f"{way['submissions']}" for way in ways)
        seconds = " / ".join(f"{way['qpu_seconds']:.3g}" for way in ways)
        host = " / ".join(f"{way['host_seconds']:.1f}" if "host_seconds" in way else "–" for way in ways)
        lost = row["parallel_one_call"]["lost"]
        body.append(
            [row["chip"].partition(",")[0], f"{row['problems']}", submissions, f"{seconds} s", f"{host} s", f"{lost}"]
        )
    head = ["chip", "models", "submissions", "QPU time", "processor time", "lost by Ocean's in one call"]
    return pipes(head, body)


VIRTUAL = ("columns solved", "optimal reads", "mean energy gap", "broken chains")


def virtual():
    ways = grouped(results("virtual_qpu")["results"], "way")
    names = {"default": "by default"}
    return pipes(["", *VIRTUAL], ([names.get(way, way), *_virtual(rows)] for way, rows in ways.items()))


def virtual_sizes():
    rows = [row for row in results("virtual_qpu")["results"] if row["way"] == "default"]
    sizes = grouped(rows, "spins", "scale")
    body = ([f"{n}", f"{scale:g}", *_virtual(group)] for (n, scale), group in sizes.items())
    return pipes(["inputs", "scale κ", *VIRTUAL], body)


def _virtual(rows):
    """Means; single reads are counted only where descent does not follow."""
    optimal, gap, broken = (np.mean([row[key] for row in rows]) for key in ("optimal", "gap", "chain_breaks"))
    reads = [row["optimal_reads"] for row in rows if "optimal_reads" in row]
    return [f"{optimal:.0%}", f"{np.mean(reads):.0%}" if reads else "–", f"{gap:.4f}", f"{broken:.1%}"]


def solvers_figure():
    """Gap against time, ours as dots and peers as crosses."""
    families = [row for row in results("solver_quality")["results"] if re.search("κ=(0.5|1)$", row["family"])]
    left_out = ("sign(−s)", "bifurcation")  # the start of them all, and a solver of ours that has gone since
    names = [name for name in families[0]["solvers"] if name not in left_out]
    looks = line_looks({"line": name, "kind": "ours" if name in SOLVERS else "baseline"} for name in names)
    panels = []
    for row in sorted(families, key=lambda row: row["family"].endswith("κ=1")):
        lines = []
        for name in names:
            point, ours = row["solvers"][name], name in SOLVERS
            line = {"x": [point["ms_per_column"]], "y": [max(point["gap"], 1e-6)], "colour": looks[name]["color"]}
            mark = {"mark": "o", "width": 3.2} if ours else {"mark": "x", "width": 3.8}
            lines.append({**line, "label": name if ours else f"{name} (peer)", "style": "points", **mark})
        axes = {"x_label": "ms per column", "y_label": "gap to the best known energy"}
        limits = {"log": "xy", "y_limits": [4e-7, 2], "x_limits": [1e-2, 2e4]}
        title = row["family"].capitalize().replace("Mnist", "MNIST")
        panels.append({"title": title, "lines": lines, **axes, **limits})
    return {"name": "solvers", "title": "", "kind": "lines", "panels": panels, "columns": 3, "height": 2.4}
