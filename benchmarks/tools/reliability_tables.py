"""The tables of docs/reliability.md, from attacks.json and mutants_*.json."""

from tables import lines, results


def attacked():
    """One row per attack: how often it was tried, and how often the library held."""
    found = results("attacks")["attacks"].values()
    return lines("attack | trials | held", (f"{one['about']} | {one['trials']} | {one['held']}" for one in found))


def noticed_at_once():
    """How many changes of later samples the tests noticed before any was written for them, by package or folder."""

    def part(name):
        """The package of a file of QUBOs, where kernels for GPUs count by themselves; else its folder."""
        if name.endswith(("pp", "_triton.py")):
            return "checks of the bindings" if name.endswith("pp") else "qpsbgd_qubo, for GPUs"
        return "qpsbgd_qubo" if name.startswith("qpsbgd_qubo/") else name.rpartition("/")[0] or name

    samples = {"third": ["mutants_third"], "fourth": ["mutants_fourth", "mutants_bindings"]}
    samples |= {"fifth": ["mutants_fifth", "mutants_bindings_fifth"], "sixth": ["mutants_sixth"]}
    body = (
        " | ".join([sample, name, *map(str, counts)])
        for sample, names in samples.items()
        for name, counts in counted(map(results, names), part).items()
    )
    return lines("sample |  | changes | noticed | change nothing", body)


def counted(samples, part):
    """Changes tried, noticed and without effect, by part of the code, and of all."""
    parts, every = {}, [0, 0, 0]
    for found in samples:
        changes = [(name, (tried, seen, 0)) for name, (seen, tried) in found["files"].items()]
        changes += [(one["file"], (0, 0, 1)) for one in found["equivalent"]]
        for name, counts in changes:
            for sums in (parts.setdefault(f"`{part(name)}`", [0, 0, 0]), every):
                sums[:] = [a + b for a, b in zip(sums, counts, strict=True)]
    return parts | {"all": every}
