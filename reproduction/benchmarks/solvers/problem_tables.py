"""Tables and the figure of single problems: QUBOs, graphs, constraints, a million variables."""

import re

import numpy as np
from matplotlib.figure import Figure

from benchmarks.tables import crossed, grouped, labelled, results
from qpsbgd_paper.report.styles import COLOURS, RED
from qpsbgd_paper.report.tables import pipes


def _gaps(kind):
    """Per instance: solver and time → how far its energy is above the best of all, in ‰ of that, and seconds."""
    of_kind = [row for row in results("general_qubo")["rows"] if row["kind"] == kind]
    named = {}
    for name, rows in grouped(of_kind, "instance").items():
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
    return crossed("instance", cells)


def graph_problems():
    """Mean gaps over the graphs of every kind, the largest of each kind, and the mean over all."""
    named = _gaps("graph")
    keys = list(dict.fromkeys(key for outcomes in named.values() for key in outcomes))
    kinds = {}
    for name in named:
        kinds.setdefault(name.split()[0], []).append(name)
    body = []
    for kind, names in kinds.items():
        body.append([f"{kind}, mean of {len(names)}", *(_mean([named[name] for name in names], key) for key in keys)])
        largest = max(names, key=lambda name: max(int(word) for word in re.findall(r"\d{3,}", name)))
        cells = (_cell(*named[largest][key], key[1]) if key in named[largest] else "–" for key in keys)
        body.append([largest, *cells])
    body.append([f"all {len(named)}, mean", *(_mean(named.values(), key) for key in keys)])
    return pipes(["graph", *(f"{solver}, {limit:g} s" for solver, limit in keys)], body)


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
    for (kind, solver), answers in sorted(grouped(rows, "class", "solver").items(), key=lambda pair: pair[0][0]):
        known = np.array([best[row["class"], row["instance"]] for row in answers])
        above = np.array([row["energy"] for row in answers]) - known
        relative = (np.abs(known) > 1).all()
        gap = f"{100 * np.mean(above / np.abs(known)):.2g} %" if relative else f"+{np.mean(above):.3g}"
        equal = int((above <= 1e-9 * np.maximum(1, np.abs(known))).sum())
        cells[kind, solver] = f"{equal} of {len(answers)}, {gap}, {sum(row['feasible'] for row in answers)} valid"
    return crossed("class", cells)


def problem_sizes():
    body = []
    for row in results("general_qubo")["sizes"]:
        times = [f"{row['seconds']:.2g} s", f"{1e6 * row['seconds'] / row['couplings']:.1f} µs"]
        body.append([f"{row['variables']:,}", f"{row['couplings']:,}", *times, f"{row['megabytes']:.0f} MB"])
    return pipes(["variables", "edges", "time", "per edge", "memory of the process"], body)


LOOKS = {
    "auto": {"color": RED, "marker": "o", "linewidth": 2.4, "zorder": 5},
    "dwave SA": {"color": COLOURS["bc-adam"], "marker": "s"},
    "dwave tabu": {"color": COLOURS["bc-sgd"], "marker": "^"},
}


def time_figure():
    """The gap to the lowest known energy against time, one panel per instance."""
    rows = results("time_to_target")["rows"]
    known = [row for name in ("general_qubo", "time_to_target") for row in results(name)["rows"]]
    known += [{**row, "energy": min(row["energies"])} for row in results("gpu")["chains"]]
    names = list(dict.fromkeys(row["instance"] for row in rows))
    figure = Figure(figsize=(6.6, 4.8), layout="constrained")  # two by two: legible on a telephone
    for axes, name in zip(figure.subplots(2, 2).flat, names, strict=True):
        best = min(row["energy"] for row in known if row["instance"] == name)
        for solver, look in LOOKS.items():
            runs = [row for row in rows if (row["instance"], row["solver"]) == (name, solver)]
            if runs:
                points = [
                    np.mean([(row["seconds"], 100 * (1 - row["energy"] / best)) for row in some], axis=0).tolist()
                    for some in grouped(runs, "limit").values()
                ]
                x, y = zip(*sorted(points), strict=True)
                axes.plot(x, np.maximum(y, 1e-3), label=solver, **{"linewidth": 1.3, "markersize": 5, **look})
        labelled(axes, name, "seconds" if axes in figure.axes[2:] else None, log="xy")
        axes.set_ylim(8e-4, None)
        axes.tick_params(labelsize=8)
    first = figure.axes[0]
    figure.supylabel("gap to the lowest known energy, %", fontsize=9)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure
