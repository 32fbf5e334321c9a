"""What the documents' tables are made with: measured results by name, and rows as markdown."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def results(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def measured(names):
    """The results that are there, by name."""
    return {name: results(name) for name in names if (RESULTS / f"{name}.json").exists()}


def markdown(head, body):
    rows = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def enumerated(parts):
    """Parts of a sentence: a, b and c."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
