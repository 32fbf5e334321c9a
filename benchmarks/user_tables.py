"""The measured part of docs/estimators.md."""

import numpy as np
from tables import markdown, measured

MISSING = "Not measured yet."
LINEAR = "logistic or linear regression"


def estimators():
    """Mean scores of all models on every data set, and their mean ranks."""
    if not (kept := measured(["estimators"])):
        return MISSING
    found = {}
    for row in kept["estimators"]["rows"]:
        found.setdefault(row["data"], {})[row["model"]] = row
    names = ("qpsbgd", "qpsbgd spins", "MLP", "linear")
    names = [name for name in names if all(name in rows for rows in found.values())]
    if "qpsbgd" not in names:
        return MISSING
    head = ["data", "rows × columns", *(LINEAR if name == "linear" else name for name in names), "fit", "fit, MLP"]
    body, ranks = [], {True: [], False: []}
    for data, rows in found.items():
        scores = np.array([100 * np.mean(rows[name]["scores"]) for name in names])
        first = rows["qpsbgd"]
        compared = [k for k, name in enumerate(names) if name != "qpsbgd spins"]
        places = {k: 1 + sum(scores[j] > scores[k] for j in compared) for k in compared}
        ranks[first["design"]].append([places.get(k, np.nan) for k in range(len(names))])
        cells = [f"**{score:.1f}**" if score == scores.max() else f"{score:.1f}" for score in scores]
        seconds = [f"{rows[name]['seconds']:.1f} s" for name in ("qpsbgd", "MLP")]
        mark = "" if first["design"] else " (apart)"
        body.append([f"{data}{mark}", f"{first['rows']} × {first['columns']}", *cells, *seconds])
    for title, design in (("mean rank, chosen on", True), ("mean rank, apart", False)):
        means = np.array(ranks[design]).mean(0)
        body.append([title, "", *("–" if np.isnan(mean) else f"{mean:.2f}" for mean in means), "", ""])
    return markdown(head, body)
