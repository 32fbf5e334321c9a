"""Rounding with error feedback, the order and update of GPTQ (Frantar et al., 2022), for any set of levels per column."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

AT_ONCE = 128
"""Inputs whose errors are passed on to the inputs after them by one product."""


def rounded_with_feedback(metric: Tensor, weights: Tensor, *, scales: Tensor) -> Tensor:
    """Planes ±1 (bits, n, m): every weight takes its nearest level, and those after it make up for the error.

        w_i → its level q_i,   w_k ← w_k − (w_i − q_i) U_ik / U_ii for all k after i,   UᵀU = Q⁻¹

    Args:
        metric: Q (n, n), positive definite.
        weights: W (n, m).
        scales: The levels are Σ_b ±scales_b, with scales (bits, m).
    """
    signs = weights.new_tensor(list(itertools.product((1.0, -1.0), repeat=len(scales))))
    levels = signs @ scales  # (2^bits, m)
    order = torch.argsort(metric.diagonal(), descending=True, stable=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(metric[order][:, order]))
    factor = torch.linalg.cholesky(inverse).T.contiguous()  # U, upper triangular
    rest, chosen = weights[order].clone(), torch.empty(weights.shape, dtype=torch.int64, device=weights.device)
    for start in range(0, len(rest), AT_ONCE):
        stop = min(start + AT_ONCE, len(rest))
        errors = torch.empty_like(rest[start:stop])
        for i in range(start, stop):
            nearest = (levels - rest[i]).abs().argmin(0)
            chosen[i] = nearest
            errors[i - start] = (rest[i] - levels.gather(0, nearest[None])[0]) / factor[i, i]
            rest[i + 1 : stop] -= factor[i, i + 1 : stop, None] * errors[i - start]
        rest[stop:] -= factor[start:stop, stop:].T @ errors
    planes = torch.empty(len(scales), *weights.shape, dtype=weights.dtype, device=weights.device)
    planes[:, order] = signs[chosen].movedim(-1, 0)
    return planes
