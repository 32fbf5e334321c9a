"""Writes the README's tables from benchmarks/results: run it after a measurement.

python benchmarks/readme.py
"""

import json
import re
from pathlib import Path

from qpsbgd.report.demo import digits_table, logreg_table, verdicts

ROOT = Path(__file__).parents[1]


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def markdown(head, body):
    rows = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def digits():
    demo = results("demo")
    sentences = verdicts(demo["digits"], demo["logreg"])
    return markdown(*digits_table(demo["digits"])) + "\n\n" + " ".join(sentences[:-1])


def logreg():
    demo = results("demo")
    return markdown(*logreg_table(demo["logreg"])) + "\n\n" + verdicts(demo["digits"], demo["logreg"])[-1]


def layer():
    rows = [(f"128 × 128, {row['rows']}", row) for row in results("layer_projection")["results"]]
    rows += [("784 × 512, MNIST", row) for row in results("solver_claims")["wide_layer"]]
    head = ["layer", "scale κ", "auto", "annealing loop", "times faster", "mean energy, auto", "mean energy, loop"]
    body = [
        [
            name,
            f"{row['scale']:g}",
            f"{row['auto_seconds'] * 1e3:.1f} ms",
            f"{row['annealing_loop_seconds']:.3g} s",
            f"{row['times_faster']:.0f}",
            f"{row['auto_mean_energy']:.3f}",
            f"{row['annealing_loop_mean_energy']:.3f}",
        ]
        for name, row in rows
    ]
    return markdown(head, body)


def exact():
    head = ["spins", "rows", "scale κ", "exact, a column", "Gurobi, a column", "times faster"]
    body = [
        [
            str(row["spins"]),
            row["rows"],
            f"{row['scale']:g}",
            f"{row['exact_seconds_per_column'] * 1e3:.3f} ms",
            f"{row['gurobi_seconds_per_column'] * 1e3:.1f} ms",
            f"{row['times_faster']:.0f}",
        ]
        for row in results("solver_claims")["exact"]["against_gurobi"]
    ]
    return markdown(head, body)


def general():
    rows = results("solver_claims")["general"]
    names = list(dict.fromkeys(name for row in rows for name in row["energies"]))
    body = [
        [str(row["spins"]), *(f"{row['energies'][name]:.0f}" if name in row["energies"] else "–" for name in names)]
        for row in rows
    ]
    return markdown(["spins", *names], body)


def gpu():
    found = results("gpu")
    step = found["step"]
    body = [
        [
            f"64 flips from the sign vector, 784 × 512, κ = {row['scale']:g}",
            f"{row['descent_64_flips_ms']:.2f} ms",
            f"plain torch {row['plain_torch_64_flips_ms']:.1f} ms",
        ]
        for row in found["projection"]
    ]
    beside = (
        f"BinaryConnect (Adam) {step['binaryconnect_adam_ms']:.2f} ms, torch.optim.Adam {step['torch_adam_ms']:.2f} ms"
    )
    body.append(["optimiser step, 784-512-512-10, batch 100", f"{step['qpsbgd_auto_ms']:.2f} ms", beside])
    return markdown(["on an H200", "qpsbgd", "beside it"], body)


def growth():
    fits = results("solver_quality")["growth"]
    parts = [
        f"{name}^{fit['exponent']:.2f} ({symbol} = {fit['values'][0]} to {fit['values'][-1]})"
        for (name, fit), symbol in zip(fits.items(), ("n", "m", "B"), strict=True)
    ]
    text = ", ".join(parts).replace("rows^", "B^")
    return f"From rows to spins, the time of descent with tabu moves on Gaussian layers grows as {text}."


TABLES = {make.__name__: make for make in (digits, logreg, layer, exact, general, growth, gpu)}


def written(text):
    """The README with every block between `<!-- name -->` and `<!-- end -->` made anew."""

    def block(match):
        return f"<!-- {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(written(readme.read_text(encoding="utf-8")), encoding="utf-8")
