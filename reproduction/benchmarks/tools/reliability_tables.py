"""The tables of docs/reliability.md, from attacks.json and the reports of a mutation test."""

from collections import Counter

from benchmarks.tables import lines, results


def attacked():
    """One row per attack: how often it was tried, and how often the library held."""
    found = results("attacks")["attacks"].values()
    return lines("attack | trials | held", (f"{one['about']} | {one['trials']} | {one['held']}" for one in found))


def noticed_at_once():
    """How many changes the tests noticed before any was written for them, by package or folder."""
    tried, noticed, equal = Counter(), Counter(), Counter()
    for found in map(results, ("mutants", "mutants_second", "mutants_third", "mutants_bindings")):
        for name, (seen, changes) in found["files"].items():
            tried[_part(name)] += changes
            noticed[_part(name)] += seen
        equal.update(_part(one["file"]) for one in found["equivalent"])
    body = [f"{part} | {tried[part]} | {noticed[part]} | {equal[part]}" for part in tried]
    body.append(f"all | {tried.total()} | {noticed.total()} | {equal.total()}")
    return lines(" | changes | noticed | change nothing", body)


def _part(name):
    """The package of a file of QUBOs, where kernels for GPUs count by themselves; else its folder."""
    if name.endswith("pp"):
        return "checks of the bindings"
    if name.endswith("_triton.py"):
        return "`qpsbgd_qubo`, for GPUs"
    return "`qpsbgd_qubo`" if name.startswith("qpsbgd_qubo/") else f"`{name.rpartition('/')[0]}`"
