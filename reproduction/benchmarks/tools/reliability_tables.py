"""The table of docs/design.md, from attacks.json."""

from benchmarks.tables import results
from qpsbgd_paper.report.tables import pipes


def attacked():
    """One row per attack: how often it was tried, and how often the library held."""
    rows = results("attacks")["attacks"].values()
    return pipes(["attack", "trials", "held"], ([row["about"], f"{row['trials']}", f"{row['held']}"] for row in rows))
