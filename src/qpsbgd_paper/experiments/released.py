"""The form of the authors' released notebooks on Adult: sign activations to the output, and a projection of its own.

Written from a description of what they do, not from their code. The printed method is in `adult_convergence` and
`adult_accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qpsbgd.nn import sign
from qpsbgd_paper.framework.claims import Claim
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.methods import FROZEN, GUROBI, Line, Options, rates
from qpsbgd_paper.framework.runs import Result, Work
from qpsbgd_paper.framework.training import second_half

LATE_LOSS = Metric("late_loss", "loss in the second epoch", higher=False)
LATE = Metric("late_accuracy", "training accuracy, mean of the second half")
IDLE = "idle"
"""The share of columns whose gradient was zero, over all updates."""

CONSTANT = "constant"
"""The control that answers "no" to every row."""

STILL = "released-still"
"""The released projection without steps where there is no gradient."""

SETTINGS: Mapping[str, Job] = {
    "as released": {"first_only": True, "signs_move": True},
    "repaired": {"first_only": False, "signs_move": True},
}
OFFSET = 0.01
"""Added to gᵀx before its sign is taken, so that 0 counts as positive."""

SMALL = 12
"""Columns of at most so many inputs are answered exactly, by trying all vectors; others by local search."""


class SignLayer(nn.Module):
    """x W with W = sign(Ω), then a sign, whose gradient is that of a hardtanh with bounds ±1.001."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = (1.5 / (inputs + outputs)) ** 0.5
        self.latent = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))
        self.real = False
        self.rows: Tensor
        self.outputs: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Signs (B, outputs); keeps the rows and, for their gradient, the outputs."""
        weight = (
            self.latent if self.real and self.training else self.latent + (sign(self.latent) - self.latent).detach()
        )
        products = x @ weight
        soft = F.hardtanh(products, -1.001, 1.001)
        self.rows, self.outputs = x.detach(), soft + (sign(products) - soft).detach()
        if self.outputs.requires_grad:
            self.outputs.retain_grad()
        return self.outputs


def agreement(rows: Tensor, weights: Tensor) -> Tensor:
    """The g ∈ {−1, +1}ⁿ per column of `weights` (B, m) that maximise Σᵢ wᵢ sign(gᵀxᵢ + 0.01), for rows (B, n): (n, m).

    This is Σᵢ (sign(gᵀxᵢ) − wᵢ)² at its smallest, since squares of signs are 1. Exact for at most `SMALL` inputs;
    above, single flips from a start along Σᵢ wᵢxᵢ until none helps.
    """
    count = rows.shape[1]
    if count > SMALL:
        return _searched(rows, weights / weights.abs().sum(0))
    every = 1.0 - 2.0 * ((torch.arange(2**count)[:, None] >> torch.arange(count)) & 1)
    scores = torch.sign(every @ rows.T + OFFSET) @ weights
    return every[scores.argmax(0)].T


def _searched(rows: Tensor, weights: Tensor) -> Tensor:
    """The best flip of every column at a time; among equal sums of signs, the one with the larger margins."""
    unit = rows.abs().amax()

    spins = sign(rows.T @ weights)  # (n, m)
    moving = torch.arange(weights.shape[1])
    for _ in range(4 * len(spins)):
        own = spins[:, moving]
        products = rows @ own  # (B, columns)
        flipped = products.T[:, None] - 2 * own.T[:, :, None] * rows.T[None]  # (columns, n, B)
        now = _weighted(products.T, weights[:, moving].T, unit)
        then = _weighted(flipped, weights[:, moving].T[:, None], unit)
        best, place = then.max(1)
        helps = (best > now + 1e-9) & (now < 1)  # above 1 all rows agree already
        if not helps.any():
            break
        moving, place = moving[helps], place[helps]
        spins[place, moving] *= -1
    return spins


def _weighted(products: Tensor, weights: Tensor, unit: Tensor) -> Tensor:
    """The weighted sum of signs over rows, the last dimension, and a little of the margins."""
    margins = (products / (2 * unit)).clamp(-1, 1)
    return ((torch.sign(products + OFFSET) + 0.01 * margins) * weights).sum(-1)


@dataclass(frozen=True)
class Step:
    """One update of the latent weights by a method.

    Attributes:
        method: "sgd", "sign", "agreement" (the released projection), "proxquant", "frozen" or "constant".
        lr: The step size.
        by_feature: Divide every input by the squared norm of its feature over the batch, as the ten-layer net does.
        idle: The answer of "agreement" for a column whose gradient is zero, where every g is as good: 1, the same for
            all as a solver would give it, or 0 to leave the column alone.
    """

    method: str
    lr: float
    by_feature: bool
    idle: float

    @torch.no_grad()
    def __call__(self, layer: SignLayer, *, epoch: int) -> float:
        """Move the layer's latent weights, from what its last backward pass left; the share of idle columns."""
        grad, output_grad = layer.latent.grad, layer.outputs.grad
        assert grad is not None and output_grad is not None
        live = output_grad.any(0)
        if self.method == "agreement":
            rows = layer.rows
            if self.by_feature:
                rows = rows / rows.square().sum(0).clamp(min=1e-12)
            direction = torch.full_like(grad, self.idle)
            if live.any():
                direction[:, live] = agreement(rows, -output_grad[:, live])
            layer.latent.add_(direction, alpha=self.lr)
        elif self.method in ("sgd", "proxquant"):
            layer.latent.sub_(grad, alpha=self.lr)
        elif self.method == "sign":
            layer.latent.sub_(grad.sign(), alpha=self.lr)
        if self.method == "proxquant":
            nearest = sign(layer.latent)
            away = layer.latent - nearest
            layer.latent.copy_(nearest + away.sign() * (away.abs() - self.lr * 0.01 * (epoch + 1)).clamp(min=0))
        return 1 - live.double().mean().item()


