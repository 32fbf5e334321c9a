"""The rows of the binary map in one compiled loop on the CPU; `binary_map` has the formulas and does it in plain torch.

A step of a small network is many small torch calls; this replaces some thirty of them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from qpsbgd.native import kernels

LARGEST = 2**20
"""Inputs and gradients up to which one thread is faster than torch's own."""


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
    found = np.empty(grads.shape[1] + 1)
    kernels.scale_rows(rows, grads, gain, scale or 0.0, scale is None, directions, targets, found)
    with np.errstate(over="ignore"):
        health = torch.from_numpy(found.astype(rows.dtype))
    return torch.from_numpy(directions), torch.from_numpy(targets), health[:-1], health
