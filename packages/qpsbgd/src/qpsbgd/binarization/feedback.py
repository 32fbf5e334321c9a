"""Rounding with error feedback: every weight takes its nearest level, and those after it make up for the error.

    Q = RᵀR,   g_i = the level nearest to x_i + Σ_{k after i} R_ik (x_k − g_k) / R_ii

The order and the answers are those of GPTQ (Frantar et al., 2022, with weights of large inputs first), which is Babai's
nearest plane; written with the factor of Q there is no inverse. What GPTQ cannot see is that levels end: errors of
weights beyond the last level pile up. So the weights may first be moved into the range of the levels, to the point that
is nearest to them in the metric Q.
"""

import itertools

import torch
from torch import Tensor

AT_ONCE = 16  # inputs whose errors are passed on one by one; between more of them, products do it
PENALTY, RELAXATION = 0.5, 1.6  # ρ for inputs of size one, and the over-relaxation of the steps of `Range`


class Feedback:
    """Error feedback in a positive definite metric Q (n, n), prepared for many calls.

    `ridges` are added to the diagonal of Q, as shares of its mean, one by one: each gives an answer of its own, and the
    larger it is, the less of an error is passed on.
    """

    def __init__(self, metric: Tensor, ridges: tuple[float, ...] = (0.0,)) -> None:
        self._order = torch.argsort(metric.diagonal(), stable=True)  # set from the last to the first
        ordered = metric[self._order][:, self._order]
        added = metric.new_tensor(ridges) * metric.diagonal().mean()
        factors = torch.linalg.cholesky(ordered + torch.diag_embed(added[:, None].expand(-1, len(metric))), upper=True)
        self._factors = factors / factors.diagonal(dim1=1, dim2=2)[..., None]

    def planes(self, weights: Tensor, scales: Tensor) -> Tensor:
        """Planes ±1 (ridges, bits, n, m) for weights (n, m) and the levels Σ_b ±scales_b, with scales (bits, m)."""
        signs = scales.new_tensor(list(itertools.product((1.0, -1.0), repeat=len(scales))))
        levels, which = (signs @ scales).sort(0)  # (2^bits, m)
        bounds = (levels[1:] + levels[:-1]) / 2
        values = weights[self._order].repeat(len(self._factors), 1, 1)  # (ridges, n, m), with errors passed on
        errors = values.clone()

        def settle(start: int, stop: int) -> None:
            """Inputs from the last to the first, in halves, so that products pass most errors on."""
            if stop - start > AT_ONCE:
                middle = (start + stop) // 2
                settle(middle, stop)
                values[:, start:middle] += self._factors[:, start:middle, middle:stop] @ errors[:, middle:stop]
                settle(start, middle)
                return
            for i in range(stop - 1, start - 1, -1):
                nearest = levels[0]
                for bound, level in zip(bounds, levels[1:], strict=True):
                    nearest = torch.where(values[:, i] >= bound, level, nearest)
                errors[:, i] -= nearest
                if i > start:
                    values[:, start:i].addcmul_(self._factors[:, start:i, i, None], errors[:, i, None])

        settle(0, len(weights))
        ranks = (values[:, torch.argsort(self._order), None] >= bounds).sum(2).flatten(0, 1)
        planes = [plane.gather(0, ranks).reshape(values.shape) for plane in signs[which].unbind(-1)]
        return torch.stack(planes, 1)


class Range:
    """Moves weights into the range of their levels: to the point nearest in the metric, by ADMM (Boyd et al., 2011).

    x = w + ρ (Q + ρ)⁻¹ (z − u − w),   z = x + u clipped to the range,   u = x + u − z
    """

    def __init__(self, metric: Tensor, weights: Tensor) -> None:
        self._sizes = metric.diagonal().sqrt()[:, None]
        scaled = metric / self._sizes / self._sizes.T
        scaled.diagonal().add_(PENALTY)
        self._steps = PENALTY * torch.cholesky_inverse(torch.linalg.cholesky(scaled))
        self._weights = weights * self._sizes
        self._point, self._multipliers = self._weights, torch.zeros_like(weights)

    def nearest(self, limits: Tensor, *, steps: int) -> Tensor:
        """The X (n, m) with |X_ij| ≤ limits_j nearest to the weights; begins where the last call ended."""
        bound = limits * self._sizes
        point = self._point.clamp(-bound, bound)
        for _ in range(steps):
            moved = torch.addmm(self._weights, self._steps, point - self._multipliers - self._weights)
            moved = torch.lerp(point, moved, RELAXATION) + self._multipliers
            point = moved.clamp(-bound, bound)
            self._multipliers = moved - point
        self._point = point
        return point / self._sizes
