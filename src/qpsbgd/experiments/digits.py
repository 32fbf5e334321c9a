"""Handwritten digits: a binary MLP 64-128-10 by every method at its best options, for a short and a long budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qpsbgd.experiments.methods import METHODS, Options
from qpsbgd.experiments.runs import Finished, run_jobs
from qpsbgd.nn import BinaryLinear


@dataclass(frozen=True)
class Digits:
    """Settings of the experiment.

    Attributes:
        hidden: Width of the hidden layer.
        batch: Rows per step.
        budgets: Epochs of training; every budget has its own choice of options and its own line in the table.
        seeds: Runs per method.
        choosing_seeds: Runs per point of a method's grid, scored on validation data.
        methods: Names from `METHODS`.
    """

    hidden: int = 128
    batch: int = 32
    budgets: tuple[int, ...] = (2, 10)
    seeds: int = 5
    choosing_seeds: int = 2
    methods: tuple[str, ...] = tuple(METHODS)

    def _job(self, method: str, options: Options, *, epochs: int, seed: int, score_on: str) -> dict[str, Any]:
        job = {"hidden": self.hidden, "batch": self.batch, "epochs": epochs, "method": method}
        return {**job, "options": options, "seed": seed, "score_on": score_on}

    def choosing_jobs(self) -> list[dict[str, Any]]:
        """All points of all grids, scored on validation data; the seeds are not those of the final runs."""
        return [
            self._job(method, options, epochs=epochs, seed=1000 + seed, score_on="validation")
            for seed in range(self.choosing_seeds)
            for epochs in self.budgets
            for method in self.methods
            for options in METHODS[method].grid
        ]

    def final_jobs(self, chosen: dict[tuple[str, int], Options]) -> list[dict[str, Any]]:
        """The runs of the table, scored on test data."""
        return [
            self._job(method, chosen[method, epochs], epochs=epochs, seed=seed, score_on="test")
            for seed in range(self.seeds)
            for epochs in self.budgets
            for method in self.methods
        ]


def run(settings: Digits, *, folder: Path, workers: int) -> Iterator[tuple[str, int, int]]:
    """Do all that is not done yet; yields (phase, jobs done, jobs in all) as it goes on.

    `summary` then gives the tables, from the files in `folder`.
    """
    finished: list[Finished] = []
    choosing = settings.choosing_jobs()
    final = len(settings.budgets) * len(settings.methods) * settings.seeds
    yield "choosing options on validation data", 0, len(choosing) + final
    for done in run_jobs(train, choosing, folder=folder, workers=workers):
        finished.append(done)
        yield "choosing options on validation data", len(finished), len(choosing) + final
    chosen = _choose(finished)
    for count, _ in enumerate(
        run_jobs(train, settings.final_jobs(chosen), folder=folder, workers=workers), start=len(choosing) + 1
    ):
        yield "training", count, len(choosing) + final


def summary(settings: Digits, *, folder: Path) -> dict[str, Any]:
    """Everything the table and the curves show, from finished runs.

    Per budget and method: the chosen options, accuracies of all seeds at the end, and curves per epoch.
    """
    chosen = _choose(list(run_jobs(train, settings.choosing_jobs(), folder=folder)))
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for done in run_jobs(train, settings.final_jobs(chosen), folder=folder):
        method, epochs = done.settings["method"], done.settings["epochs"]
        row = rows.setdefault(
            (method, epochs),
            {
                "method": method,
                "label": METHODS[method].label,
                "epochs": epochs,
                "options": chosen[method, epochs],
                "accuracies": [],
                "curves": [],
                "losses": [],
            },
        )
        row["accuracies"].append(done.result["accuracy"][-1])
        row["curves"].append(done.result["accuracy"])
        row["losses"].append(done.result["loss"])
    return {"settings": {"hidden": settings.hidden, "batch": settings.batch}, "rows": list(rows.values())}


def _choose(finished: list[Finished]) -> dict[tuple[str, int], Options]:
    """The options of best mean validation accuracy for every method and budget."""
    scores: dict[tuple[str, int], dict[str, tuple[Options, list[float]]]] = {}
    for done in finished:
        key = done.settings["method"], done.settings["epochs"]
        options = done.settings["options"]
        points = scores.setdefault(key, {})
        points.setdefault(repr(options), (options, []))[1].append(done.result["accuracy"][-1])
    # Ties go to the earlier point of the grid, whatever order the runs ended in.
    chosen = {}
    for (method, epochs), points in scores.items():
        means = [float(np.mean(points[repr(options)][1])) for options in METHODS[method].grid]
        chosen[method, epochs] = METHODS[method].grid[int(np.argmax(means))]
    return chosen


def train(
    *, hidden: int, batch: int, epochs: int, method: str, options: Options, seed: int, score_on: str
) -> dict[str, Any]:
    """One run: accuracy on the held-out part and mean training loss after every epoch."""
    (inputs, targets), (held_inputs, held_targets) = _load(score_on)
    torch.manual_seed(seed)
    model = nn.Sequential(BinaryLinear(64, hidden), nn.Hardtanh(), BinaryLinear(hidden, 10))
    steps = len(inputs) // batch
    optimizer = METHODS[method].build(model, options, epochs * steps)
    curves: dict[str, list[float]] = {"accuracy": [], "loss": []}
    for _ in range(epochs):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(inputs))[: steps * batch].reshape(steps, batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[rows]), targets[rows])
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.item()
        curves["loss"].append(total / steps)
        model.eval()
        with torch.no_grad():
            right = model(held_inputs).argmax(1) == held_targets
        curves["accuracy"].append(right.double().mean().item())
    return curves


def _load(score_on: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and held-out part of scikit-learn's digits, pixels in [−1, 1], always split in the same way.

    The 360 test digits are held out for "test". For "validation", 287 others are, and the test digits are not seen.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError("the digits need scikit-learn: pip install 'qpsbgd[experiments]'") from error
    pixels, digits = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
    rest, held = train_test_split(np.arange(len(digits)), test_size=360, random_state=0, stratify=digits)
    if score_on == "validation":
        rest, held = train_test_split(rest, test_size=287, random_state=0, stratify=digits[rest])
    elif score_on != "test":
        raise ValueError(f'score_on must be "validation" or "test", got {score_on!r}')
    return (inputs[rest], targets[rest]), (inputs[held], targets[held])
