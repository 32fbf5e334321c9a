"""The tables and the figure of docs/training.md, and the table of estimators in docs/integrations.md."""

from collections import Counter
from functools import cache

import numpy as np
from benchmarks.tables import cross_table, group_by, label_axes, results, spread
from benchmarks.training import family_tables, networks
from benchmarks.training.family_tables import score_cell
from benchmarks.training.training_tasks import OURS, TASKS
from matplotlib.figure import Figure

from qpsbgd import QPSBGD
from qpsbgd.nn import convert
from qpsbgd_paper.framework.claims import verdict
from qpsbgd_paper.report.rendering import INK
from qpsbgd_paper.report.styles import RED
from qpsbgd_paper.report.tables import pipes

TITLES = {
    "mnist-dense": "MNIST, 784-512-512-10",
    "mnist-deep": "MNIST, eight layers of 256",
    "mnist-cnn": "MNIST, CNN",
    "fashion-dense": "Fashion, 784-512-512-10",
    "fashion-cnn": "Fashion, CNN",
    "digits": "Digits, 64-128-10",
    "adult-10": "Adult, ten layers",
    "cora": "Cora, graph network",
    "pubmed": "PubMed, graph network",
    "letter": "Letter, 16-256-256-26",
    "magic": "Magic, 10-256-256-2",
    "spambase": "Spambase, 57-256-256-2",
    "letter-deep": "Letter, nine layers of 128",
}
TITLES |= {f"{name}-bn": f"{TITLES[name]}, batch norm" for name in TITLES if f"{name}-bn" in TASKS}
LABELS = {
    "bc-adam": "BC (Adam)",
    "bc-sign": "BC (sign)",
    "bc-sgd": "BC (SGD)",
    "bc-normalized": "BC (normalised SGD)",
    "proxquant": "ProxQuant",
    "bc-adam, default": "BC (Adam, default)",
    "st-adamw": "AdamW",
    "st-muon": "Muon",
}
NAMES = {"ridge": "ridge", "spins": "spins", "spins-2": "two vectors"}
WORDS = {"yes": "ahead", "no": "behind", "cannot tell": "level"}


def tasks():
    """The measured tasks' rows by budget and method, in the order of training.py."""
    return {
        task: {
            budget: {row["method"]: row for row in rows}
            for budget, rows in group_by(results(f"training_{task}")["rows"], "budget").items()
        }
        for task in TASKS
    }


def settings():
    """One entry per task and budget: the rows by method."""
    return [(task, budget, rows) for task, budgets in tasks().items() for budget, rows in budgets.items()]


def baselines(rows):
    return [method for method in rows if method not in (*OURS, "printed")]


def amount(task, budget):
    unit = "step" if task in ("cora", "pubmed") else "epoch"
    return f"{budget} {unit}{'s' if budget > 1 else ''}"


def higher(task):
    return task not in TASKS or TASKS[task].higher


def score(task, values):
    """Mean ± standard deviation: accuracy in percent, or a loss."""
    return spread(values, 100, 2) if higher(task) else spread(values)


def best_baseline(task, rows):
    """The baseline with the best mean; of equal ones that with the larger noise, which is harder to beat."""
    sign = 1 if TASKS[task].higher else -1
    return max(baselines(rows), key=lambda m: (round(sign * np.mean(rows[m]["scores"]), 9), rows[m]["ridge noise"]))


def judged(rows, ours, rival):
    """ "ahead", "level" or "behind" a baseline, in pairs."""
    return WORDS[verdict(rows[rival][f"{ours} ahead by"], noise=rows[rival][f"{ours} noise"])]


def counts(ours, *, held_out):
    """Settings in which one of ours is ahead of, level with and behind the best baseline."""
    pairs = [(task, rows) for task, _, rows in settings() if ours in rows and task.startswith("fashion") == held_out]
    words = Counter(judged(rows, ours, best_baseline(task, rows)) for task, rows in pairs)
    return [words[word] for word in ("ahead", "level", "behind")]


def winner():
    """Who won, counted: on the data that the defaults were found with, and on held-out data."""
    data = {False: "on data that the defaults were found with", True: "on held-out data"}
    cells = {
        (f"**{NAMES[ours]}**", name): " / ".join(map(str, counts(ours, held_out=held_out)))
        for ours in OURS
        for held_out, name in data.items()
    }
    return cross_table("ahead / level / behind", cells)


def verdicts():
    """Ridge, the best baseline, and the difference in pairs, where that is significant."""
    body = []
    for task, budget, rows in settings():
        rival = best_baseline(task, rows)
        if (word := judged(rows, "ridge", rival)) != "level":
            gap = rows[rival]["ridge ahead by"]
            lead = (f"{100 * gap:+.2f}" if higher(task) else f"{gap:+.3f}").replace("-", "−")
            scores = [score(task, rows["ridge"]["scores"]), f"{score(task, rows[rival]['scores'])}, {LABELS[rival]}"]
            body.append([f"{TITLES[task]}, {amount(task, budget)}", *scores, f"{lead} **{word}**"])
    return pipes(["setting", "ridge", "best baseline", "lead"], body)


