"""The authors' released notebooks on Adult, beside the curves that they store.

Their form has sign activations to the output, and a projection of its own. It is written from a description of what
they do (github.com/mk2510/QPSBGD, commit 0889d1b), not from their code. The printed method is in `adult_convergence`
and `adult_accuracy`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter1d
from torch import Tensor, nn

from qpsbgd.nn import sign
from qpsbgd.optim.updates import proximal_step
from qpsbgd_paper.datasets.adult import training_rows
from qpsbgd_paper.framework.claims import Claim, from_figure
from qpsbgd_paper.framework.comparison import Case, Comparison, Metric, Series
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.methods import FROZEN, GUROBI, Line, Options, rates
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import second_half

LATE_LOSS = Metric("late_loss", "loss of the batches of the second epoch", higher=False)
LATE = Metric("late_accuracy", "accuracy on the batch just trained on, mean of the second half")
IDLE = "idle"  # the share of columns whose gradient was zero, over all updates

CONSTANT = "constant"  # the control that answers "no" to every row

MINUS, STILL, ALL_ONES = "released-minus", "released-still", "released-all-ones"
"""The released projection with −1 as the answer of idle columns, with no step there, and with +1 for every weight."""

REPAIRED = ", repaired"  # ends the name of the case in which what keeps methods from training is repaired

BC = ("bc-sgd", "bc-sign")

DRAWN = Path(__file__).with_name("drawn_curves.json")
"""The curves in the notebooks' figures, read off by `benchmarks/tools/drawn_curves.py` of commit d83c8907."""

OFFSET = 0.01  # added to gᵀx before its sign is taken, so that 0 counts as positive

SMALL = 12  # columns of at most so many inputs are answered exactly, by trying all vectors; others by local search


class SignLayer(nn.Module):
    """x W with W = sign(Ω), then a sign with the gradient of a hardtanh; if `real`, x Ω and that hardtanh."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = (1.5 / (inputs + outputs)) ** 0.5
        drawn = torch.empty(outputs, inputs).uniform_(-bound, bound)  # in the notebooks' order, for the same seeds
        self.latent = nn.Parameter(drawn.T.contiguous())
        self.real = False
        self.rows: Tensor
        self.outputs: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, outputs); keeps them, for their gradient, and the rows."""
        products = x @ (self.latent if self.real else _straight_through(self.latent, self.latent))
        soft = F.hardtanh(products, -1.001, 1.001)
        self.rows, self.outputs = x.detach(), soft if self.real else _straight_through(products, soft)
        if self.outputs.requires_grad:
            self.outputs.retain_grad()
        return self.outputs


def _straight_through(x: Tensor, soft: Tensor) -> Tensor:
    """The signs of x with the gradient of `soft`."""
    return soft + (sign(x) - soft).detach()


def agreement(rows: Tensor, weights: Tensor) -> Tensor:
    """The g ∈ {−1, +1}ⁿ per column of `weights` (B, m) that maximise Σᵢ wᵢ sign(gᵀxᵢ + 0.01), for rows (B, n): (n, m).

    This is Σᵢ (sign(gᵀxᵢ) − wᵢ)² at its smallest, since squares of signs are 1. Exact for at most `SMALL` inputs;
    above, single flips from a start along Σᵢ wᵢxᵢ until none helps.
    """
    count = rows.shape[1]
    if count > SMALL:
        return _search(rows, weights / weights.abs().sum(0))
    every = 1.0 - 2.0 * ((torch.arange(2**count)[:, None] >> torch.arange(count)) & 1)
    scores = torch.sign(every @ rows.T + OFFSET) @ weights
    return every[scores.argmax(0)].T


def _search(rows: Tensor, weights: Tensor) -> Tensor:
    """The best flip of every column at a time; among equal sums of signs, the one with the larger margins."""
    unit = rows.abs().amax()
    spins = sign(rows.T @ weights)  # (n, m)
    moving = torch.arange(weights.shape[1])
    for _ in range(4 * len(spins)):
        start = spins[:, moving]
        products = rows @ start  # (B, columns)
        flipped = products.T[:, None] - 2 * start.T[:, :, None] * rows.T[None]  # (columns, n, B)
        now = _weighted_signs(products.T, weights[:, moving].T, unit)
        then = _weighted_signs(flipped, weights[:, moving].T[:, None], unit)
        best, place = then.max(1)
        helps = (best > now + 1e-9) & (now < 1)  # above 1 all rows agree already
        if not helps.any():
            break
        moving, place = moving[helps], place[helps]
        spins[place, moving] *= -1
    return spins


