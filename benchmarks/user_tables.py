"""The measured parts of docs/estimators.md, docs/frameworks.md and docs/networks.md."""

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


def real_rates():
    """The score of every rate on every task."""
    if not (kept := measured(["real_rates"])):
        return MISSING
    found = {}
    for row in kept["real_rates"]["rows"]:
        found.setdefault(row["task"], {})[row["rate"]] = row["scores"]
    rates = list(next(iter(found.values())))
    body = []
    for task, scores in found.items():
        means = [np.mean(scores[rate]) for rate in rates]
        # Accuracies in %, and minus a loss.
        texts = [f"{100 * mean:.2f} %" if mean > 0 else f"{-mean:.3f} nats" for mean in means]
        body.append([task, *(f"**{t}**" if m == max(means) else t for t, m in zip(texts, means, strict=True))])
    return markdown(["rate of AdamW", *(f"{rate:g}" for rate in rates)], body)


def text_model():
    """The held-out loss of every method, in nats per character."""
    if not (kept := measured(["characters"])):
        return MISSING
    head = ["training", "rate", "nats per character", "CPU time"]
    body = []
    for row in kept["characters"]["rows"]:
        losses, seconds = ([run[key] for run in row["runs"]] for key in ("loss", "seconds"))
        rate = "default" if row["rate"] is None else f"{row['rate']:g}"
        value = f"{np.mean(losses):.3f} ± {np.std(losses, ddof=1):.3f}"
        body.append([row["method"], rate, value, f"{np.mean(seconds):.0f} s"])
    return markdown(head, body)