STEPS = ("real weights", "ridge", "spins", "polar", "Muon")


def step_cost():
    """Milliseconds per training step under AdamW, and the other methods' times relative to it."""
    body = []
    for study in (results("step_cost_cpu"), results("step_cost_cuda")):
        for row in study["results"]:
            device = study["settings"]["device"]
            if device == "CPU":
                device = f"{study['settings']['threads']} CPU threads"
            times = row["milliseconds"]
            ratios = [f"{times[name] / times['AdamW']:.2f}" if name in times else "–" for name in STEPS]
            body.append([row["network"].replace("cnn", "CNN"), device, f"{times['AdamW']:.1f} ms", *ratios])
    return pipes(["network", "machine", "AdamW", *STEPS], body)


NETWORKS = {
    "vgg-5": "VGG-small, 5 epochs",
    "vgg-25": "VGG-small, 25 epochs",
    "resnet20-10": "ResNet-20, 10 epochs",
    "resnet20-30": "ResNet-20, 30 epochs",
    "resnet20-100": "ResNet-20, 100 epochs",
    "resnet56-10": "ResNet-56, 10 epochs",
    "gpt-1500": "character GPT, 1,500 steps",
    "gpt-5000": "character GPT, 5,000 steps",
}
RIVALS = {
    "st-adamw": "straight-through, AdamW",
    "st-sgd": "straight-through, SGD",
    "st-muon": "straight-through, Muon",
    "bc-adam": "BinaryConnect, Adam",
    "bop": "Bop",
}
DEFAULTS = {name: f"QP-SBGD, {title}" for name, title in (*NAMES.items(), ("polar", "polar"))}


def _unit(task):
    return "nats" if task.startswith("gpt") else "%"


@cache
def default_of(task):
    """The projection that a network of networks.py gets where none is given; None for GPTs, run at another rate."""
    data, build, *_ = networks.TASKS[task]
    if data == "text":
        return None
    model = convert(build(), first=False, last=False)
    return QPSBGD(model, steps=1, real=False).defaults["projection"].name


def final_rows():
    """Test results of today's networks by task and method; "default" is the projection that none given means."""
    by_task = {}
    for row in results("networks")["rows"]:
        if not row["choosing"]:
            is_default = row["method"] == default_of(networks.home_of(row["task"]))
            for method in (row["method"], "default") if is_default else (row["method"],):
                by_task.setdefault(row["task"], {}).setdefault(method, []).append(row)
    return by_task


FORMS = {"default": "**default**", "ridge": "ridge", "polar": "polar", "spins": "spins"}
SHOWN = {"st-adamw": "AdamW", "st-muon": "Muon", "float-sgd": "real weights"}


def today(names=NETWORKS):
    """Test scores on today's networks: QP-SBGD at its defaults and in its forms, tuned rivals and real weights."""
    rows = final_rows()
    body = []
    for task, name in names.items():
        scores = {method: [row["score"] for row in runs] for method, runs in rows[task].items()}
        scores["float-sgd"] = scores.get("float-sgd") or scores.get("float-adamw", ())
        cells = [score_cell(task, scores.get(method, ())) for method in (*FORMS, *SHOWN)]
        body.append([f"{name}, {_unit(task)}", *cells])
    return pipes(["test score", *FORMS.values(), *SHOWN.values()], body)


def today_shortly():
    """QP-SBGD at its defaults beside the best tuned rival: three seeds."""
    rows, body = final_rows(), []
    for task in ("vgg-5", "vgg-25", "resnet20-30"):
        scores = {rival: [row["score"] for row in rows[task][rival]] for rival in RIVALS if rival in rows[task]}
        rival = max(scores, key=lambda name: np.mean(scores[name]))
        ours = score_cell(task, [row["score"] for row in rows[task]["default"]])
        theirs = f"{score_cell(task, scores[rival])}, {RIVALS[rival].split(', ')[1]}"
        body.append([f"{NETWORKS[task]}, {_unit(task)}", ours, theirs])
    for family in ("resnet18", "mobilenet-v2", "vit", "gpt", "mlp"):
        ours, *rivals = family_tables.family_scores(family)
        name, theirs = max(
            zip(("Muon", "AdamW"), rivals, strict=True),
            key=lambda pair: family_tables.worth(family, np.mean(pair[1])),
        )
        length = "1,000 steps, nats" if family == "gpt" else "6 epochs, %"
        title = family_tables.TITLES[family].removesuffix(", nats")
        body.append([f"{title}, {length}", score_cell(family, ours), f"{score_cell(family, theirs)}, {name}"])
    return pipes(["test score, three seeds", "QP-SBGD, default", "best tuned baseline"], body)