def _weighted_signs(products: Tensor, weights: Tensor, unit: Tensor) -> Tensor:
    """The weighted sum of signs over rows, the last dimension, and a little of the margins."""
    margins = (products / (2 * unit)).clamp(-1, 1)
    return ((torch.sign(products + OFFSET) + 0.01 * margins) * weights).sum(-1)


@dataclass(frozen=True)
class Step:
    """One update of the latent weights by a method."""

    method: str  # "agreement" is the released projection, "all ones" is +1 for every weight
    lr: float
    by_feature: bool  # divide every input by the squared norm of its feature over the batch, as the ten-layer net does
    idle: float  # the answer of "agreement" without a gradient, where every g is as good: ±1, or 0 for no step

    @torch.no_grad()
    def __call__(self, layer: SignLayer) -> float:
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
        elif self.method == "all ones":
            layer.latent.add_(self.lr)
        elif self.method in ("sgd", "proxquant"):
            layer.latent.sub_(grad, alpha=self.lr)
        elif self.method == "sign":
            layer.latent.sub_(grad.sign(), alpha=self.lr)
        if self.method == "proxquant":  # by 0.02 towards ±1, in both epochs
            layer.latent.copy_(proximal_step(layer.latent, 0.02))
        return 1 - live.double().mean().item()


def train(
    *,
    widths: Sequence[int],
    columns: Sequence[int],
    batch: int,
    updates: int,
    epochs: int,
    by_feature: bool,
    first_only: bool,
    signs_move: bool,
    first_seed: int,
    method: str,
    options: Options,
    seed: int,
    **_: Any,
) -> Result:
    """One run, logged as in the notebooks: a batch's loss before its update, and its accuracy after it."""
    inputs, targets = _load()
    inputs = inputs[:, list(columns)]
    torch.manual_seed(first_seed + seed)
    layers = [SignLayer(n, m) for n, m in pairwise(widths)]
    model = nn.Sequential(*layers)
    moves = method if signs_move or method != "sign" else FROZEN
    step = Step(moves, options.get("lr", 0.0), by_feature, options.get("idle", 1.0))
    for layer in layers:
        layer.real = method == "proxquant"
    losses, right, idle = [], [], []

    def logits(rows: Tensor) -> Tensor:
        outputs: Tensor = model(rows)[:, 0]
        return torch.full_like(outputs, -1.0) + 0 * outputs if method == CONSTANT else outputs

    for start in [*range(0, batch * updates, batch)] * epochs:
        rows, wanted = inputs[start : start + batch], targets[start : start + batch]
        model.zero_grad()
        loss = F.binary_cross_entropy_with_logits(logits(rows), wanted)
        torch.autograd.backward(loss)
        losses.append(loss.item())
        idle += [step(layer) for layer in (layers[:1] if first_only else layers)]
        with torch.no_grad():
            right.append(((logits(rows) > 0) == (wanted > 0.5)).double().mean().item())
    scored = {LATE_LOSS.key: sum(losses[-updates:]) / updates, LATE.key: second_half(right)}
    return {"loss": losses, "accuracy": right, **scored, IDLE: sum(idle) / len(idle)}


_ABOUT = (
    "The authors' released notebook (github.com/mk2510/QPSBGD, commit 0889d1b) from a description of what it does (own "
    "code): its rows in its order, its initial weights by seed, its learning rates. Activations are signs, also at the "
    "output, so that logits are ±1 and a row's loss is 0.31 or 1.31; QP-SBGD moves every column along the g that "
    "maximises Σ −vᵢ sign(gᵀxᵢ), v the gradient at the activations. Where v is zero every g is as good, and what a "
    "solver happens to answer moves the weights. "
)