def train(
    *,
    case: str,
    line: str,
    widths: Sequence[int],
    columns: Sequence[int] | None,
    batch: int,
    updates: int,
    epochs: int,
    by_feature: bool,
    first_only: bool,
    signs_move: bool,
    method: str,
    options: Options,
    seed: int,
    choosing: bool,
) -> Result:
    """One run: loss and accuracy on all rows after every update; rows in a fixed order after one shuffle."""
    inputs, targets = _load()
    torch.manual_seed(seed)
    rows = torch.randperm(len(inputs))[: batch * updates]
    inputs, targets = inputs[rows], targets[rows]
    if columns is not None:
        inputs = inputs[:, list(columns)]
    layers = [SignLayer(n, m) for n, m in pairwise(widths)]
    model = nn.Sequential(*layers)
    moves = method if signs_move or method != "sign" else FROZEN
    step = Step(moves, options.get("lr", 0.0), by_feature, options.get("idle", 1.0))
    for layer in layers:
        layer.real = method == "proxquant"
    losses, right, idle = [], [], []
    for epoch in range(epochs):
        for start in range(0, batch * updates, batch):
            model.train()
            model.zero_grad()
            part = slice(start, start + batch)
            torch.autograd.backward(F.binary_cross_entropy_with_logits(model(inputs[part])[:, 0], targets[part]))
            idle += [step(layer, epoch=epoch) for layer in (layers[:1] if first_only else layers)]
            model.eval()
            with torch.no_grad():
                logits = torch.full_like(targets, -1.0) if method == CONSTANT else model(inputs)[:, 0]
                losses.append(F.binary_cross_entropy_with_logits(logits, targets).item())
                right.append(((logits > 0) == (targets > 0.5)).double().mean().item())
    late = losses[-updates:]
    scored = {LATE_LOSS.key: sum(late) / len(late), LATE.key: second_half(right)}
    return {"loss": losses, "accuracy": right, **scored, IDLE: sum(idle) / len(idle)}


class Released(Comparison):
    """A notebook's network at its own learning rates, as released and repaired."""

    extra = (IDLE,)
    seeds: int
    choosing_seeds: int
    epochs: int
    paper: ClassVar[str]
    rates: ClassVar[Mapping[str, float]]
    shape: ClassVar[Job]

    def cases(self) -> Sequence[Case]:
        """As released, and with what keeps methods from training repaired."""
        return [Case(name, settings) for name, settings in SETTINGS.items()]

    def lines(self, case: Case) -> Mapping[str, Line]:
        """The notebooks' methods, and the controls."""
        lr = self.rates["agreement"]
        return {
            GUROBI: Line("QP-SBGD as released", "agreement", rates(lr, idle=1.0), "paper"),
            STILL: Line("QP-SBGD as released, idle columns stay", "agreement", rates(lr, idle=0.0), "variant"),
            "bc-sgd": Line("BC (SGD)", "sgd", rates(self.rates["sgd"])),
            "bc-sign": Line("BC (signSGD)", "sign", rates(self.rates["sign"])),
            "proxquant": Line("ProxQuant", "proxquant", rates(self.rates["proxquant"])),
            FROZEN: Line("control: binary layers frozen", FROZEN, ({},), "control"),
            CONSTANT: Line('control: always "no"', CONSTANT, ({},), "control"),
        }

    def job(self, case: Case, line: Line, options: Options) -> Job:
        """The network, the setting and the method."""
        return {**self.shape, "epochs": self.epochs, **case.settings, "method": line.method, "options": options}

    @property
    def work(self) -> Work:
        """See `train`."""
        return train

    def prepare(self) -> None:
        """Find the data."""
        _load()

    def quick(self) -> Comparison:
        """Two seeds, one epoch."""
        return replace(self, seeds=2, epochs=1)  # type: ignore[type-var]


