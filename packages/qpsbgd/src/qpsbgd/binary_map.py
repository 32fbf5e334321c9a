"""The binary map: a layer's gradients projected onto ±1, as a family of QUBOs."""

import math
from typing import Literal

import torch
from torch import Tensor

from qpsbgd_qubo.arrays import full_precision
from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.options import POSITIVE

Scale = float | Literal["literal"]


def binary_map(inputs: Tensor, output_grads: Tensor, *, gain: float = 1.0, scale: Scale = 1.0) -> QuboFamily:
    """The QUBO family whose minimisers are the binary gradients of a layer (Def. 1, Prop. 2).

        j_i = gain · x_i,   z_i = j_i / ‖j_i‖²,   Q = Σ_i z_i z_iᵀ,   s_j = −2 Σ_i λ_j v_ij z_i,
        so that   E_j(g) = Σ_i (λ_j v_ij − gᵀ z_i)²

    With a number κ as `scale`, λ_j = κ · mean_i ‖z_i‖₁ / rms_i(v_ij): the target is κ times the range of gᵀz,
    whatever the size of the loss. Rows without any gradient are left out. `scale="literal"` is the
    equation as printed, λ = 1 and every row counts; with a mean-reduced loss it hardly trains.

    Rows of zero input have z = 0, and so have rows that are rounding noise relative to the others. A column without
    gradient gets s_j = 0: it must not be updated.

    Args:
        inputs: x, one row per sample, shape (B, n).
        output_grads: v = ∂E/∂R at the layer's output R = gain · x W, shape (B, m).
        gain: The layer's constant output factor, positive.
        scale: κ, positive, or "literal".

    Raises:
        ValueError: Inputs or gradients are NaN, infinite, or so large or small that Q or s leave the floating type.

    Examples:
        >>> import torch
        >>> from qpsbgd.qubo import binary_map
        >>> from qpsbgd.solvers import make_solver
        >>> family = binary_map(torch.eye(3), torch.tensor([[1.0], [-1.0], [1.0]]))
        >>> make_solver("exact").solve(family).spins[:, 0].tolist()
        [1.0, -1.0, 1.0]
    """
    check_scale(scale)
    POSITIVE.checked("gain", gain)
    inputs, output_grads = _common_type(inputs, output_grads)
    with full_precision(inputs):
        return _family(inputs, output_grads, gain=gain, scale=scale)


def _family(inputs: Tensor, output_grads: Tensor, *, gain: float, scale: Scale) -> QuboFamily:
    # Rows without gradient are checked too: behind a NaN the activation's gradient is often zero.
    if not inputs.abs().amax().isfinite():
        raise ValueError("inputs hold NaN or infinite values; the forward pass has diverged")

    if scale != "literal":
        with_gradient = (output_grads != 0).any(1)
        if not with_gradient.all():
            inputs, output_grads = inputs[with_gradient], output_grads[with_gradient]
    directions = _row_directions(inputs, gain=gain)
    targets = output_grads if scale == "literal" else _scale_targets(output_grads, directions, scale=float(scale))
    quadratic = directions.T @ directions
    linear = -2 * (directions.T @ targets)
    offset = targets.square().sum(0)
    size, limits = quadratic.diagonal().sum().item(), torch.finfo(quadratic.dtype)
    if size < limits.tiny and directions.any():
        raise ValueError(f"inputs are too large: 1/‖x‖² vanishes in {limits.dtype}, no update is left; scale them down")
    if not math.isfinite(size):
        raise ValueError(f"inputs are too small: 1/‖x‖² overflows in {limits.dtype}; scale them up")
    if not (linear.abs().amax() + offset.amax()).isfinite():
        cause = "hold NaN or infinite values" if not output_grads.isfinite().all() else "are too large for the inputs"
        raise ValueError(f"output_grads {cause}; the loss or the backward pass has diverged")
    return QuboFamily.trusted(quadratic, linear, offset)


def check_scale(scale: Scale) -> None:
    """Raise an error unless `scale` is a positive number or "literal"."""
    if scale != "literal":
        POSITIVE.checked('scale other than "literal"', scale)


def _row_directions(inputs: Tensor, *, gain: float) -> Tensor:
    """z_i = j_i / ‖j_i‖² for j = gain · x; zero for rows of zeros and of rounding noise.

    1/‖j‖ turns rounding noise into the largest rows of Z, so rows with norms up to eps times the geometric mean of all
    count as zero. Measured by the largest norm instead of the mean, one huge row would turn all others into noise.
    """
    # Squares of single-precision numbers easily leave its range; those of a row's shares of its largest entry do not.
    largest = inputs.abs().amax(1, keepdim=True)
    shares = inputs / torch.where(largest > 0, largest, 1)
    norms: Tensor = largest * torch.linalg.vector_norm(shares, dim=1, keepdim=True)
    limits = torch.finfo(norms.dtype)
    if not norms.sum().isfinite():
        raise ValueError(f"inputs are too large: the norms of their rows overflow in {limits.dtype}; scale them down")
    nonzero = norms > 0
    mean = (torch.where(nonzero, norms, 1).log2().sum() / nonzero.sum().clamp(min=1)).exp2()
    used = norms > limits.eps * mean
    safe = torch.where(used, norms, 1)
    return torch.where(used, inputs / safe / (gain * safe), 0)


def _scale_targets(output_grads: Tensor, directions: Tensor, *, scale: float) -> Tensor:
    """λ_j v_ij, with both means over the rows that are used; v is divided by its maximum to avoid underflow."""
    largest = output_grads.abs().amax(0) if len(output_grads) else output_grads.new_zeros(output_grads.shape[1])
    relative = output_grads / torch.where(largest > 0, largest, 1)
    reach = directions.abs().sum(1)
    used = (reach > 0).to(reach)
    count = used.sum().clamp(min=1)
    rms = ((relative.square() * used[:, None]).sum(0) / count).sqrt()
    factor = torch.where(rms > 0, scale * (reach.sum() / count) / rms, 0)
    return relative * factor


def _common_type(inputs: Tensor, output_grads: Tensor) -> tuple[Tensor, Tensor]:
    if inputs.ndim != 2 or output_grads.ndim != 2 or len(inputs) != len(output_grads):
        raise ValueError(
            "inputs must have shape (B, n) and output_grads (B, m) with the same number of rows, "
            f"got {tuple(inputs.shape)} and {tuple(output_grads.shape)}"
        )
    if 0 in (len(inputs), inputs.shape[1], output_grads.shape[1]):
        raise ValueError(f"the batch is empty: got shapes {tuple(inputs.shape)} and {tuple(output_grads.shape)}")
    dtype = torch.promote_types(torch.promote_types(inputs.dtype, output_grads.dtype), torch.float32)
    return inputs.detach().to(dtype), output_grads.detach().to(dtype)
