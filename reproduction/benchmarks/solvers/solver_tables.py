"""Tables and figures of solvers: docs/qubo.md and docs/annealers.md."""

import re

import numpy as np
from matplotlib.figure import Figure

from benchmarks.tables import cross_table, group_by, label_axes, results
from qpsbgd_paper.report.drawings import plot_panels
from qpsbgd_paper.report.styles import COLOURS, RED, line_looks
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
    return cross_table(("spins", "rows"), cells)


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
    for row in results("many_problems")["rows"]:
        ways = [row[way] for way in ("packed_again", "parallel", "one_by_one")]
        submissions, seconds, host = (
            " / ".join(f"{way[name]:{form}}" if name in way else "–" for way in ways)
            for name, form in (("submissions", ""), ("qpu_seconds", ".3g"), ("host_seconds", ".1f"))
        )
        body.append([row["chip"].partition(",")[0], f"{row['problems']}", submissions, f"{seconds} s", f"{host} s"])
        body[-1].append(f"{row['parallel_one_call']['lost']}")
    head = ["chip", "models", "submissions", "QPU time", "processor time", "lost by Ocean's in one call"]
    return pipes(head, body)


def virtual_sizes():
    rows = [row for row in results("virtual_qpu")["results"] if row["way"] == "default"]
    shown = {
        "columns solved": ("optimal", ".0%"),
        "optimal reads": ("optimal_reads", ".0%"),
        "mean energy gap": ("gap", ".4f"),
        "broken chains": ("chain_breaks", ".1%"),
    }
    cells = {
        ((f"{n}", f"{scale:g}"), title): f"{np.mean([row[key] for row in group]):{form}}"
        for (n, scale), group in group_by(rows, "spins", "scale").items()
        for title, (key, form) in shown.items()
    }
    return cross_table(("inputs", "scale κ"), cells)


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
            line = {"x": [point["ms_per_column"]], "y": [max(point["gap"], 1e-6)], "colour": looks[name]["colour"]}
            mark = {"mark": "o", "width": 3.2} if ours else {"mark": "x", "width": 3.8}
            lines.append({**line, "label": name if ours else f"{name} (peer)", "style": "points", **mark})
        axes = {"x_label": "ms per column", "y_label": "gap to the best known energy"}
        limits = {"log": "xy", "y_limits": [4e-7, 2], "x_limits": [1e-2, 2e4]}
        title = row["family"].capitalize().replace("Mnist", "MNIST")
        panels.append({"title": title, "lines": lines, **axes, **limits})
    return plot_panels({"name": "solvers", "kind": "lines", "panels": panels, "columns": 3, "height": 2.4})


def _gaps(kind):
    """Per instance: solver and time → how far its energy is above the best of all, in ‰ of that, and seconds."""
    of_kind = [row for row in results("general_qubo")["rows"] if row["kind"] == kind]
    named = {}
    for name, rows in group_by(of_kind, "instance").items():
        best = min(row["energy"] for row in rows)
        gaps = (1000 * (row["energy"] - best) / abs(best) for row in rows)
        named[name] = {(r["solver"], r["limit"]): (gap, r["seconds"]) for r, gap in zip(rows, gaps, strict=True)}
    return named


def _cell(gap, seconds, limit):
    """The gap, and the time where that was far longer or shorter than it should be."""
    text = "best" if gap == 0 else f"{gap:.2f}"
    return text if 0.5 * limit <= seconds <= 1.5 * limit else f"{text} ({seconds:.1f} s)"


def dense_problems():
    cells = {
        (name, solver): _cell(*outcome, limit)
        for name, outcomes in _gaps("dense").items()
        for (solver, limit), outcome in outcomes.items()
    }
    return cross_table("instance", cells)


def graph_problems():
    """Mean gaps over the graphs of every kind, the largest of each kind, and the mean over all."""
    named = _gaps("graph")
    keys = list(dict.fromkeys(key for outcomes in named.values() for key in outcomes))
    kinds = {}
    for name in named:
        kinds.setdefault(name.split()[0], []).append(name)
    cells = {}
    for key in keys:
        column = f"{key[0]}, {key[1]:g} s"
        for kind, names in kinds.items():
            cells[f"{kind}, mean of {len(names)}", column] = _mean([named[name] for name in names], key)
            largest = max(names, key=lambda name: max(int(word) for word in re.findall(r"\d{3,}", name)))
            cells[largest, column] = _cell(*named[largest][key], key[1]) if key in named[largest] else "–"
        cells[f"all {len(named)}, mean", column] = _mean(named.values(), key)
    return cross_table("graph", cells)


def _mean(instances, key):
    gaps = [outcomes[key][0] for outcomes in instances if key in outcomes]
    return (f"{np.mean(gaps):.2f}" if gaps else "–") + (f" (of {len(gaps)})" if 0 < len(gaps) < len(instances) else "")


def constraint_problems():
    """Per class, at two seconds: on how many instances a solver is as good as the best, its mean gap, and how many
    answers keep all constraints."""
    rows, best = results("constraints")["rows"], {}
    for row in rows:
        key = row["class"], row["instance"]
        best[key] = min(best.get(key, np.inf), row["energy"], np.inf if row["optimum"] is None else row["optimum"])
    rows = [row for row in rows if row["limit"] == 2]
    cells = {}
    for (kind, solver), answers in sorted(group_by(rows, "class", "solver").items(), key=lambda pair: pair[0][0]):
        known = np.array([best[row["class"], row["instance"]] for row in answers])
        above = np.array([row["energy"] for row in answers]) - known
        relative = (np.abs(known) > 1).all()
        gap = f"{100 * np.mean(above / np.abs(known)):.2g} %" if relative else f"+{np.mean(above):.3g}"
        equal = int((above <= 1e-9 * np.maximum(1, np.abs(known))).sum())
        cells[kind, solver] = f"{equal} of {len(answers)}, {gap}, {sum(row['feasible'] for row in answers)} valid"
    return cross_table("class", cells)


LOOKS = {
    "auto": {"color": RED, "marker": "o", "linewidth": 2.4, "zorder": 5},
    "dwave SA": {"color": COLOURS["bc-adam"], "marker": "s"},
    "dwave tabu": {"color": COLOURS["bc-sgd"], "marker": "^"},
}


def time_to_target_figure():
    """The gap to the lowest known energy against time, one panel per instance."""
    rows = results("time_to_target")["rows"]
    known = [row for name in ("general_qubo", "time_to_target") for row in results(name)["rows"]]
    names = list(dict.fromkeys(row["instance"] for row in rows))
    figure = Figure(figsize=(6.6, 4.8), layout="constrained")  # two by two: legible on a telephone
    for axes, name in zip(figure.subplots(2, 2).flat, names, strict=True):
        best = min(row["energy"] for row in known if row["instance"] == name)
        for solver, look in LOOKS.items():
            runs = [row for row in rows if (row["instance"], row["solver"]) == (name, solver)]
            if runs:
                points = [
                    np.mean([(row["seconds"], 100 * (1 - row["energy"] / best)) for row in some], axis=0).tolist()
                    for some in group_by(runs, "limit").values()
                ]
                x, y = zip(*sorted(points), strict=True)
                axes.plot(x, np.maximum(y, 1e-3), label=solver, **{"linewidth": 1.3, "markersize": 5, **look})
        label_axes(axes, name, "seconds" if axes in figure.axes[2:] else None, log="xy")
        axes.set_ylim(8e-4, None)
        axes.tick_params(labelsize=8)
    first = figure.axes[0]
    figure.supylabel("gap to the lowest known energy, %", fontsize=9)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure
