"""Descent for families whose quadratic part stands while their linear part moves slowly, as in training.

Where the product of all couplings with all spins is cheap, every search begins with sign(−s), as `Descent` does. In
wide layers it begins with the sign vector in which those spins are turned round that ended so in the last search, and
fields are carried on: that takes fewer flips and no product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import kernels, thread_count
from qpsbgd_qubo.solvers.search.descent import Descent
from qpsbgd_qubo.solvers.search.landscape import hollow_couplings, thresholds
from qpsbgd_qubo.solvers.search.tensor_descent import improved, triton_kernels

COLD_START_LIMIT = 2**24
"""Couplings times columns up to which every search starts cold: about a millisecond on two cores."""


@dataclass(frozen=True, eq=False)
class WarmState:
    """Where a search ended."""

    spins: Tensor  # (count, m, n), one column of a family per row
    signs: Tensor  # whether sign(−s) was positive, of the same shape
    coupling_fields: Tensor | None  # the spins' fields without the linear part, on a CPU


def use_cold_start(matrix: Tensor, columns: int) -> bool:
    """Whether families with these quadratic parts (count, n, n) and so many columns are cheap to begin."""
    return matrix.shape[-1] ** 2 * columns <= COLD_START_LIMIT


def warm_descent(
    solver: Descent, matrix: Tensor, linear: Tensor, *, last: WarmState | None, cached: dict[str, Tensor]
) -> WarmState:
    """Where the descent ends for quadratic parts (count, n, n) and linear parts (count, m, n).

    `last` is where the last search ended, without coupling_fields if the matrix is new; None begins with sign(−s).
    `cached` holds what follows from the matrix alone, from one call to the next.
    """
    linear = linear.contiguous()  # blocks of a layer may be views across its rows
    signs = linear <= 0
    if not linear.is_cpu:
        plain = torch.where(signs, 1.0, -1.0).to(linear)
        start = plain if last is None else torch.where(signs == last.signs, last.spins, -last.spins)
        if triton := triton_kernels(linear, linear.shape[-1]):
            if "reaches" not in cached:
                cached["reaches"] = triton.reaches_of(matrix)
            limits = solver.limits(linear.shape[-1])
            spins, *_ = triton.search(matrix, linear, start, reaches=cached["reaches"], **limits)
            return WarmState(spins, signs, None)
        parts = zip(matrix, linear, start, strict=True)
        return WarmState(torch.stack([_by_family(solver, *part) for part in parts]), signs, None)
    if "couplings" not in cached:
        couplings, reaches = zip(*map(hollow_couplings, matrix), strict=True)
        cached["couplings"], cached["reach"] = torch.stack(couplings), torch.stack(reaches)
    all_couplings = cached["couplings"]
    spins = torch.where(signs, 1.0, -1.0).to(linear) if last is None else last.spins.clone()
    fields = linear + (spins @ all_couplings if last is None or last.coupling_fields is None else last.coupling_fields)
    largest = torch.linalg.vector_norm(linear, torch.inf, dim=-1)
    gains = thresholds(cached["reach"][:, None], largest)
    marked = None if last is None else (signs != last.signs).view(torch.uint8)
    for index in range(len(matrix)):
        if marked is not None:
            given = [part[index].numpy() for part in (all_couplings, fields, spins)]
            kernels.flip_marked(given[0], given[1], given[2], marked[index].numpy(), thread_count())
        solver.lower(*(part[index].numpy() for part in (all_couplings, fields, spins, gains)))
    return WarmState(spins, signs, fields.sub_(linear))


def _by_family(solver: Descent, matrix: Tensor, linear: Tensor, start: Tensor) -> Tensor:
    family = QuboFamily.trusted(matrix, linear.T.contiguous(), linear.new_zeros(len(linear)))
    spins: Tensor = improved(family, start.T.contiguous(), **solver.limits(len(matrix))).spins
    return spins.T
