"""The tables of docs/reliability.md, from kills.json and mutants.json."""

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


def noticed():
    """How many changes of the code the tests notice, by folder."""
    found = results("mutants")
    folders = {}
    for name, (seen, tried) in found["files"].items():
        counts = folders.setdefault(name.rpartition("/")[0] if name.count("/") < 2 else name, [0, 0])
        counts[0] += seen
        counts[1] += tried
    body = [
        [f"`{name}`", str(tried), str(seen), f"{100 * seen / tried:.0f} %"] for name, (seen, tried) in folders.items()
    ]
    total = [str(found["tried"]), str(found["noticed"]), f"{100 * found['noticed'] / found['tried']:.0f} %"]
    return markdown(["", "changes", "noticed", "share"], [*body, ["all", *total]])
