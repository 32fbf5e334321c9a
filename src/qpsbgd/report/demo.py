"""The demo's results as tables and as one HTML page that needs no network."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from qpsbgd.report.figures import Curve, curves_svg

Table = tuple[list[str], list[list[str]]]


def digits_table(digits: dict[str, Any]) -> Table:
    """Mean ± standard deviation of the test accuracy per method, for every budget."""
    budgets = sorted({row["epochs"] for row in digits["rows"]})
    head = ["method"]
    for epochs in budgets:
        head += [f"{epochs} epochs", "options"]
    body = []
    for method in dict.fromkeys(row["method"] for row in digits["rows"]):
        rows = {row["epochs"]: row for row in digits["rows"] if row["method"] == method}
        line = [rows[budgets[0]]["label"]]
        for epochs in budgets:
            accuracies = rows[epochs]["accuracies"]
            options = ", ".join(f"{name} {value:g}" for name, value in rows[epochs]["options"].items())
            line += [mean_and_deviation(accuracies), options]
        body.append(line)
    return head, body


def logreg_table(logreg: dict[str, Any]) -> Table:
    """Mean loss after the first phase with its standard error."""
    body = [[row["label"], f"{row['late_mean']:.4f} ± {row['late_standard_error']:.4f}"] for row in logreg["rows"]]
    return ["method", "loss in the second half"], body


def mean_and_deviation(values: list[float]) -> str:
    """`0.952 ± 0.008`, the sample standard deviation over seeds."""
    deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} ± {deviation:.3f}"


def verdicts(digits: dict[str, Any], logreg: dict[str, Any]) -> list[str]:
    """What the numbers say, in sentences, wins and losses alike; less than a standard error apart is a tie."""
    sentences = []
    for epochs in sorted({row["epochs"] for row in digits["rows"]}):
        rows = {row["method"]: _mean_and_error(row) for row in digits["rows"] if row["epochs"] == epochs}
        if "qpsbgd" not in rows or len(rows) < 2:
            continue
        labels = {row["method"]: row["label"] for row in digits["rows"]}
        ours = rows.pop("qpsbgd")
        other = max(rows, key=lambda method: rows[method])
        relation = _relation(ours, rows[other], words=("is behind", "ties with", "is ahead of"))
        sentences.append(
            f"After {epochs} epochs QP-SBGD ({ours[0]:.3f}) {relation} the best baseline, {labels[other]} "
            f"({rows[other][0]:.3f})."
        )
    lines = {row["line"]: (row["late_mean"], row["late_standard_error"]) for row in logreg["rows"]}
    if "exact" in lines:
        names = {row["line"]: row["label"] for row in logreg["rows"]}
        ours = lines.pop("exact")
        other = min(lines, key=lambda line: lines[line])
        relation = _relation(ours, lines[other], words=("is lower than", "ties with", "is higher than"))
        sentences.append(
            f"Logistic regression, after the first phase: the loss of QP-SBGD (exact) ({ours[0]:.4f}) {relation} that "
            f"of the best other line, {names[other]} ({lines[other][0]:.4f})."
        )
    return sentences


def _mean_and_error(row: dict[str, Any]) -> tuple[float, float]:
    values = row["accuracies"]
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return float(np.mean(values)), error


def _relation(ours: tuple[float, float], other: tuple[float, float], *, words: tuple[str, str, str]) -> str:
    """The word for less, a tie within one standard error of the difference, or more."""
    difference = ours[0] - other[0]
    if abs(difference) <= np.hypot(ours[1], other[1]):
        return words[1]
    return words[0] if difference < 0 else words[2]


def digits_figure(digits: dict[str, Any]) -> str:
    """Test accuracy after every epoch of the longest budget, as SVG."""
    longest = max(row["epochs"] for row in digits["rows"])
    return curves_svg(
        [_curve(row["label"], row["curves"]) for row in digits["rows"] if row["epochs"] == longest],
        x_label="epoch",
        y_label="test accuracy",
        y_limits=(0.7, 1.0),
    )


def logreg_figure(logreg: dict[str, Any]) -> str:
    """Loss before every step, as SVG; dashed are the lines that are not in the paper's figure."""
    return curves_svg(
        [
            Curve(
                row["label"],
                range(len(row["mean"])),
                row["mean"],
                row["standard_error"],
                dashed=row["line"] in ("literal", "bc-sgd-tuned"),
            )
            for row in logreg["rows"]
        ],
        x_label="step",
        y_label="loss",
        y_limits=(0.0, 1.3),
    )


def demo_page(digits: dict[str, Any], logreg: dict[str, Any], *, made_with: dict[str, str]) -> str:
    """The whole report as one HTML page."""
    longest = max(row["epochs"] for row in digits["rows"])
    seeds = len(digits["rows"][0]["accuracies"])
    hidden = digits["settings"]["hidden"]
    versions = ", ".join(f"{name} {value}" for name, value in made_with.items())
    points = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in verdicts(digits, logreg))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>QP-SBGD demo</title><style>{_STYLE}</style></head><body><main>
<h1>Binary networks trained with QP-SBGD</h1>
<ul class="verdicts">{points}</ul>
<h2>Handwritten digits</h2>
<p>A network 64-{hidden}-10 with weights ±1. Every method gets the same number of epochs and batches; its options are
chosen on validation data, separately for each budget. Test accuracy, mean ± standard deviation of {seeds} seeds.</p>
<div class="wide">{_table(digits_table(digits))}</div>
<figure>{digits_figure(digits)}
<figcaption>Test accuracy after every epoch at the options chosen for {longest} epochs; bands are
± one standard deviation.</figcaption></figure>
<h2>Binary logistic regression</h2>
<p>Two separable blobs with an intercept: three weights ±1, batches of {logreg["settings"]["batch"]},
{logreg["settings"]["seeds"]} data sets. Solid lines are the paper's four methods at the paper's learning rates; QP-SBGD
uses scale 1 and momentum 0.9. Dashed: the paper's equation as printed, and SGD at a learning rate that moves.</p>
<div class="wide">{_table(logreg_table(logreg))}</div>
<figure>{logreg_figure(logreg)}
<figcaption>Loss on all data before every step; bands are ± one standard error.</figcaption></figure>
<footer>Made by <code>qpsbgd demo</code> with {html.escape(versions)}.</footer>
</main></body></html>
"""


def _curve(label: str, runs: list[list[float]]) -> Curve:
    values = np.array(runs)
    deviation = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return Curve(label, range(1, values.shape[1] + 1), values.mean(0).tolist(), deviation.tolist())


def _table(table: Table) -> str:
    head, body = table
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"


_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fdfdfc; --line: #d8dce0; --soft: #f1f3f4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --paper: #15181b; --line: #363c42; --soft: #1f2428; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 50rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { margin-top: 2.5rem; font-size: 1.25rem; }
.verdicts { background: var(--soft); border-left: 4px solid #d1495b; padding: .8rem 1rem .8rem 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .4rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:first-child td:first-child { font-weight: 600; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; }
figcaption, footer { color: #808790; font-size: .875rem; } footer { margin-top: 3rem; }
"""
