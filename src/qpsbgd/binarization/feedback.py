"""Rounding with error feedback: every weight takes its nearest level, and those after it make up for the error.

    Q = RᵀR,   g_i = the level nearest to x_i + Σ_{k after i} R_ik (x_k − g_k) / R_ii

The order and the answers are those of GPTQ (Frantar et al., 2022, with weights of large inputs first), which is Babai's
nearest plane; written with the factor of Q there is no inverse. What GPTQ cannot see is that levels end: errors of
weights beyond the last level pile up. So the weights may first be moved into the range of the levels, to the point that
is nearest to them in the metric Q.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

AT_ONCE = 64
"""Inputs whose errors are passed on to the inputs after them by one product."""
STEPS, MORE_STEPS = 60, 20
"""Gradient steps of `Range.nearest`, and those from a start near the answer.

Twice as many lose 1 or 2 % less of the energy on the calibration inputs and no less on others
(`benchmarks/training/binarize_search.py constants`).
"""
POWER_STEPS, SAFETY = 20, 1.05
"""Products for the norm of a metric, and what is added since they come out below it."""


class Feedback:
    """Error feedback in a metric, prepared for many calls.

    Args:
        metric: Q (n, n), positive definite.
        ridges: What is added to the diagonal of Q, as shares of its mean, one by one: the larger, the less of an error
            is passed on. Every one gives an answer of its own.
    """

    def __init__(self, metric: Tensor, ridges: tuple[float, ...] = (0.0,)) -> None:
        self._order = torch.argsort(metric.diagonal(), stable=True)  # set from the last to the first
        ordered = metric[self._order][:, self._order]
        added = metric.new_tensor(ridges) * metric.diagonal().mean()
        self._factors = torch.linalg.cholesky(
            ordered + torch.diag_embed(added[:, None].expand(-1, len(metric))), upper=True
        )

    def planes(self, weights: Tensor, scales: Tensor) -> Tensor:
        """Planes ±1 (ridges, bits, n, m) for weights (n, m) and the levels Σ_b ±scales_b, with scales (bits, m)."""
        signs = scales.new_tensor(list(itertools.product((1.0, -1.0), repeat=len(scales))))
        levels, which = (signs @ scales).sort(0)  # (2^bits, m)
        middles = (levels[1:] + levels[:-1]) / 2
        factors = self._factors.to(weights.dtype)
        sums = factors @ weights[self._order]  # (ridges, n, m); what is set is taken off
        inverses = 1 / factors.diagonal(dim1=1, dim2=2)
        chosen = torch.empty(sums.shape, dtype=torch.int64, device=sums.device)
        values = torch.empty_like(sums[:, :AT_ONCE])
        for stop in range(len(weights), 0, -AT_ONCE):
            start = max(0, stop - AT_ONCE)
            for i in range(stop - 1, start - 1, -1):
                value = sums[:, i] * inverses[:, i, None]  # (ridges, m)
                rank = (value >= middles[0]).long()
                for middle in middles[1:]:
                    rank += value >= middle
                chosen[:, i] = rank
                values[:, i - start] = level = levels.gather(0, rank)
                sums[:, start:i] -= factors[:, start:i, i, None] * level[:, None]
            sums[:, :start] -= factors[:, :start, start:stop] @ values[:, : stop - start]
        rows = chosen[:, torch.argsort(self._order)].flatten(0, 1)
        found = [plane.gather(0, rows).reshape(chosen.shape) for plane in signs[which].unbind(-1)]
        return torch.stack(found, 1)


class Range:
    """Moves weights into the range of their levels: to the point nearest in the metric, by projected gradient steps.

    Args:
        metric: Q (n, n), positive definite.
    """

    def __init__(self, metric: Tensor) -> None:
        self._sizes = metric.diagonal().sqrt()[:, None]  # of equal size, all inputs can take the same steps
        self._scaled = metric / self._sizes / self._sizes.T
        vector = self._scaled.sum(1)
        for _ in range(POWER_STEPS):
            vector = self._scaled @ (vector / torch.linalg.vector_norm(vector))
        self._rate = 1 / (SAFETY * float(torch.linalg.vector_norm(vector)))

    def nearest(self, weights: Tensor, limits: Tensor, start: Tensor | None = None) -> Tensor:
        """The X (n, m) with |X_ij| ≤ limits_j nearest to the weights.

        Args:
            weights: (n, m).
            limits: (m,).
            start: Where to begin, near the answer; None for the clipped weights, and more steps.
        """
        bound, aim = limits * self._sizes, weights * self._sizes
        point = ahead = ((weights if start is None else start) * self._sizes).clamp(-bound, bound)
        momentum = 1.0
        for _ in range(STEPS if start is None else MORE_STEPS):
            moved = torch.addmm(ahead, self._scaled, ahead - aim, alpha=-self._rate).clamp(-bound, bound)
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = moved + (momentum - 1) / following * (moved - point)
            point, momentum = moved, following
        return point / self._sizes
