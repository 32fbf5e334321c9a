"""The binary map of rows that are spread over several processes: three functions, with an exchange between two of them.

    measured    per process: which of its rows count, by the norms of all of them; then `joined`
    sums        per process: Q and unscaled s of its rows; then added up
    family      of all rows

`binary_map` has the formulas; on the rows of all processes together it gives the same family, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qpsbgd.qubo.binary_map import Scale, check_finite, check_range, noise_floor, row_norms, scaled_directions
from qpsbgd.qubo.family import QuboFamily

FAULTS = (
    "",
    "inputs hold NaN or infinite values; the forward pass has diverged",
    "output_grads hold NaN or infinite values; the loss or the backward pass has diverged",
    "inputs are too large: the norms of their rows overflow; scale them down",
)
"""What may be wrong with a process's rows, by the first number of `measured`."""


def measured(inputs: Tensor, output_grads: Tensor, *, scale: Scale) -> Tensor:
    """Of rows (B, n) and (B, m), as float64 (3 + m,): an index of `FAULTS`, Σ log₂‖x‖, rows x ≠ 0, max |v_j|."""
    found = inputs.new_zeros(3 + output_grads.shape[1], dtype=torch.float64)
    if not len(inputs):
        return found
    finite = [bool(rows.abs().amax().isfinite()) for rows in (inputs, output_grads)]
    if not all(finite):
        found[0] = 1 + finite.index(False)
        return found
    inputs, output_grads = _counting(inputs, output_grads, scale)
    norms = row_norms(inputs)
    nonzero = norms > 0
    found[0] = 0 if norms.sum().isfinite() else 3
    found[1], found[2] = torch.where(nonzero, norms, 1).log2().sum(), nonzero.sum()
    if len(output_grads):
        found[3:] = output_grads.abs().amax(0)
    return found


def joined(measures: Tensor) -> Tensor:
    """The measures of all rows from those of every process (processes, 3 + m); the first number is left out."""
    return torch.cat([measures[:, 1:3].sum(0), measures[:, 3:].amax(0)])


def sums(inputs: Tensor, output_grads: Tensor, measures: Tensor, *, gain: float, scale: Scale) -> list[Tensor]:
    """Of a process's rows: Q, Σ v_ij z_i, and Σ v_ij², the same of the rows used, Σ ‖z_i‖₁, and how many those are.

    Unless the scale is "literal", v_ij stands for v_ij / max_i |v_ij|.
    """
    literal = scale == "literal"
    inputs, output_grads = _counting(inputs, output_grads, scale)
    logs, count, largest = measures[0].to(inputs), measures[1].to(inputs), measures[2:].to(output_grads)
    norms = row_norms(inputs)
    directions = scaled_directions(inputs, norms, noise_floor(logs, count), gain=gain)
    targets = output_grads if literal else output_grads / torch.where(largest > 0, largest, 1)
    reach = directions.abs().sum(1)
    used = (reach > 0).to(reach)
    squares = targets.square()
    rest = torch.cat([squares.sum(0), (squares * used[:, None]).sum(0), reach.sum()[None], used.sum()[None]])
    return [directions.T @ directions, directions.T @ targets, rest]


def family(total: Sequence[Tensor], *, scale: Scale) -> QuboFamily:
    """The family from `sums`, added over all processes.

    Raises:
        ValueError: Inputs or gradients are so large or small that Q or s leave the floating type.
    """
    quadratic, linear, rest = total
    m = linear.shape[1]
    squares, used_squares, (reach, used) = rest[:m], rest[m : 2 * m], rest[2 * m :]
    factor = torch.ones_like(squares)
    if scale != "literal":
        count = used.clamp(min=1)
        rms = (used_squares / count).sqrt()
        factor = torch.where(rms > 0, float(scale) * (reach / count) / rms, 0)
    found = QuboFamily.trusted(quadratic, -2 * factor * linear, factor.square() * squares)
    check_range(quadratic, used=used)
    check_finite(found, squares)
    return found


def _counting(inputs: Tensor, output_grads: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
    """The rows that have a gradient; all of them where the scale is "literal"."""
    if scale == "literal":
        return inputs, output_grads
    counts = (output_grads != 0).any(1)
    return (inputs, output_grads) if counts.all() else (inputs[counts], output_grads[counts])
