"""Binary logistic regression on two blobs: the paper's first figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qpsbgd.nn import BinaryLinear
from qpsbgd_paper.framework import methods
from qpsbgd_paper.framework.claims import Claim, from_figure
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.methods import DWAVE, GUROBI, Line, Options, SolverChoice
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import fit, random_rows, second_half

FIXED, TUNED = "paper's learning rates", "chosen learning rates"
LATE = Metric("late_loss", "loss, mean of the second half", higher=False)


def train(*, points: int, batch: int, steps: int, method: str, options: Options, seed: int, **_: Any) -> Result:
    """One run: the loss on all data before every step."""
    inputs, targets = blobs(points, seed=seed)
    torch.manual_seed(seed)
    layer = BinaryLinear(3, 1, gain=1.0)
    losses: list[float] = []

    def loss(rows: Tensor | slice) -> Tensor:
        return F.binary_cross_entropy_with_logits(layer(inputs[rows])[:, 0], targets[rows])

    fit(
        layer,
        loss,
        rows=random_rows(len(inputs), batch, steps),
        optimizers=[methods.BUILDERS[method](layer, options, steps)],
        before=lambda: losses.append(loss(slice(None)).item()),
        summed=methods.summed(options),
    )
    return {"loss": losses, LATE.key: second_half(losses)}


def blobs(points: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Two linearly separable blobs in the plane with an intercept: inputs (2 · points, 3) and targets 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    angle = 2 * torch.pi * torch.rand((), generator=generator)
    centre = 1.5 * torch.stack([angle.cos(), angle.sin()])
    noise = (0.4 * torch.randn(2, points, 2, generator=generator)).clamp(-1, 1)
    plane = torch.cat([noise[0] - centre, noise[1] + centre])
    targets = torch.cat([torch.zeros(points), torch.ones(points)])
    return torch.cat([plane, torch.ones(2 * points, 1)], dim=1), targets


@dataclass(frozen=True)
class LogReg(Comparison):
    """3 inputs, 1 output, `points` per blob, `batch` rows per step; every seed has its own data set and start."""

    name = "logreg"
    title = "Binary logistic regression"
    about = (
        "Two linearly separable blobs with an intercept: three weights ±1, sigmoid, binary cross entropy on all data "
        "before every step. Once at the paper's learning rates, once at rates chosen on other data sets: at the "
        "paper's 5e-5, BC (SGD) moves no weight across zero."
    )
    paper = "Figure: (G) best after the first phase, (D) slower."
    metrics = (LATE,)
    series = (Series("loss", "loss"),)
    chosen_by = LATE
    by_case = {FIXED: {}, TUNED: {}}
    passed = ("points", "batch", "steps")
    work = staticmethod(train)
    needs = (partial(methods.prepare_virtual_chip, 3),)
    small = {"seeds": 3, "choosing_seeds": 0, "points": 30, "steps": 40}
    seeds: int = 10
    choosing_seeds: int = 2
    points: int = 100
    batch: int = 20
    steps: int = 150
    solver: SolverChoice | None = None

    def lines(self, case: Case) -> Mapping[str, Line]:
        fixed = case.name == FIXED
        grid = (0.05,) if fixed else (0.01, 0.05, 0.2)
        lines = methods.paper_lines(
            ours=methods.rates(*grid, projection="spins") if fixed else None,
            literal=grid,
            virtual=True,
            solver=self.solver,
            sgd=methods.rates(5e-5) if fixed else methods.sgd_grid(0.05, 0.2, 0.5),
            sign=methods.rates(*grid),
            adam=methods.rates(*grid),
            proxquant=methods.proxquant_grid((0.05, 0.2, 0.5), pulls=(0.1, 1.0)),
        )
        if fixed:
            lines = {name: line for name, line in lines.items() if name not in ("bc-adam", "proxquant")}
            lines |= methods.virtual_line(lr=0.01)
        return lines

    def claims(self) -> Sequence[Claim]:
        others = (DWAVE, "bc-sgd", "bc-sign")
        best = "QP-SBGD (G) is best after the first phase"
        claims = [
            Claim(f"{best} ({case})", GUROBI, LATE.key, (case,), others, **from_figure(case == FIXED))
            for case in self.by_case
        ]
        slower: dict[str, Any] = {"relation": "worse", "hardware": True, **from_figure(True)}
        claims.append(Claim("QP-SBGD (D) is slower than (G)", DWAVE, LATE.key, (FIXED,), (GUROBI,), **slower))
        return [*claims, *methods.aims(LATE.key, TUNED)]
