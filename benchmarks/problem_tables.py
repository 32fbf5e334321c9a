"""Tables of single problems: QUBOs, graphs, a million variables, and chains on a GPU."""

import numpy as np
from tables import markdown, measured, results


def _gaps(kind):
    """Of every instance: solver and time → how far its energy is above the best of all, in per mille of that."""
    rows = [row for row in results("general_qubo")["results"] if row["kind"] == kind]
    named = {}
    for row in rows:
        named.setdefault(row["instance"], {})[row["solver"], row["limit"]] = row["energy"]
    best = {name: min(found.values()) for name, found in named.items()}
    return {
        name: {key: 1000 * (energy - best[name]) / abs(best[name]) for key, energy in found.items()}
        for name, found in named.items()
    }


def _cells(gaps, keys):
    return ["–" if key not in gaps else "best" if gaps[key] == 0 else f"{gaps[key]:.2f}" for key in keys]


def dense_problems():
    gaps = {name: {solver: gap for (solver, _), gap in found.items()} for name, found in _gaps("dense").items()}
    solvers = list(dict.fromkeys(solver for found in gaps.values() for solver in found))
    return markdown(["instance", *solvers], [[name, *_cells(found, solvers)] for name, found in gaps.items()])


def graph_problems():
    gaps = _gaps("graph")
    keys = list(dict.fromkeys(key for found in gaps.values() for key in found))
    body = [[name, *_cells(found, keys)] for name, found in gaps.items()]
    means = [f"{np.mean([found[key] for found in gaps.values() if key in found]):.2f}" for key in keys]
    count = [sum(key in found for found in gaps.values()) for key in keys]
    means = [mean if many == len(gaps) else f"{mean} (of {many})" for mean, many in zip(means, count, strict=True)]
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
    body = [
        [
            row["instance"],
            f"{row['chains']:,}",
            f"{row['sweeps']:,}",
            f"{row['seconds']:.2f} s",
            f"{row['energy']:.0f}",
            "–" if row["cpu_energy"] is None else f"{row['cpu_energy']:.0f}",
        ]
        for row in found["gpu_chains"]["results"]
    ]
    return markdown(["instance", "chains", "sweeps", "time", "lowest energy", "lowest on a CPU"], body)
