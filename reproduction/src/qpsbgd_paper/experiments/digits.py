"""Handwritten digits: a binary MLP 64-128-10 by every method, at defaults and tuned, for a short and a long budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd_paper.framework import methods
from qpsbgd_paper.framework.claims import Claim
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.methods import SPINS, Line, Options
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import BinaryMLP, accuracy, fit_classifier

FINAL = Metric("final", "test accuracy")


def train(*, hidden: int, epochs: int, method: str, options: Options, seed: int, choosing: bool, **_: Any) -> Result:
    """One run: accuracy on the held-out part after every epoch."""
    (inputs, targets), (held_inputs, held_targets) = split_digits("validation" if choosing else "test")
    torch.manual_seed(seed)
    model = BinaryMLP([64, hidden, 10], gain="fan_in")
    steps = len(inputs) // 32
    how: dict[str, Any] = {"optimizers": [methods.BUILDERS[method](model, options, epochs * steps)], "every": steps}
    how["measure"] = lambda: accuracy(model(held_inputs), held_targets)
    curve = fit_classifier(model, (inputs, targets), batch=32, steps=epochs * steps, **how)
    return {"accuracy": curve, FINAL.key: curve[-1]}


@cache
def split_digits(score_on: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and held-out part of scikit-learn's digits, pixels in [−1, 1], always split in the same way.

    The 360 test digits are held out for "test". For "validation", 287 others are, and the test digits are not seen.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, digits = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
    rest, held = train_test_split(np.arange(len(digits)), test_size=360, random_state=0, stratify=digits)
    if score_on == "validation":
        rest, held = train_test_split(rest, test_size=287, random_state=0, stratify=digits[rest])
    elif score_on != "test":
        raise ValueError(f'score_on must be "validation" or "test", got {score_on!r}')
    return (inputs[rest], targets[rest]), (inputs[held], targets[held])


@dataclass(frozen=True)
class Digits(Comparison):
    """64 → 128 → 10 on scikit-learn's digits; every budget has its own choice of options."""

    name = "digits"
    title = "Handwritten digits"
    about = (
        "A network 64-128-10 with weights ±1. Every method gets the same number of epochs, batches of 32, and a "
        'learning rate that falls to zero along a cosine. "Defaults" sets no other option; "tuned" chooses options '
        "on validation data, separately for each budget."
    )
    paper = ""
    undecided = "a tiny data set: with 1,797 images, differences drown in the noise between seeds"
    metrics = (FINAL,)
    series = (Series("accuracy", "test accuracy", x_label="epoch", first=1),)
    chosen_by = Metric(FINAL.key, "validation accuracy")
    passed = ("hidden",)
    finalist_seeds = 2  # those of the choice: the demo takes less than three minutes
    work = staticmethod(train)
    needs = (partial(split_digits, "test"),)
    small = {"budgets": (1,), "hidden": 16, "seeds": 2, "choosing_seeds": 0}
    budgets: tuple[int, ...] = (2, 10)
    hidden: int = 128
    seeds: int = 5
    choosing_seeds: int = 2

    def cases(self) -> Sequence[Case]:
        return [
            Case(f"{epochs} epochs, {options}", {"epochs": epochs})
            for epochs in self.budgets
            for options in ("defaults", "tuned")
        ]

    def lines(self, case: Case) -> Mapping[str, Line]:
        spins = methods.rates(0.003, 0.01, 0.03, projection="spins")
        lines = {
            SPINS: Line("QP-SBGD (spins)", "qpsbgd", spins, "ours"),
            **methods.ridge_line(),
            **methods.baselines(
                sgd=methods.sgd_grid(0.3, 1.0, 3.0),
                sign=methods.rates(0.001, 0.003, 0.01) + methods.rates(0.001, 0.003, 0.01, momentum=0.9),
                adam=methods.rates(0.003, 0.01, 0.03),
                proxquant=methods.proxquant_grid((3.0, 10.0), pulls=(0.1, 1.0)),
            ),
            **methods.control_lines(),
        }
        lines = {name: line.with_options(schedule="cosine") for name, line in lines.items()}
        return lines if case.name.endswith("tuned") else {name: line.at_defaults() for name, line in lines.items()}

    def claims(self) -> Sequence[Claim]:
        return [aim for case in self.cases() for aim in methods.aims(FINAL.key, case.name)]

    def summary(self, *, folder: Path) -> dict[str, Any]:
        summary = super().summary(folder=folder)
        case = summary["cases"][-1]
        means = {
            kind: max((np.mean(row["values"][FINAL.key]), row["line"]) for row in case["rows"] if row["kind"] == kind)
            for kind in ("ours", "baseline")
        }
        names = {row["line"]: row["label"].replace("BC ", "BinaryConnect ") for row in case["rows"]}
        (ours, line), (theirs, rival) = means["ours"], means["baseline"]
        seeds = f"mean of {self.seeds} seeds" if self.seeds > 1 else "one seed"
        note = f"{names[line]} against the best baseline, {names[rival]}: {case['label']}, {seeds}."
        return {**summary, "tiles": [{"value": f"{100 * ours:.1f} vs {100 * theirs:.1f}\u00a0%", "note": note}]}
