"""Binary logistic regression on two blobs: the paper's first figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from qpsbgd.nn import BinaryLinear
from qpsbgd_paper.framework.claims import Claim, of_the_paper
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.methods import (
    BUILDERS,
    DWAVE,
    GUROBI,
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
    virtual_line,
)
from qpsbgd_paper.framework.runs import Result, Work
from qpsbgd_paper.framework.training import fit, random_rows, second_half

LATE = Metric("late_loss", "loss, mean of the second half", higher=False)


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
    seeds: int = 10
    choosing_seeds: int = 2
    points: int = 100
    batch: int = 20
    steps: int = 150
    solver: SolverChoice | None = None

    def cases(self) -> Sequence[Case]:
        """The paper's learning rates, and chosen ones."""
        return [Case("paper's learning rates", {"tuned": False}), Case("chosen learning rates", {"tuned": True})]

    def lines(self, case: Case) -> Mapping[str, Line]:
        """The paper's four methods and our forms; at chosen rates the other baselines too."""
        fixed = not case.settings["tuned"]
        grid = (0.05,) if fixed else (0.01, 0.05, 0.2)
        found = paper_lines(
            ours=rates(*grid, projection="spins") if fixed else None,
            literal=grid,
            virtual=True,
            solver=self.solver,
            sgd=rates(5e-5) if fixed else sgd_grid(0.05, 0.2, 0.5),
            sign=rates(*grid),
            adam=rates(*grid),
            proxquant=proxquant_grid((0.05, 0.2, 0.5), pulls=(0.1, 1.0)),
        )
        if fixed:
            found = {name: line for name, line in found.items() if name not in ("bc-adam", "proxquant")}
            found |= virtual_line(lr=0.01)
        return found

    def job(self, case: Case, line: Line, options: Options) -> Job:
        """The data's size and the optimiser."""
        shape = {"points": self.points, "batch": self.batch, "steps": self.steps}
        return {**shape, "method": line.method, "options": options}

    @property
    def work(self) -> Work:
        """See `train`."""
        return train

    def prepare(self) -> None:
        """Find tiles on the virtual chip."""
        prepare_virtual_chip(3)

    def quick(self) -> LogReg:
        """Few data sets and steps."""
        return replace(self, seeds=3, choosing_seeds=0, points=30, steps=40)

    def claims(self) -> Sequence[Claim]:
        """(G) is best after the first phase; (D) is slower."""
        fixed, tuned = (case.name for case in self.cases())
        others = (DWAVE, "bc-sgd", "bc-sign")
        best = [
            Claim(
                f"QP-SBGD (G) is best after the first phase ({name})",
                GUROBI,
                LATE.key,
                (name,),
                others,
                number="figure",
                source=of_the_paper(name == fixed),
            )
            for name in (fixed, tuned)
        ]
        slower = Claim(
            "QP-SBGD (D) is slower than (G)",
            DWAVE,
            LATE.key,
            (fixed,),
            (GUROBI,),
            relation="worse",
            number="figure",
            hardware=True,
        )
        return [*best, slower, *aims(LATE.key, tuned)]


def train(
    *,
    case: str,
    line: str,
    points: int,
    batch: int,
    steps: int,
    method: str,
    options: Options,
    seed: int,
    choosing: bool,
) -> Result:
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
        optimizers=[BUILDERS[method](layer, options, steps)],
        before=lambda: losses.append(loss(slice(None)).item()),
        summed=summed(options),
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
