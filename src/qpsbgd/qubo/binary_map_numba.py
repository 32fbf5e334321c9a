"""The rows of the binary map in one compiled loop on the CPU; `binary_map` has the formulas and does it in plain torch.

A step of a small network is many small torch calls; this replaces some thirty of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.compiled import compiled

Array = np.ndarray[Any, Any]

LARGEST = 2**20
"""Inputs and gradients up to which one thread is faster than torch's own."""


@compiled(error_model="numpy")
def _scaled_rows(
    inputs: Array, grads: Array, gain: float, scale: float, literal: bool, directions: Array, targets: Array, eps: float
) -> Array:
    """Write Z (B, n) and −2 λV (B, m); returns Σ (λV)² (m,) and behind it what is finite only if the rows are sound."""
    rows, n = inputs.shape
    m = grads.shape[1]
    norms, reach = np.zeros(rows), np.zeros(rows)
    logs, count, health = 0.0, 0, 0.0
    for i in range(rows):
        counts = literal
        if not literal:
            for j in range(m):
                counts |= grads[i, j] != 0
        squares, absolute = 0.0, 0.0
        for k in range(n):
            x = np.float64(inputs[i, k])
            squares += x * x
            absolute += abs(x)
        health += squares
        if counts and squares > 0:
            norms[i], reach[i] = np.sqrt(squares), absolute
            logs += np.log2(norms[i])
            count += 1
    floor = eps * 2.0 ** (logs / max(count, 1))  # rounding noise: eps times the geometric mean of the rows
    used, trace, reached = 0, 0.0, 0.0
    for i in range(rows):
        factor = 0.0
        if norms[i] > floor:
            factor = 1 / (norms[i] * norms[i] * gain)
            used += 1
            trace += factor / gain
            reached += reach[i] * factor
        else:
            norms[i] = 0
        for k in range(n):
            directions[i, k] = inputs[i, k] * factor
    found = np.zeros(m + 1)
    sums, largest = np.zeros(m), np.zeros(m)
    for i in range(rows):
        for j in range(m):
            largest[j] = max(largest[j], abs(np.float64(grads[i, j])))
    for i in range(rows):
        for j in range(m):
            if literal or (norms[i] > 0 and largest[j] > 0):
                v = grads[i, j] / (1.0 if literal else largest[j])
                sums[j] += v * v
    factors = np.ones(m)
    if not literal:
        for j in range(m):
            rms = np.sqrt(sums[j] / max(used, 1))
            factors[j] = scale * (reached / max(used, 1)) / rms / largest[j] if rms > 0 else 0.0
    for i in range(rows):
        for j in range(m):
            v = grads[i, j] * factors[j]
            found[j] += v * v
            targets[i, j] = -2 * v
    vanishes = used > 0 and trace < np.finfo(np.float32).tiny
    found[m] = np.inf if vanishes else health + trace
    return found


def fits(inputs: Tensor, output_grads: Tensor) -> bool:
    """Whether rows of this size, type and place are for this loop."""
    small = inputs.numel() + output_grads.numel() <= LARGEST
    return small and inputs.device.type == "cpu" and inputs.dtype == output_grads.dtype == torch.float32


def scaled_rows(
    inputs: Tensor, output_grads: Tensor, *, gain: float, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Z (B, n), −2 λV (B, m), Σ (λV)² (m,), and numbers that are all finite only if the rows are sound.

    Args:
        inputs: X (B, n), single precision.
        output_grads: V (B, m), of the same type.
        gain: As in `binary_map`.
        scale: κ, or None for "literal".
    """
    rows, grads = inputs.contiguous().numpy(), output_grads.contiguous().numpy()
    directions, targets = np.empty_like(rows), np.empty_like(grads)
    factor, eps = 0.0 if scale is None else scale, float(np.finfo(rows.dtype).eps)
    found = _scaled_rows(rows, grads, gain, factor, scale is None, directions, targets, eps)
    with np.errstate(over="ignore"):
        health = torch.from_numpy(found.astype(rows.dtype))
    return torch.from_numpy(directions), torch.from_numpy(targets), health[:-1], health
