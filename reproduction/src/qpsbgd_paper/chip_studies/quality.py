"""How accuracy falls with the quality of the solver's answers: from exact over a noisy chip to coin tosses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from qpsbgd.optim import QPSBGD
from qpsbgd.projections import Spins
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd_paper.chip_studies.mnist_qubos import Watched
from qpsbgd_paper.experiments.mnist import SETTINGS, split
from qpsbgd_paper.framework.claims import TEST, Claim, deviation, judge
from qpsbgd_paper.framework.experiment import Job, Study
from qpsbgd_paper.framework.methods import VIRTUAL_CHIP, chosen_solver, prepare_virtual_chip
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import BinaryMLP, accuracy, fit_classifier
from qpsbgd_qubo.solvers.exact.exact import Exact

PAIRS = ("1/2", "1/7")
FLIPS = (0.1, 0.3, 0.4, 0.5)
ERRORS = (1, 100)


def _chip(factor: int, **others: Any) -> dict[str, Any]:
    return {**VIRTUAL_CHIP, "h_error": 0.02 * factor, "j_error": 0.01 * factor, **others}


SOLVERS: Mapping[str, Mapping[str, Any]] = {
    "exact": {"name": "exact"},
    **{f"virtual QPU, errors × {factor}": _chip(factor) for factor in ERRORS},
    "virtual QPU, one read": _chip(1, num_reads=1),
    **{f"exact, {rate:.0%} of the spins flipped": {"name": "flipped", "rate": rate} for rate in FLIPS},
}
"""From exact answers to random ones."""

KINDS = {"exact": "exact", "virtual-qpu": "virtual QPU", "flipped": "exact, spins flipped"}
"""Solvers by name, as figures call them."""

FIGURES = {"train": "training accuracy", "test": "test accuracy"}


def train(*, label: str, solver: Mapping[str, Any], pair: str, seed: int, steps: int) -> Result:
    """One run: the mean energy gap of all answers, and accuracies in the second half of training."""
    settings = SETTINGS["long"]
    inputs, targets, test_inputs, test_targets = split(pair, seed=seed, choosing=False)
    torch.manual_seed(seed)
    model = BinaryMLP([16, 4, 4, 2], gain=settings["gain"], constant=settings["constant"])
    watched = Watched(_solver(solver, seed=seed))
    how: dict[str, Any] = {"optimizers": [QPSBGD(model, lr=0.01, projection=Spins(solver=watched))], "every": 4}
    how["measure"] = lambda: (accuracy(model(inputs), targets), accuracy(model(test_inputs), test_targets))
    how["falling_over"] = steps
    curve = fit_classifier(model, (inputs, targets), batch=settings["batch"], steps=steps, **how)
    train, test = (float(np.mean(part)) for part in zip(*curve[len(curve) // 2 :], strict=True))
    answers = [pair for step in watched.seen for pair in step]
    gaps = [energy_gaps(family, answer, best=Exact().solve(family)) for family, answer in answers]
    return {"gap": torch.cat(gaps).mean().item(), "train": train, "test": test}


def energy_gaps(family: QuboFamily, solution: Solution, *, best: Solution) -> torch.Tensor:
    """(E − E₀)/(E_r − E₀) of every column with a gradient: 0 for an optimum, 1 for the mean of random spins."""
    exact = family.to("cpu", torch.float64)
    least = exact.energies(best.spins.double())
    above = exact.energies(solution.spins.double()) - least
    span = exact.quadratic.trace() + exact.offset - least
    return (above / span)[(span > 1e-12) & exact.linear.any(0)]


class _Flipped(Solver):
    """Exact answers, of which every spin is flipped with a probability."""

    def __init__(self, rate: float, seed: int) -> None:
        self._rate, self._generator = rate, torch.Generator().manual_seed(seed)

    def _solve(self, family: QuboFamily) -> Solution:
        spins = Exact().solve(family).spins
        flipped = (torch.rand(spins.shape, generator=self._generator) < self._rate).numpy()
        return Solution.of(family, np.where(flipped, -spins, spins))


def _solver(options: Mapping[str, Any], *, seed: int) -> Solver:
    if options["name"] == "flipped":
        return _Flipped(options["rate"], seed)
    return chosen_solver(options)


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f}" + (f" ± {deviation(values):.3f}" if len(values) > 1 else "")


@dataclass(frozen=True)
class Quality(Study):
    """16 → 4 → 4 → 2 on two pairs of digits, with the same options for every solver."""

    name = "quality"
    title = "Accuracy against the quality of the solver"
    about = (
        "The network and data of the experiment mnist in its long setting, digits 1/2 and 1/7, with the same options "
        "(`Spins`, lr 0.01) for every solver: exact; a virtual chip with its default control errors and "
        "with many times larger ones; and exact answers in which every spin is flipped with some probability. The "
        "energy gap of an answer is (E − E₀)/(E_r − E₀), with the optimum E₀ and the mean energy E_r of random spins: "
        "0 is exact, 1 is a coin toss. Accuracies are means over the second half of training, without any choice of "
        "best weights."
    )
    paper = "Solutions of higher quality train better: (G) is ahead of (D), and larger spectral gaps would help (D)."
    work = staticmethod(train)
    needs = (*(partial(split, pair, seed=0, choosing=False) for pair in PAIRS), partial(prepare_virtual_chip, 17, 5))
    small = {
        "seeds": 2,
        "steps": 15,
        "solvers": ("exact", "virtual QPU, errors × 100", "virtual QPU, one read", "exact, 50% of the spins flipped"),
    }
    seeds: int = 4
    steps: int = 150
    solvers: tuple[str, ...] = tuple(SOLVERS)

    def jobs(self) -> Sequence[Job]:
        return [
            {"label": label, "solver": dict(SOLVERS[label]), "pair": pair, "seed": seed, "steps": self.steps}
            for label in self.solvers
            for pair in PAIRS
            for seed in range(self.seeds)
        ]

    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        figures: dict[tuple[str, str, str], list[float]] = {}
        for job, result in zip(self.jobs(), results, strict=True):
            for key in ("gap", *FIGURES):
                value = np.nan if result[key] is None else result[key]
                figures.setdefault((job["pair"], job["label"], key), []).append(value)
        body = []
        for label in self.solvers:
            gap = np.mean([figures[pair, label, "gap"] for pair in PAIRS])
            cells = [_mean(figures[pair, label, key]) for pair in PAIRS for key in FIGURES]
            body.append([label, f"{gap:.4f}", *cells])
        head = ["solver", "energy gap", *(f"{name}, {pair}" for pair in PAIRS for name in FIGURES.values())]
        coin = self.solvers[-1]
        says: dict[str, Any] = {"number": "in words", "hardware": True, "source": "beyond"}
        claims = []
        for other in (solver for solver in self.solvers if solver.startswith("virtual QPU")):
            text = f"Exact answers train better than {other} (training accuracy)"
            claim = Claim(text, "exact", "train", PAIRS, (other,), **says)
            claims.append(judge(claim, figures, {"train": True}, controls=(coin,)))
        return {
            "figures": [self._figure(figures)],
            "tables": [{"title": "accuracy by solver, second half of training", "head": head, "body": body}],
            "test": TEST,
            "claims": claims,
        }

    def _figure(self, figures: Mapping[tuple[str, str, str], list[float]]) -> dict[str, Any]:
        kinds = {
            kind: [label for label in self.solvers if SOLVERS[label]["name"] == name] for name, kind in KINDS.items()
        }
        panels = []
        for key, name in FIGURES.items():
            for pair in PAIRS:
                lines = []
                for colour, (kind, labels) in enumerate(kinds.items()):
                    order = sorted(labels, key=lambda label: float(np.mean(figures[pair, label, "gap"])))
                    values = [figures[pair, label, key] for label in order]
                    x = [round(float(np.mean(figures[pair, label, "gap"])), 5) for label in order]
                    y = [round(float(np.mean(each)), 4) for each in values]
                    error = [round(deviation(each), 4) for each in values]
                    look = {"label": kind, "style": "points", "colour": colour}
                    lines.append({"x": x, "y": y, "error": error, **look})
                panels.append({"title": f"{name}, {pair}", "x_label": "mean energy gap", "y_label": "", "lines": lines})
        caption = "One point per solver, mean of the seeds with one standard deviation; gap 0: exact, 1: coin tosses."
        return {"name": "gap", "title": self.title, "caption": caption, "kind": "lines", "panels": panels, "columns": 2}