_ABOUT = (
    "The form of the authors' released notebooks, from a description of what they do (own code): activations are "
    "signs, also at the output, so that logits are ±1 and a row's loss is 0.31 or 1.31; QP-SBGD moves every column "
    "along the g that maximises Σ −vᵢ sign(gᵀxᵢ), v the gradient at the activations. Where v is zero every g is as "
    "good; a solver gives the same one for all such columns, here +1, and they move too. "
)


@dataclass(frozen=True)
class ReleasedTen(Released):
    """123 → 128 (nine times) → 1, two epochs of 32 batches of 16."""

    name = "released-10"
    title = "Adult, ten layers: the released form"
    about = _ABOUT + (
        "As released, updates reach the first layer only, for every method; repaired, all layers. g by local search, "
        "as a column has 123 or 128 inputs."
    )
    paper = "Figure of adult-10: QP-SBGD ahead of BC; ProxQuant fails to train."
    metrics = (LATE_LOSS, LATE)
    series = (Series("loss", "loss on the training rows"),)
    chosen_by = LATE_LOSS
    rates = {"sgd": 0.01, "sign": 0.02, "agreement": 0.1, "proxquant": 0.1}  # noqa: RUF012
    shape = {  # noqa: RUF012
        "widths": [123, *[128] * 9, 1],
        "columns": None,
        "batch": 16,
        "updates": 32,
        "by_feature": True,
    }
    seeds: int = 5
    choosing_seeds: int = 0
    epochs: int = 2

    def claims(self) -> Sequence[Claim]:
        """QP-SBGD ahead of BC, ProxQuant fails."""
        found = []
        for case in SETTINGS:
            bc = ("bc-sgd", "bc-sign")
            found += [
                Claim("QP-SBGD is ahead of BC", GUROBI, LATE_LOSS.key, (case,), bc, number="figure"),
                Claim(
                    "ProxQuant fails to train: worse than the others",
                    "proxquant",
                    LATE_LOSS.key,
                    (case,),
                    (GUROBI, *bc),
                    relation="worse",
                    number="figure",
                ),
            ]
        return found


@dataclass(frozen=True)
class ReleasedThree(Released):
    """3 → 5 → 1, one epoch of 30 batches of 20."""

    name = "released-acc"
    title = "Adult, three features: the released form"
    about = _ABOUT + (
        "As released there is no branch for signSGD, so that its weights stay as they are; repaired, it moves. g is "
        "exact."
    )
    paper = "Figure of adult-acc: (G) best."
    metrics = (LATE, LATE_LOSS)
    series = (Series("accuracy", "training accuracy"),)
    chosen_by = LATE
    rates = {"sgd": 0.01, "sign": 0.005, "agreement": 0.008, "proxquant": 0.008}  # noqa: RUF012
    shape = {  # noqa: RUF012
        "widths": [3, 5, 1],
        "columns": [5, 21, 35],
        "batch": 20,
        "updates": 30,
        "by_feature": False,
    }
    seeds: int = 20
    choosing_seeds: int = 0
    epochs: int = 1

    def cases(self) -> Sequence[Case]:
        """As released signSGD does not move, repaired it does; all layers are updated in both."""
        moves = {"as released": False, "repaired": True}
        return [Case(name, {"first_only": False, "signs_move": moved}) for name, moved in moves.items()]

    def claims(self) -> Sequence[Claim]:
        """(G) is best."""
        others = ("bc-sgd", "bc-sign")
        return [Claim("QP-SBGD (G) is best", GUROBI, LATE.key, (case,), others, number="figure") for case in SETTINGS]


@cache
def _load() -> tuple[Tensor, Tensor]:
    from qpsbgd_paper.datasets import load_adult

    adult = load_adult()
    return adult.train_inputs, adult.train_targets