@cache
def _load() -> tuple[Tensor, Tensor]:
    """The training rows in the notebooks' order; LIBSVM's feature k in column k, and nothing in column 0."""
    inputs, targets = training_rows()
    order = list(range(len(inputs)))
    np.random.RandomState(2).shuffle(order)
    shifted = torch.full_like(inputs, -1.0)
    shifted[:, 1:] = inputs[:, :-1]
    return shifted[order], targets[order]


def _by_seeds(fault: str, *, released: bool, first: int) -> dict[str, Job]:
    """Cases of the authors' seeds, of ten others, and of the authors' with the fault repaired."""
    cases = {f"seeds {k} to {k + 4}": {fault: released, "first_seed": k} for k in (first, first + 5, first + 10)}
    return {**cases, f"seeds {first} to {first + 4}{REPAIRED}": {fault: not released, "first_seed": first}}


@dataclass(frozen=True)
class Released(Comparison):
    """A notebook's network, rows, order and learning rates; the drawn curves beside ours."""

    extra = (IDLE,)
    work = staticmethod(train)
    needs = (_load,)
    small = {"seeds": 2, "epochs": 1}
    rates: ClassVar[Mapping[str, float]]
    shape: ClassVar[Job]
    claimed: ClassVar[str]
    repaired: ClassVar[str]
    seeds: int = 5
    choosing_seeds: int = 0
    epochs: int = 1

    def lines(self, case: Case) -> Mapping[str, Line]:
        lr = self.rates["agreement"]
        idle = {
            MINUS: Line("QP-SBGD as released, idle columns −1", "agreement", rates(lr, idle=-1.0), "variant"),
            STILL: Line("QP-SBGD as released, idle columns stay", "agreement", rates(lr, idle=0.0), "variant"),
            ALL_ONES: Line("every weight +1, whatever the gradient", "all ones", rates(lr), "variant"),
        }
        return {
            GUROBI: Line("QP-SBGD as released, idle columns +1", "agreement", rates(lr, idle=1.0), "paper"),
            **({} if case.name.endswith(REPAIRED) else idle),
            "bc-sgd": Line("BC (SGD)", "sgd", rates(self.rates["sgd"])),
            "bc-sign": Line("BC (signSGD)", "sign", rates(self.rates["sign"])),
            "proxquant": Line("ProxQuant", "proxquant", rates(self.rates["proxquant"])),
            FROZEN: Line("control: binary layers frozen", FROZEN, ({},), "control"),
            CONSTANT: Line('control: always "no"', CONSTANT, ({},), "control"),
        }

    def job(self, case: Case, line: Line, options: Options) -> Job:
        return {**self.shape, "epochs": self.epochs, **case.settings, "method": line.method, "options": options}

    def claims(self) -> Sequence[Claim]:
        authors, *others, repaired = self.by_case
        places = {"the authors' seeds": (authors,), "ten other seeds": tuple(others), self.repaired: (repaired,)}
        return [
            Claim(
                f"{self.claimed} ({where})", GUROBI, self.chosen_by.key, cases, BC, **from_figure(repaired not in cases)
            )
            for where, cases in places.items()
        ]

    def summary(self, *, folder: Path) -> dict[str, Any]:
        summary = super().summary(folder=folder)
        drawn, key = json.loads(DRAWN.read_text(encoding="utf-8"))[self.name], self.series[0].key
        panels, body = [], []
        for case in summary["cases"]:
            lines = []
            for colour, (name, theirs) in enumerate(drawn.items()):
                likes = (GUROBI, MINUS, STILL, ALL_ONES) if name == GUROBI else (name,)
                rows = [row for row in case["rows"] if row["line"] in likes]
                for row in rows:
                    # As the notebooks draw means.
                    means = gaussian_filter1d(np.array(row["curves"][key]["mean"], dtype=float), sigma=1)
                    ours = means[: len(theirs)].round(4).tolist()
                    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if b is not None]
                    away = float(np.sqrt(np.mean([(a - b) ** 2 for a, b in pairs])))
                    ends = [f"{np.mean(part[len(part) // 2 :]):.3f}" for part in zip(*pairs, strict=True)]
                    body.append([case["label"], row["label"], f"{away:.4f}", *ends])
                    style = {"width": 1.2 + (row["line"] == name), "colour": colour}
                    if row["line"] in (name, ALL_ONES):
                        style["style"] = "line" if row["line"] == name else "dashes"
                        lines.append({"x": [*range(len(ours))], "y": ours, "label": row["label"], **style})
                points = {"style": "points", "width": 1.4, "colour": colour}
                label = f"drawn: {'QP-SBGD (G)' if name == GUROBI else 'QP-SBGD (D)' if not rows else rows[0]['label']}"
                lines.append({"x": [*range(len(theirs))], "y": theirs, "label": label, **points})
            axes = {"x_label": "iteration", "y_label": self.series[0].label}
            panels.append({"title": case["label"], "lines": lines, **axes})
        head = ["seeds", "method", "rms distance from the drawn curve", "second half, ours", "second half, drawn"]
        table = {"title": "Beside the drawn curves", "head": head, "body": body}
        caption = "Points: read off the figure that the notebook stores. Lines: ours, mean of seeds, smoothed alike."
        figure = {"name": "drawn", "title": "Beside the drawn curves", "kind": "lines", "shows_data": True}
        return {
            **summary,
            "tables": [table],
            "figures": [{**figure, "caption": caption, "panels": panels, "columns": 2}],
        }


