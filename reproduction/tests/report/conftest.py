import pytest


def row(line, label, *, kind="baseline", values=(0.5, 0.6), reported=None, mean=(0.4, 0.5, 0.6), options=None):
    return {
        "line": line,
        "label": label,
        "kind": kind,
        "options": options or {"lr": 0.1},
        "reported": reported,
        "values": {"score": list(values)},
        "curves": {"curve": {"x": list(range(len(mean))), "mean": list(mean), "deviation": [0.1] * len(mean)}},
    }


def named(key):
    """The names of a case from its label, or from its short name and the setting that it shares with others."""
    short, group = (key, key) if isinstance(key, str) else key
    label = key if isinstance(key, str) else f"{short}, {group}"
    return {"case": label, "label": label, "group": group, "short": short}


def experiment(cases, *, name="toy", **others):
    found = {
        "experiment": name,
        "title": f"Title of {name}",
        "about": "What it is about.",
        "command": f"qpsbgd run {name}",
        "seeds": 2,
        "settings": {},
        "made with": {"python": "3.11", "machine": "abacus"},
        "seconds of training": 100.0,
        "metrics": [{"key": "score", "label": "test accuracy", "higher": True}],
        "series": [{"key": "curve", "label": "accuracy so far", "x_label": "step"}],
        "chosen by": "training accuracy",
        "cases": [{**named(key), "rows": rows} for key, rows in cases.items()],
        "claims": [],
    }
    return {**found, **others}


@pytest.fixture
def make_row():
    return row


@pytest.fixture
def make_experiment():
    return experiment


@pytest.fixture
def toy():
    """Three methods on one case, with figures of the paper for two of them, and two claims."""
    rows = [
        row(
            "qpsbgd",
            "QP-SBGD",
            kind="ours",
            values=(0.8, 0.9),
            mean=(0.5, 0.7, 0.85),
            options={"lr": 0.03, "clip": None},
        ),
        row("qpsbgd-printed", "QP-SBGD, as printed", kind="paper", values=(0.6, 0.7), reported=0.66),
        row("bc-sgd", "BC (SGD)", values=(0.7, 0.8), reported=0.7),
    ]
    claims = [
        {
            "text": "QP-SBGD is best",
            "source": "paper",
            "verdict": "yes",
            "detail": "0.85 against 0.75 (bc-sgd), two standard errors 0.05",
            "rival": "bc-sgd",
        },
        {
            "text": "QP-SBGD reaches 0.95",
            "source": "aim",
            "verdict": "no",
            "detail": "0.85 ± 0.07, to be reached: 0.95",
        },
    ]
    return experiment({"0/2": rows}, claims=claims)


@pytest.fixture
def study():
    """A summary without cases, metrics and curves: two figures, a table and a claim."""
    graph = {"title": "left", "nodes": [[0, 0], [1, 1]], "edges": [[0, 1]], "labels": ["a", "b"]}
    return {
        "experiment": "study",
        "title": "A study",
        "about": "What it is about.",
        "command": "qpsbgd run study",
        "seeds": 1,
        "settings": {},
        "made with": {"python": "3.11"},
        "seconds of training": 10.0,
        "paper": "A figure.",
        "figures": [
            {"name": "graph", "title": "a | graph", "caption": "Two *spins*.", "kind": "graphs", "panels": [graph]},
            {"name": "map", "title": "A map", "kind": "matrices", "panels": [{"title": "", "values": [[1.0]]}]},
        ],
        "tables": [{"title": "rows", "head": ["n", "tiles"], "body": [["4", "10"]]}],
        "claims": [{"text": "It fits", "source": "paper", "verdict": "yes", "detail": "10 tiles"}],
    }
