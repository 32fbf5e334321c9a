"""The tables of docs/reliability.md, from kills.json, attacks.json and mutants*.json."""

from tables import markdown, results

KINDS = {
    "estimators": "`fit` of an estimator, interrupted and called again",
    "experiments": "`qpsbgd run`, all its processes killed, and started again",
    "dask_workers": "runs on three Dask workers, one of them killed",
}


def killed():
    """One row per kind of run: how often it was disturbed, and ended like an undisturbed one."""
    found = results("kills")
    body = [
        [
            text,
            str(len(found[kind])),
            str(sum(t["hit"] for t in found[kind])),
            str(sum(t["equal"] for t in found[kind])),
        ]
        for kind, text in KINDS.items()
        if found.get(kind)
    ]
    return markdown(["what", "trials", "disturbed before its end", "ended like an undisturbed run"], body)


def attacked():
    """One row per attack: how often it was tried, and how often the library held."""
    found = results("attacks")["attacks"].values()
    return markdown(
        ["attack", "trials", "held"], [[one["about"], str(one["trials"]), str(one["held"])] for one in found]
    )


def noticed():
    """How many changes of the code the tests notice, by folder; those that change nothing do not count."""
    samples = [results("mutants"), results("mutants_fresh")]
    folders = {}
    for found in samples:
        for name, (seen, tried) in found["files"].items():
            for key in (_folder(name), "all"):
                counts = folders.setdefault(key, [0, 0, 0])
                counts[0] += tried
                counts[1] += seen
        for one in found["equivalent"]:
            for key in (_folder(one["file"]), "all"):
                folders[key][2] += 1
    folders["all"] = folders.pop("all")
    body = [
        [
            f"`{name}`" if name != "all" else name,
            *map(str, counts),
            f"{100 * counts[1] / (counts[0] - counts[2]):.0f} %",
        ]
        for name, counts in folders.items()
    ]
    table = markdown(["", "changes", "noticed", "change nothing", "share of the others"], body)
    first, second = (f"{found['noticed at first']} of {found['tried']}" for found in samples)
    return (
        f"{table}\n\nBefore the tests that these runs asked for, {first} changes of a first sample were noticed, and "
        f"{second} of a second one, drawn after the first had its tests."
    )


def noticed_at_once():
    """How many changes of a third sample the tests noticed before any was written for it, by package or folder."""
    found, folders = results("mutants_third"), {}
    for name, (seen, tried) in found["files"].items():
        for key in (_part(name), "all"):
            counts = folders.setdefault(key, [0, 0, 0])
            counts[0] += tried
            counts[1] += seen
    for one in found["equivalent"]:
        for key in (_part(one["file"]), "all"):
            folders[key][2] += 1
    folders["all"] = folders.pop("all")
    body = [[f"`{name}`" if name != "all" else name, *map(str, counts)] for name, counts in folders.items()]
    return markdown(["", "changes", "noticed", "change nothing"], body)


def _part(name):
    """The package of a file of QUBOs, where kernels for GPUs count by themselves; else its folder."""
    if name.endswith("_triton.py"):
        return "qpsbgd_qubo, for GPUs"
    return "qpsbgd_qubo" if name.startswith("qpsbgd_qubo/") else name.rpartition("/")[0]


def _folder(name):
    return name if name.endswith("budget.py") else name.rpartition("/")[0]
