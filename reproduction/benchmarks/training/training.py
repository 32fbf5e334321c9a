"""Which method trains binary networks best, at which budget? QP-SBGD at its defaults beside tuned baselines.

Test accuracy (for Adult the loss on the training rows) after 1 to 30 epochs, every run with a cosine over its own
length. QP-SBGD takes its default rates; every baseline takes the best of a grid of learning rates, then of rates of
norms and biases, then in runs of fewer than 1,500 steps, where QP-SBGD's momentum is lower, of momenta, then in
networks without norms of the layers' scales, chosen per task and budget on validation data with another seed than the
final ones; the longest budgets take the choice of the next shorter one (`chosen_up_to`). A best rate at the edge of a
grid extends it. In networks without norms QP-SBGD has learned scales, as `convert` gives them by default. Runs with the
same seed share initial weights and batches, so that methods are compared in pairs.

    python benchmarks/training/training.py task=digits … [method=ridge …] [--processes N] [--seeds 5]

Finished runs are kept in results/training, so that a stopped study goes on, and so are rows of methods that are not
named. Runs on CUDA where there is one. Data are
found through QPSBGD_DATA. Writes training_TASK.json for every task, into reproduction/results or a given folder.
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import json
from pathlib import Path

import torch
from benchmarks.study import RESULTS, Rows, arguments, best_values
from benchmarks.training.training_parts import DEVICE_NAME
from benchmarks.training.training_tasks import METHODS, OURS, SCALES, TASKS, Images, first_scale, run

from qpsbgd_paper.framework.claims import difference_of
from qpsbgd_paper.framework.result_files import environment, write_json

KEPT = Path("results/training")
"""Where finished runs are kept."""

GRIDS = {
    "bc-adam": (0.01, 0.03, 0.1),
    "bc-sign": (0.003, 0.01, 0.03),
    "bc-sgd": (0.03, 0.1, 0.3),
    "bc-normalized": (0.003, 0.01, 0.03),
    "proxquant": (0.01, 0.03, 0.1),
    "st-adamw": (0.001, 0.003, 0.01),
    "st-muon": (0.01, 0.02, 0.05),
}
"""Learning rates of the tuned methods; those of BinaryConnect but for SGD in units of the initial range."""
REAL_RATES = (0.001, 0.003, 0.01)
"""Rates of norms and biases for the tuned methods, tried at the best learning rate; it is found at their default."""

MOMENTUM = {"st-muon": 0.95}
"""Momentum of the tuned methods, Adam's β₁ too, in long runs, if not 0.9."""
LOWER_MOMENTA, SHORT = (0.7, 0.8), 1500
"""Momenta that are tried beside it, at the best rates, in runs of fewer steps than the second."""


def scores_of(jobs, processes):
    """The scores of jobs, in their order; the longest begin first, and finished ones are kept."""
    rows = Rows(KEPT / "run.json", processes=processes)
    rows.measured(run, sorted(jobs, key=lambda job: -job["budget"]))
    return [rows.of(job)["score"] for job in jobs]


def methods(task, budget):
    """The methods that are run on a task at a budget."""
    return [method for method in METHODS if method not in TASKS[task].left_out.get(budget, ())]


def chosen_rates(processes, task, wanted):
    """The best options of these methods and budgets on validation data, one after the other.

    Long budgets take those of the longest for which there was a choice.
    """
    homes = {(method, budget): (method, min(budget, TASKS[task].chosen_up_to)) for method, budget in wanted}
    options = {
        (m, b): {
            "lr": None,
            "real": None,
            "momentum": MOMENTUM.get(m, 0.9) if m in GRIDS else None,
            "scale": first_scale(task, m),
        }
        for m, b in homes.values()
    }
    grids = {home: GRIDS[home[0]] for home in options if home[0] in GRIDS}
    tune(processes, task, options, grids, "lr")
    if grids and isinstance(TASKS[task], Images) and TASKS[task].has_real_part():
        tune(processes, task, options, dict.fromkeys(grids, REAL_RATES), "real")
    short = [home for home in grids if TASKS[task].steps(home[1]) < SHORT]
    momenta = {home: (*LOWER_MOMENTA, options[home]["momentum"]) for home in short}
    tune(processes, task, options, momenta, "momentum", most=3)
    if TASKS[task].has_choice_of_scales:
        tune(processes, task, options, dict.fromkeys(grids, tuple(SCALES)), "scale", most=3)
    return {pair: options[home] for pair, home in homes.items()}


def tune(processes, task, options, grids, name, *, most=6):
    """Set this option of every method and budget to the best of its grid, which grows to so many values."""

    def validation_scores(wanted):
        shared = {"task": task, "seed": 1000, "choosing": True}
        jobs = [shared | {"method": m, "budget": b, **options[m, b], name: value} for (m, b), value in wanted]
        sign = 1 if TASKS[task].higher else -1
        return [sign * score for score in scores_of(jobs, processes)]

    for pair, best in best_values(grids, validation_scores, digits=1, most=most).items():
        options[pair][name] = best


def summary(task, processes, kept, chosen, seeds):
    """Scores of all methods and seeds, kept or new, and how ours compare in pairs with each other method."""
    pairs = [(method, budget) for budget in TASKS[task].budgets for method in methods(task, budget)]
    rates = chosen_rates(processes, task, [pair for pair in pairs if pair[0] in chosen])
    settings = [{"budget": budget, "method": method, **options} for (method, budget), options in rates.items()]
    shared = {"task": task, "choosing": False}
    jobs = [setting | shared | {"seed": seed} for setting in settings for seed in seeds]
    every = scores_of(jobs, processes)
    scores = [every[k : k + len(seeds)] for k in range(0, len(every), len(seeds))]
    new = {pair: row | {"scores": values} for pair, row, values in zip(rates, settings, scores, strict=True)}
    rows = {pair: (kept | new)[pair] for pair in pairs if pair in kept | new}
    sign = 1 if TASKS[task].higher else -1
    for (method, budget), row in rows.items():
        for ours in OURS if method in GRIDS or "default" in method else ():
            if (ours, budget) in rows:
                same_seeds = rows[ours, budget]["scores"][: len(row["scores"])]
                gap, noise = difference_of(same_seeds, row["scores"])
                row[f"{ours} ahead by"], row[f"{ours} noise"] = sign * gap, noise
    return list(rows.values())


def main():
    given, _ = arguments("training_TASK", processes=2, seeds={"type": int, "default": 5})
    torch.set_num_threads(1)
    pairs = given.only({"task": task, "method": method} for task in TASKS for method in METHODS)
    for task in dict.fromkeys(pair["task"] for pair in pairs):
        before = RESULTS / f"training_{task}.json"
        known = json.loads(before.read_text())["rows"] if before.exists() else []
        chosen = [pair["method"] for pair in pairs if pair["task"] == task]
        kept = {(row["method"], row["budget"]): row for row in known if row["method"] not in chosen}
        rows = summary(task, given.processes, kept, chosen, range(given.seeds))
        settings = {"task": task, "seeds": given.seeds, "device": DEVICE_NAME}
        content = {"made with": environment(), "settings": settings, "rows": rows}
        write_json(given.into.with_name(f"training_{task}.json"), content)


if __name__ == "__main__":
    main()