@dataclass(frozen=True)
class Figure3(Released):
    """123 → 128 (nine times) → 1, two epochs of 32 batches of 16."""

    name = "figure3"
    title = "What made Figure 3 (right): Adult, ten layers, as released"
    about = _ABOUT + (
        "Updates reach the first layer only, for every method. The notebook also asks Gurobi to relax the constraints "
        "(feasRelaxS without minrelax), which replaces the objective: every g is then optimal, and Gurobi's first "
        "answer is the same for all columns. g by local search, as a column has 123 inputs. The last case updates all "
        "layers."
    )
    paper = "Figure 3, right, as the repository's README names it: QP-SBGD ahead of BC; ProxQuant fails to train."
    metrics = (LATE_LOSS, LATE)
    series = (Series("loss", "loss of the batch"),)
    chosen_by = LATE_LOSS
    rates = {"sgd": 0.01, "sign": 0.02, "agreement": 0.1, "proxquant": 0.1}
    shape = {"widths": [123, *[128] * 9, 1], "columns": [*range(123)], "batch": 16, "updates": 32}
    shape |= {"by_feature": True, "signs_move": True}
    by_case = _by_seeds("first_only", released=True, first=5)
    claimed, repaired = "QP-SBGD is ahead of BC", "all layers updated"
    epochs: int = 2

    def claims(self) -> Sequence[Claim]:
        text, authors = "ProxQuant fails to train: worse than the others", next(iter(self.by_case))
        says: dict[str, Any] = {"relation": "worse", **from_figure(True)}
        return [*super().claims(), Claim(text, "proxquant", LATE_LOSS.key, (authors,), (GUROBI, *BC), **says)]


@dataclass(frozen=True)
class ReleasedThree(Released):
    """3 → 5 → 1, one epoch of 30 batches of 20."""

    name = "released-acc"
    title = "Adult, three features: the released form"
    about = _ABOUT + (
        "All layers are updated. There is no branch for signSGD, so that its weights stay as they are; repaired, it "
        "moves. g is exact. The stored figure shows 20 of the 30 updates, and (D) with four of the five seeds."
    )
    paper = "Figure of adult-acc: (G) best."
    metrics = (LATE, LATE_LOSS)
    series = (Series("accuracy", "accuracy on the batch just trained on"),)
    chosen_by = LATE
    rates = {"sgd": 0.01, "sign": 0.005, "agreement": 0.008, "proxquant": 0.008}
    shape = {"widths": [3, 5, 1], "columns": [6, 22, 36], "batch": 20, "updates": 30}
    shape |= {"by_feature": False, "first_only": False}
    by_case = _by_seeds("signs_move", released=False, first=0)
    claimed, repaired = "QP-SBGD (G) is best", "signSGD moves"
