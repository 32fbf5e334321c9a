"""Adult, training accuracy of a tiny network on three chosen features: a figure of the paper's appendix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from qpsbgd_paper.experiments.adult_convergence import GAINS
from qpsbgd_paper.framework.claims import ACCURACY_MARGIN, Claim, of_the_paper
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.methods import (
    BUILDERS,
    DWAVE,
    GUROBI,
    PAPER_BASELINES,
    Line,
    Options,
    SolverChoice,
    aims,
    paper_lines,
    prepare_virtual_chip,
    proxquant_grid,
    rates,
    sgd_grid,
    summed,
)
from qpsbgd_paper.framework.runs import Result, Work
from qpsbgd_paper.framework.training import BinaryMLP, accuracy, batches, fit, second_half

LATE = Metric("late_accuracy", "training accuracy, mean of the second half")
BEST = Metric("best_accuracy", "training accuracy, best weights")
ROWS = 600


@dataclass(frozen=True)
class AdultAccuracy(Comparison):
    """3 → 5 → 2, 30 batches of 20."""

    name = "adult-acc"
    title = "Adult, three features: training accuracy"
    about = (
        "Binary network 3-5-2 on LIBSVM's columns 6, 22 and 36 of Adult, 600 rows, 30 batches of 20 per epoch, cross "
        "entropy. The majority class alone has an accuracy of 0.754."
    )
    paper = "Figure: (G) best; (D) at least as good as BC (signSGD)."
    metrics = (LATE, BEST)
    series = (Series("accuracy", "training accuracy"),)
    chosen_by = LATE
    seeds: int = 10
    choosing_seeds: int = 2
    epochs: int = 4
    solver: SolverChoice | None = None

    def cases(self) -> Sequence[Case]:
        """The paper's gain and 1/√n."""
        return [Case(name, {"gain": gain}) for name, gain in GAINS.items()]

    def lines(self, case: Case) -> Mapping[str, Line]:
        """QP-SBGD in both forms, on a virtual chip, and the baselines; the paper's rates are in the grids."""
        return paper_lines(
            literal=(0.008, 0.03),
            virtual=True,
            random=True,
            solver=self.solver,
            sgd=sgd_grid(0.01, 0.1, 1.0),
            sign=rates(0.005, 0.01, 0.03),
            adam=rates(0.003, 0.01, 0.03),
            proxquant=proxquant_grid((0.1, 1.0), pulls=(0.1, 1.0)),
        )

    def job(self, case: Case, line: Line, options: Options) -> Job:
        """Length of training and the optimiser."""
        return {"epochs": self.epochs, **case.settings, "method": line.method, "options": options}

    @property
    def work(self) -> Work:
        """See `train`."""
        return train

    def prepare(self) -> None:
        """Find the data, and tiles on the virtual chip."""
        _load()
        prepare_virtual_chip(3, 5)

    def quick(self) -> AdultAccuracy:
        """Two seeds, one epoch."""
        return replace(self, seeds=2, choosing_seeds=0, epochs=1)

    def claims(self) -> Sequence[Claim]:
        """(G) is best, (D) at least BC (signSGD)."""
        found = []
        for case in GAINS:
            own: dict[str, Any] = {"number": "figure", "source": of_the_paper(GAINS[case] == 1)}
            found += [
                Claim("QP-SBGD (G) is best", GUROBI, LATE.key, (case,), (DWAVE, *PAPER_BASELINES), **own),
                Claim(
                    "QP-SBGD (D) is better than or on par with BC (signSGD)",
                    DWAVE,
                    LATE.key,
                    (case,),
                    ("bc-sign",),
                    relation="at least",
                    margin=ACCURACY_MARGIN,
                    hardware=True,
                    **own,
                ),
                *aims(LATE.key, case),
            ]
        return found


def train(
    *, case: str, line: str, epochs: int, gain: Any, method: str, options: Options, seed: int, choosing: bool
) -> Result:
    """One run: training accuracy after every step."""
    inputs, targets = _load()
    torch.manual_seed(seed)
    rows = torch.randperm(len(inputs))[:ROWS]
    inputs, targets = inputs[rows], targets[rows]
    model = BinaryMLP([3, 5, 2], gain=gain)
    steps = 30 * epochs
    curve = fit(
        model,
        lambda batch: F.cross_entropy(model(inputs[batch]), targets[batch]),
        rows=batches(ROWS, 20, steps),
        optimizers=[BUILDERS[method](model, options, steps)],
        measure=lambda: accuracy(model(inputs), targets),
        summed=summed(options),
    )
    return {"accuracy": curve, LATE.key: second_half(curve), BEST.key: max(curve)}


@cache
def _load() -> tuple[torch.Tensor, torch.Tensor]:
    from qpsbgd_paper.datasets import load_adult
    from qpsbgd_paper.datasets.adult import THREE_COLUMNS

    adult = load_adult()
    return adult.train_inputs[:, list(THREE_COLUMNS)], adult.train_targets.long()
