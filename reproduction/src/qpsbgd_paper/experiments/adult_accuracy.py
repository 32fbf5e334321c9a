"""Adult, training accuracy of a tiny network on three chosen features: a figure of the paper's appendix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from qpsbgd_paper.datasets.adult import training_rows
from qpsbgd_paper.experiments.adult_convergence import BY_GAIN, GAINS
from qpsbgd_paper.framework import methods
from qpsbgd_paper.framework.claims import ACCURACY_MARGIN, Claim, from_figure
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.methods import DWAVE, GUROBI, PAPER_BASELINES, Line, Options, SolverChoice
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import BinaryMLP, accuracy, fit_classifier, second_half

LATE = Metric("late_accuracy", "training accuracy, mean of the second half")
BEST = Metric("best_accuracy", "training accuracy, best weights")
ROWS = 600


def train(*, epochs: int, gain: Any, method: str, options: Options, seed: int, **_: Any) -> Result:
    """One run: training accuracy after every step."""
    inputs, targets = training_rows("three")
    torch.manual_seed(seed)
    rows = torch.randperm(len(inputs))[:ROWS]
    inputs, targets = inputs[rows], targets[rows].long()
    model = BinaryMLP([3, 5, 2], gain=gain)
    steps = 30 * epochs
    how: dict[str, Any] = {"measure": lambda: accuracy(model(inputs), targets), "summed": methods.summed(options)}
    optimizers = [methods.BUILDERS[method](model, options, steps)]
    curve = fit_classifier(model, (inputs, targets), batch=20, steps=steps, optimizers=optimizers, **how)
    return {"accuracy": curve, LATE.key: second_half(curve), BEST.key: max(curve)}


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
    by_case = BY_GAIN
    passed = ("epochs",)
    work = staticmethod(train)
    needs = (partial(training_rows, "three"), partial(methods.prepare_virtual_chip, 3, 5))
    small = {"seeds": 2, "choosing_seeds": 0, "epochs": 1}
    seeds: int = 10
    choosing_seeds: int = 2
    epochs: int = 4
    solver: SolverChoice | None = None

    def lines(self, case: Case) -> Mapping[str, Line]:
        return methods.paper_lines(
            literal=(0.008, 0.03),
            virtual=True,
            random=True,
            solver=self.solver,
            sgd=methods.sgd_grid(0.01, 0.1, 1.0),
            sign=methods.rates(0.005, 0.01, 0.03),
            adam=methods.rates(0.003, 0.01, 0.03),
            proxquant=methods.proxquant_grid((0.1, 1.0), pulls=(0.1, 1.0)),
        )

    def claims(self) -> Sequence[Claim]:
        claims = []
        for case in GAINS:
            says = from_figure(GAINS[case] == 1)
            claims.append(Claim("QP-SBGD (G) is best", GUROBI, LATE.key, (case,), (DWAVE, *PAPER_BASELINES), **says))
            text = "QP-SBGD (D) is better than or on par with BC (signSGD)"
            says |= {"relation": "at least", "margin": ACCURACY_MARGIN, "hardware": True}
            claims.append(Claim(text, DWAVE, LATE.key, (case,), ("bc-sign",), **says))
            claims += methods.aims(LATE.key, case)
        return claims
