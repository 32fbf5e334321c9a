"""P-SBGD on any differentiable function over {−1, +1}ⁿ."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qpsbgd.binary_map import Scale, binary_map
from qpsbgd.nn import sign
from qpsbgd.solvers import Solver, make_solver


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where P-SBGD arrived.

    Attributes:
        x: The best spins visited, shape (n,).
        value: E(f(x)) there.
        latent: The real iterate at the end, to continue from.
        values: E(f(sign xᵗ)) at every step, the start included.
        fixed_point: Whether the last spins satisfy Theorem 1, −Π(∇E) = sign(x): no further step would change them.
    """

    x: Tensor
    value: float
    latent: Tensor
    values: list[float]
    fixed_point: bool


def minimize(
    f: Callable[[Tensor], Tensor],
    loss: Callable[[Tensor], Tensor],
    x0: Tensor,
    *,
    lr: float | Callable[[int], float] = 0.1,
    steps: int = 100,
    solver: str | Solver = "auto",
    scale: Scale = 1.0,
    stop_at_fixed_point: bool = True,
) -> Minimum:
    """Low values of loss(f(x)) over x ∈ {−1, +1}ⁿ by P-SBGD (Def. 2).

        xᵗ⁺¹ = xᵗ − α_t Π_Z(∇_y E(sign xᵗ)),   z_i = j_i/‖j_i‖²,   j_i = ∇ₓ y_i at sign xᵗ,   y = f(x)

    Args:
        f: Maps x (n,) to y (m,), differentiable by torch.
        loss: Maps y to a scalar, differentiable by torch.
        x0: Real start (n,); its signs are the first spins.
        lr: α, a number or a function of the step.
        steps: Maximum number of updates.
        solver: Solver for the QUBO of each step.
        scale: As in `binary_map`; "literal" is the definition as printed.
        stop_at_fixed_point: Stop where no further step would change the spins.
    """
    x0 = torch.as_tensor(x0)
    latent = (x0 if x0.is_floating_point() else x0.double()).detach().clone()
    if latent.ndim != 1 or not latent.numel():
        raise ValueError(f"x0 must have shape (n,), got {tuple(latent.shape)}")
    if not torch.isfinite(latent).all():
        raise ValueError("x0 holds NaN or infinite values")
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps}")
    rate = lr if callable(lr) else lambda _: lr
    chosen = make_solver(solver)

    values: list[float] = []
    best = sign(latent)
    fixed_point = False
    for step in range(steps + 1):
        spins = sign(latent)
        value, direction = _projected_gradient(f, loss, spins, solver=chosen, scale=scale)
        values.append(value)
        if value <= min(values):
            best = spins
        fixed_point = direction is None or bool((direction == -spins).all())
        if step == steps or (fixed_point and stop_at_fixed_point):
            break
        if direction is not None:
            latent = latent - rate(step) * direction
    return Minimum(best, min(values), latent, values, fixed_point)


def _projected_gradient(
    f: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor], spins: Tensor, *, solver: Solver, scale: Scale
) -> tuple[float, Tensor | None]:
    """E and Π_Z(∇_y E) at `spins`; None for the latter where there is no gradient."""
    outputs = f(spins)
    if outputs.ndim != 1:
        raise ValueError(f"f must return a vector (m,), got shape {tuple(outputs.shape)}")
    leaf = outputs.detach().requires_grad_()
    value = loss(leaf)
    if value.numel() != 1:
        raise ValueError(f"loss must return a scalar, got shape {tuple(value.shape)}")
    (output_grad,) = torch.autograd.grad(value, leaf)
    jacobian = torch.autograd.functional.jacobian(f, spins)  # type: ignore[no-untyped-call]
    if not output_grad.any():
        return value.item(), None
    family = binary_map(jacobian, output_grad[:, None], scale=scale)
    if not family.linear.any():
        return value.item(), None
    return value.item(), solver.solve(family).spins[:, 0]
