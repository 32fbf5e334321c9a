"""The tables of docs/design.md, from attacks.json and the reports of a mutation test."""

from collections import Counter

from benchmarks.tables import results
from qpsbgd_paper.report.tables import pipes


def attacked():
    """One row per attack: how often it was tried, and how often the library held."""
    rows = results("attacks")["attacks"].values()
    return pipes(["attack", "trials", "held"], ([row["about"], f"{row['trials']}", f"{row['held']}"] for row in rows))


def noticed_at_once():
    """How many changes the tests noticed before any was written for them, by package or folder."""
    tried, noticed, equal = Counter(), Counter(), Counter()
    for sample in map(results, ("mutants", "mutants_second", "mutants_third", "mutants_bindings")):
        for name, (seen, changes) in sample["files"].items():
            tried[_part(name)] += changes
            noticed[_part(name)] += seen
        equal.update(_part(mutant["file"]) for mutant in sample["equivalent"])
    counters = tried, noticed, equal
    body = [[part, *(f"{counter[part]}" for counter in counters)] for part in tried]
    body.append(["all", *(f"{counter.total()}" for counter in counters)])
    return pipes(["", "changes", "noticed", "change nothing"], body)


def _part(name):
    """The package of a file of QUBOs, where kernels for GPUs count by themselves; else its folder."""
    if name.endswith("pp"):
        return "checks of the bindings"
    if name.endswith("_triton.py"):
        return "`qpsbgd_qubo`, for GPUs"
    return "`qpsbgd_qubo`" if name.startswith("qpsbgd_qubo/") else f"`{name.rpartition('/')[0]}`"
