"""The form of the authors' released notebooks on Adult: sign activations to the output, and a projection of its own.

Written from a description of what they do (github.com/mk2510/QPSBGD, commit 0889d1b), not from their code.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qpsbgd.nn import sign
from qpsbgd.optim.baselines import proximal_step

OFFSET = 0.01
"""Added to gᵀx before its sign is taken, so that 0 counts as positive."""

SMALL = 12
"""Columns of at most so many inputs are answered exactly, by trying all vectors; others by local search."""


class SignLayer(nn.Module):
    """x W with W = sign(Ω), then a sign, whose gradient is that of a hardtanh with bounds ±1.001.

    With `real`, as for ProxQuant, weights and outputs are real: x Ω, then that hardtanh.
    """

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
        method: "sgd", "sign", "agreement" (the released projection), "all ones" (+1 for every weight), "proxquant",
            "frozen" or "constant".
        lr: The step size.
        by_feature: Divide every input by the squared norm of its feature over the batch, as the ten-layer net does.
        idle: The answer of "agreement" for a column whose gradient is zero, where every g is as good: ±1, the same for
            all as a solver would give it, or 0 to leave the column alone.
    """

    method: str
    lr: float
    by_feature: bool
    idle: float

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
