"""The rows of the binary map in two GPU kernels; `binary_map` has the formulas and does the same in plain torch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_ROWS, LARGEST_WIDTH = 1024, 8192
"""Largest sizes for which a column of gradients and a row of inputs fit into the registers of one program."""


@triton.jit
def _measure(inputs, grads, norms, sums, has_gradient, n, m, WIDTH: tl.constexpr):
    """Per row: ‖x‖, ‖x‖₁, and whether there is any gradient."""
    row = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    x = tl.load(inputs + row * n + k, mask=k < n, other=0.0)
    v = tl.load(grads + row * m + k, mask=k < m, other=0.0)
    largest = tl.max(tl.abs(x), axis=0)
    shares = x / tl.where(largest > 0, largest, 1.0)
    tl.store(norms + row, largest * tl.sqrt(tl.sum(shares * shares, axis=0)))
    tl.store(sums + row, tl.sum(tl.abs(x), axis=0))
    tl.store(has_gradient + row, tl.max((v != 0).to(tl.float32), axis=0))


@triton.jit
def _scale(
    inputs,
    grads,
    norms,
    sums,
    has_gradient,
    directions,
    targets,
    offset,
    health,
    rows,
    n,
    m,
    gain,
    scale,
    LITERAL: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Programs up to `rows` write z_i; the others −2 λ_j v_ij and Σ_i (λ_j v_ij)² for a few columns each."""
    program = tl.program_id(0)
    i = tl.arange(0, ROWS)
    every = i < rows
    norm = tl.load(norms + i, mask=every, other=0.0)
    nonzero = (norm > 0) & (LITERAL | (tl.load(has_gradient + i, mask=every, other=0.0) > 0))
    logs = tl.log2(tl.where(nonzero, norm, 1.0))
    # Rounding noise: eps times the geometric mean of the rows.
    mean = tl.sum(logs, axis=0) / tl.maximum(tl.sum(nonzero.to(tl.float32), axis=0), 1.0)
    floor = 1.1920928955078125e-07 * tl.exp2(mean)
    used = nonzero & (norm > floor)
    safe = tl.where(used, norm, 1.0)
    if program < rows:
        own = tl.load(norms + program)
        keep = (own > 0) & (own > floor) & (LITERAL | (tl.load(has_gradient + program) > 0))
        k = tl.arange(0, WIDTH)
        x = tl.load(inputs + program * n + k, mask=k < n, other=0.0)
        own = tl.where(keep, own, 1.0)
        z = tl.where(keep, (x / own) / (gain * own), 0.0)
        tl.store(directions + program * n + k, z, mask=k < n)
    else:
        j = (program - rows) * COLUMNS + tl.arange(0, COLUMNS)
        inside = every[:, None] & (j < m)[None, :]
        v = tl.load(grads + i[:, None] * m + j[None, :], mask=inside, other=0.0)
        if not LITERAL:
            reach = tl.where(used, tl.load(sums + i, mask=every, other=0.0) / safe / (gain * safe), 0.0)
            count = tl.maximum(tl.sum(used.to(tl.float32), axis=0), 1.0)
            largest = tl.max(tl.abs(v), axis=0)
            v = v / tl.where(largest > 0, largest, 1.0)[None, :]
            rms = tl.sqrt(tl.sum(tl.where(used[:, None], v * v, 0.0), axis=0) / count)
            factor = scale * (tl.sum(reach, axis=0) / count) / tl.where(rms > 0, rms, 1.0)
            v = v * tl.where(rms > 0, factor, 0.0)[None, :]
        tl.store(targets + i[:, None] * m + j[None, :], -2 * v, mask=inside)
        tl.store(offset + j, tl.sum(v * v, axis=0), mask=j < m)
        if program == rows:
            # Finite exactly if the inputs and the trace of Q are, and if the trace does not vanish.
            trace = tl.sum(tl.where(used, 1.0 / (gain * safe) / (gain * safe), 0.0), axis=0)
            vanishes = (trace < 1.1754943508222875e-38) & (tl.max(used.to(tl.int32), axis=0) > 0)
            tl.store(health, tl.where(vanishes, float("inf"), tl.sum(norm, axis=0) + trace))


def fits(inputs: Tensor, output_grads: Tensor) -> bool:
    """Whether the kernels can take rows of this type and size."""
    rows, width = len(inputs), max(inputs.shape[1], output_grads.shape[1])
    single = inputs.dtype == output_grads.dtype == torch.float32
    return single and rows <= LARGEST_ROWS and width <= LARGEST_WIDTH


def scaled_rows(
    inputs: Tensor, output_grads: Tensor, *, gain: float, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Z (B, n), −2 λV (B, m), Σ (λV)² (m,), and numbers that are all finite only if the rows are sound.

    Args:
        inputs: X (B, n), single precision, on the GPU.
        output_grads: V (B, m), of the same type and on the same device.
        gain: As in `binary_map`.
        scale: κ, or None for "literal".
    """
    inputs, output_grads = inputs.contiguous(), output_grads.contiguous()
    (rows, n), m = inputs.shape, output_grads.shape[1]
    norms, sums, has_gradient = inputs.new_empty(3, rows).unbind()
    directions, targets = torch.empty_like(inputs), torch.empty_like(output_grads)
    sums_of_squares = inputs.new_empty(m + 1)
    offset, health = sums_of_squares[:m], sums_of_squares[m:]
    width = triton.next_power_of_2(max(n, m, 16))
    block = triton.next_power_of_2(max(rows, 16))
    columns = max(1, min(16, 4096 // block))
    warps: dict[str, Any] = {"num_warps": min(8, max(1, width // 256))}
    with torch.cuda.device_of(inputs):
        _measure[(rows,)](inputs, output_grads, norms, sums, has_gradient, n, m, WIDTH=width, **warps)
        _scale[(rows + triton.cdiv(m, columns),)](
            *(inputs, output_grads, norms, sums, has_gradient, directions, targets, offset, health),
            *(rows, n, m, gain, 1.0 if scale is None else scale),
            LITERAL=scale is None,
            ROWS=block,
            WIDTH=width,
            COLUMNS=columns,
            **warps,
        )
    return directions, targets, offset, sums_of_squares