def today_figure():
    """Scores on CIFAR-10's test images, one dot per run."""
    rows = [row for row in results("networks")["rows"] if not row["choosing"]]
    labels = {**DEFAULTS, **RIVALS, "float-sgd": "real weights, SGD"}
    figure = Figure(figsize=(8.2, 2.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2, sharey=True), ("vgg-5", "resnet20-10"), strict=True):
        for place, method in enumerate(reversed(labels)):
            scores = [100 * row["score"] for row in rows if (row["task"], row["method"]) == (task, method)]
            look = {"marker": "o", "color": RED if method in DEFAULTS else INK, "linestyle": "", "markersize": 5}
            axes.plot(scores, [place] * len(scores), **look)
        label_axes(axes, NETWORKS[task], "accuracy, %")
        axes.set_yticks(range(len(labels)), list(reversed(labels.values())))
    return figure


def unseen():
    """The same on CIFAR-100 and Fashion-MNIST, which were held out."""
    data = {"cifar100": "CIFAR-100", "fashion": "Fashion-MNIST"}
    nets = {"vgg-5": "VGG-small, 5 epochs", "resnet20-10": "ResNet-20, 10 epochs"}
    return today({f"{short}-{net}": f"{data[short]}, {nets[net]}" for short in data for net in nets})


def estimators():
    """Mean scores of the models that every data set has, and their mean ranks."""
    titles = {"boosting": "gradient boosting", "linear": "linear model"}
    present = {row["model"] for row in results("estimators")["rows"]}
    names = [name for name in ("qpsbgd", "qpsbgd spins", "MLP", "boosting", "linear") if name in present]
    body, ranks = [], {True: [], False: []}
    for data, group in group_by(results("estimators")["rows"], "data").items():
        rows = {row["model"]: row for row in group}
        scores = [100 * np.mean(rows[name]["scores"]) for name in names]
        first, best = rows["qpsbgd"], max(scores)
        ranks[first["design"]].append([1 + sum(other > score for other in scores) for score in scores])
        cells = [f"**{score:.1f}**" if score == best else f"{score:.1f}" for score in scores]
        time = f"{first['seconds'] / rows['MLP']['seconds']:.1f} × MLP"
        mark = "" if first["design"] else " (apart)"
        body.append([f"{data}{mark}", f"{first['rows']} × {first['columns']}", *cells, time])
    for title, design in (("mean rank, chosen on", True), ("mean rank, apart", False)):
        body.append([title, "", *(f"{mean:.2f}" for mean in np.mean(ranks[design], axis=0)), ""])
    return pipes(["data", "rows × columns", *(titles.get(name, name) for name in names), "fit"], body)


LARGE_NAMES = {
    "polar": "**QP-SBGD, polar** at 0.25 · steps^(−1/4)",
    "float-adamw": "real weights, AdamW",
    "st-adamw": "straight-through AdamW",
    "st-muon": "Muon",
}


def large():
    """A GPT of GPT-2's size: loss after the same number of steps, speed and memory."""
    best, body = {}, []
    trained = [row for row in results("large")["rows"] if "bits" not in row]
    for row in sorted(trained, key=lambda row: row["loss on training text"]):
        best.setdefault((row["method"], row["steps"]), row)
    for row in sorted(best.values(), key=lambda row: row["loss"]):
        rate = "" if row["rate"] is None else f", rate {row['rate']:.2g}"
        name = LARGE_NAMES.get(row["method"], row["method"])
        cost = [f"{row['ms']:.1f} ms", f"{row['peak GiB']:.1f} GiB"]
        body.append([f"{name}{rate}", f"{row['steps']}", f"{row['loss']:.3f}", *cost])
    return pipes(["method", "steps", "held-out nats per character", "a step", "peak memory"], body)


def large_binarized():
    """That network with real weights, binarised without training."""
    rows = results("large")["rows"]
    start = min((r for r in rows if r["method"] == "float-adamw"), key=lambda r: r["loss on training text"])
    names, cells = {"feedback": "error feedback", "kicks": "`binarize`"}, {}
    for row in (row for row in rows if "bits" in row):
        bits = f"{row['bits']} bit{'s' * (row['bits'] > 1)}"
        cells[bits, "real weights"] = f"{start['loss']:.3f}"
        cells[bits, names[row["method"].split(", ")[1]]] = f"{row['loss']:.3f} ({row['seconds']:.0f} s)"
        cells[bits, "peak memory"] = f"{row['peak GiB']:.1f} GiB"
    return cross_table("nats per character", cells, ["real weights", *names.values(), "peak memory"])
