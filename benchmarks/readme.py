"""Writes the tables of the README and of docs from benchmarks/results: run it after a measurement.

python benchmarks/readme.py

The results of `qpsbgd run all` and of `qpsbgd demo` are kept by: python benchmarks/readme.py results/paper results/demo
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

from qpsbgd_paper.cli.run import INTRO
from qpsbgd_paper.experiments import EXPERIMENTS
from qpsbgd_paper.report.figures import figures
from qpsbgd_paper.report.markdown import markdown as results_document
from qpsbgd_paper.report.markdown import table_text
from qpsbgd_paper.report.tables import claim_sentences, mean_and_deviation, options_tables, tables

ROOT = Path(__file__).parents[1]


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def markdown(head, body):
    rows = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def digits():
    found = results("demo/digits")
    parts = [table_text(table) for table in (*tables(found), *options_tables(found))]
    return "\n\n".join([*parts, " ".join(f"{sentence}." for sentence in claim_sentences(found))])


BASELINES = ("bc-sgd", "bc-sign", "bc-adam", "proxquant")


def paper():
    """One row per experiment and setting: ours, the paper's form, the simulated annealer and the best baseline."""
    head = ["experiment", "setting", "figure", "QP-SBGD", "as printed", "annealer", "best baseline"]
    body = []
    for name in EXPERIMENTS:
        found = results(f"paper/{name}")
        if not found.get("cases") or name in ("ablation", "cdp", "rosenbrock"):
            continue
        metric = found["metrics"][0]
        for setting, cases in settings(found).items():
            values = {line: over(cases, line, metric["key"]) for line in cases[0]}
            rivals = [line for line in BASELINES if line in values]
            rival = (max if metric["higher"] else min)(rivals, key=lambda line: np.mean(values[line]))
            label = next(row["label"] for case in found["cases"] for row in case["rows"] if row["line"] == rival)
            annealer = "qpsbgd-virtual" if "qpsbgd-virtual" in values else "qpsbgd-annealed"
            lines = ("qpsbgd", "qpsbgd-printed", annealer)
            cells = [mean_and_deviation(values[line]) if line in values else "–" for line in lines]
            cells[-1] += " (virtual chip)" if annealer == "qpsbgd-virtual" else ""
            body.append([name, setting, metric["label"], *cells, f"{mean_and_deviation(values[rival])} ({label})"])
    return markdown(head, body)


def settings(found):
    """The cases of an experiment by setting, the pairs of mnist together."""
    groups = {}
    for case in found["cases"]:
        setting = case["case"].split(", ")[-1] + (", mean of the pairs" if ", " in case["case"] else "")
        groups.setdefault(setting, []).append({row["line"]: row for row in case["rows"]})
    return groups


def over(cases, line, key):
    return np.mean([case[line]["values"][key] for case in cases], axis=0).tolist()


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


def cost():
    found = results("qpu_cost")
    head = ["", "chip", "submissions", "submissions, one by one", "chip time", "chip time, reads shared"]
    head += ["chip time, one by one", "times less", "times less, reads shared"]
    body = []
    for row in found["results"]:
        ways = [row[way] for way in ("packed", "shared", "one_by_one")]
        packed, shared, single = ways
        times = [f"{way['chip_seconds']:.3g} s" for way in ways]
        counts = [f"{packed['submissions']}", f"{single['submissions']}"]
        ratios = [f"{way['times_less_chip_time']:.0f}" for way in (packed, shared)]
        body.append([row["what"], row["chip"], *counts, *times, *ratios])
    run, whole = found["results"][0], found["experiment_mnist"]
    minutes = {way: f"{whole[way]['chip_seconds'] / 60:.1f}" for way in ("packed", "shared", "one_by_one")}
    table = markdown(head, body)
    return (
        f"{table}\n\nAll {whole['steps']} steps of `qpsbgd run mnist` on a chip, choice of options included, would "
        f"take {minutes['packed']} minutes of it, with shared reads {minutes['shared']}, and one by one "
        f"{minutes['one_by_one']}. Around the chip, {found['settings']['updates']} updates took this machine "
        f"{run['packed']['host_seconds_again']:.1f} s, the first time {run['packed']['host_seconds']:.0f} s with the "
        f"search for cliques, and one by one {run['one_by_one']['host_seconds']:.0f} s, most of them for embeddings."
    )


def virtual():
    head = ["", "columns solved", "optimal reads", "mean energy gap", "broken chains"]
    rows = [("by default" if row["way"] == "default" else row["way"], row) for row in results("virtual_qpu")["means"]]
    return markdown(head, [[name, *_virtual_cells(row)] for name, row in rows])


def virtual_sizes():
    rows = [row for row in results("virtual_qpu")["results"] if row["way"] == "default"]
    head = ["inputs", "scale κ", "columns solved", "optimal reads", "mean energy gap", "broken chains"]
    body = []
    for n, scale in dict.fromkeys((row["spins"], row["scale"]) for row in rows):
        both = [row for row in rows if (row["spins"], row["scale"]) == (n, scale)]
        keys = ("optimal", "optimal_reads", "gap", "chain_breaks")
        body.append([f"{n}", f"{scale:g}", *_virtual_cells({key: np.mean([row[key] for row in both]) for key in keys})])
    return markdown(head, body)


def _virtual_cells(row):
    reads = f"{row['optimal_reads']:.0%}" if "optimal_reads" in row else "–"
    return [f"{row['optimal']:.0%}", reads, f"{row['gap']:.4f}", f"{row['chain_breaks']:.1%}"]


MAKERS = (digits, paper, layer, exact, general, growth, gpu, cost, virtual, virtual_sizes)
TABLES = {make.__name__: make for make in MAKERS}
DOCUMENTS = ("README.md", "docs/annealers.md")


def written(text):
    """A document with every block between `<!-- name -->` and `<!-- end -->` made anew."""

    def block(match):
        return f"<!-- {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def document():
    """docs/results.md."""
    summaries = [results(f"paper/{name}") for name in EXPERIMENTS]
    source = "Made by `qpsbgd run all`; the numbers are in [benchmarks/results/paper](../benchmarks/results/paper)."
    title = "Results of the paper's experiments"
    return results_document(summaries, title=title, intro=f"{source} {INTRO}", figures="figures")


def keep(folder):
    """Copy the results of a run, in compact form."""
    target = ROOT / "benchmarks" / "results" / folder.name
    target.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        if path.stem in (*EXPERIMENTS, "digits"):
            content = json.loads(path.read_text(encoding="utf-8"))
            (target / path.name).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for given in sys.argv[1:]:
        keep(Path(given))
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(written(text), encoding="utf-8")
    (ROOT / "docs" / "results.md").write_text(document(), encoding="utf-8")
    place = ROOT / "docs" / "figures"
    place.mkdir(exist_ok=True)
    for name in ("demo/digits", *(f"paper/{name}" for name in EXPERIMENTS)):
        for file, content in figures(results(name)).items():
            if file.endswith(".svg"):
                (place / file).write_bytes(content)
