"""Tables of single problems: QUBOs, graphs, a million variables, and chains on a GPU."""

import statistics

import numpy as np
from tables import markdown, measured, results


def _found(kind):
    """Of every instance: solver and time → how far its energy is above the best of all, in ‰ of that, and seconds."""
    named = {}
    for row in results("general_qubo")["results"]:
        if row["kind"] == kind:
            named.setdefault(row["instance"], {})[row["solver"], row["limit"]] = row["energy"], row["seconds"]
    for found in named.values():
        best = min(energy for energy, _ in found.values())
        found |= {key: (1000 * (energy - best) / abs(best), seconds) for key, (energy, seconds) in found.items()}
    return named


def _cell(gap, seconds, limit):
    """The gap, and the time where that was far longer or shorter than it should be."""
    text = "best" if gap == 0 else f"{gap:.2f}"
    return text if 0.5 * limit <= seconds <= 1.5 * limit else f"{text} ({seconds:.1f} s)"


def dense_problems():
    named = _found("dense")
    solvers = list(dict.fromkeys(solver for found in named.values() for solver, _ in found))
    body = []
    for name, found in named.items():
        cells = {solver: _cell(*outcome, limit) for (solver, limit), outcome in found.items()}
        body.append([name, *(cells.get(solver, "–") for solver in solvers)])
    return markdown(["instance", *solvers], body)


def graph_problems():
    named = _found("graph")
    keys = list(dict.fromkeys(key for found in named.values() for key in found))
    body = [
        [name, *(_cell(*found[key], key[1]) if key in found else "–" for key in keys)] for name, found in named.items()
    ]
    means = []
    for key in keys:
        gaps = [found[key][0] for found in named.values() if key in found]
        means.append(f"{np.mean(gaps):.2f}" + (f" (of {len(gaps)})" if len(gaps) < len(named) else ""))
    return markdown(["graph", *(f"{solver}, {limit:g} s" for solver, limit in keys)], [*body, ["mean", *means]])


def problem_sizes():
    body = [
        [
            f"{row['variables']:,}",
            f"{row['couplings']:,}",
            f"{row['seconds']:.2g} s",
            f"{1e6 * row['seconds'] / row['couplings']:.1f} µs",
            f"{row['megabytes']:.0f} MB",
        ]
        for row in results("general_qubo")["sizes"]
    ]
    return markdown(["variables", "edges", "time", "per edge", "memory of the process"], body)


def gpu_chains():
    if not (found := measured(["gpu_chains"])):
        return "Not measured yet."
    rows = found["gpu_chains"]["results"]
    best = {}
    for row in rows:
        best[row["instance"]] = min([best.get(row["instance"], 0), *row["energies"], row["cpu_energy"] or 0])
    body = [
        [
            row["instance"],
            f"{row['chains']:,}",
            f"{row['sweeps']:,}",
            f"{statistics.median(row['seconds']):.2f} s",
            f"{sum(energy <= best[row['instance']] for energy in row['energies'])} of {len(row['energies'])}",
            f"{100 * (1 - statistics.mean(row['energies']) / best[row['instance']]):.3f} %",
        ]
        for row in rows
    ]
    head = ["instance", "chains", "sweeps", "time", "lowest known energy found", "mean gap to it"]
    known = "; ".join(
        f"{name}: {energy:.0f} (on a CPU {next(row['cpu_energy'] for row in rows if row['instance'] == name):.0f})"
        for name, energy in best.items()
    )
    return f"{found['gpu_chains']['settings']['device']}. Lowest energies: {known}.\n\n{markdown(head, body)}"
