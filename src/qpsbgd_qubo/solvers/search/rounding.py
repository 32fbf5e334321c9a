"""A start that knows the couplings: the relaxation to the box [−1, 1]ⁿ, rounded one spin after the other.

With A = Q + δI = RᵀR and x the least xᵀAx + sᵀx over the box, spins are set from the last row of R to the first, each
to the sign that keeps ‖R (g − x)‖² low given those before it (Babai's nearest plane, the sphere decoder's first leaf).
Spins with the largest diagonal are set first, so that the smaller ones can make up for what rounding them costs. Where
inputs are of very different size, single flips from sign(−s) do not get there.

δ changes the energies of all spins by the same and can be chosen: small ones are best where the relaxation without the
box lies inside it, and larger ones the farther it lies outside.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import kernels, thread_count

LEAST_RIDGE, MOST_RIDGE = 0.1, 4.0  # bounds of δ, in units of the mean diagonal of Q
INSIDE, GROWTH = 0.5, 1.2
"""δ is the least one times (r / INSIDE) ** GROWTH, with r the root mean square of the relaxation there without box."""
SAMPLE = 16  # columns, at least, from which r and the like are estimated
PASSES = 6  # most passes of coordinate descent in the box


def rounded(family: QuboFamily) -> Tensor | None:
    """Spins (n, m) of a family on the CPU; None if Q + δI is not positive definite."""
    diagonal = family.quadratic.diagonal()
    order = torch.argsort(diagonal, stable=True)
    matrix, linear = family.quadratic[order][:, order], family.linear[order]
    unit = diagonal.mean()
    matrix.diagonal().add_(LEAST_RIDGE * unit)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        return None
    sample = linear[:, sampled(linear.shape[1])]
    size = 0.5 * torch.cholesky_solve(sample, factor).square().mean().sqrt().item()
    ridge = min(MOST_RIDGE, LEAST_RIDGE * (size / INSIDE) ** GROWTH)
    if ridge > LEAST_RIDGE:
        matrix.diagonal().add_((ridge - LEAST_RIDGE) * unit)
        factor = torch.linalg.cholesky(matrix)
    relaxed = torch.cholesky_solve(linear, factor).mul_(-0.5).clamp_(-1, 1)
    slopes = (linear + 2 * (matrix @ relaxed)).T.contiguous()
    relaxed = relaxed.T.contiguous()
    kernels.relax((2 * matrix).numpy(), slopes.numpy(), relaxed.numpy(), PASSES, thread_count())
    spins, factor = torch.empty_like(relaxed), factor.contiguous()  # LAPACK writes it by columns
    kernels.round_down(factor.numpy(), (relaxed @ factor).numpy(), spins.numpy(), thread_count())
    result = torch.empty_like(family.linear)
    result[order] = spins.T
    return result


def sampled(count: int) -> slice:
    """Some of so many columns, evenly spaced."""
    return slice(0, None, max(1, count // SAMPLE))
