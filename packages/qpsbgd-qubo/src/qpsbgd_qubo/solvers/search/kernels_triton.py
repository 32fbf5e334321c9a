"""Descent and tabu search of all columns in one GPU kernel, one program per column, its state in registers.

The moves are those of the compiled `search`: a flip adds ±2·2Q to the fields, exact up to the one rounding of the sum,
so every path gives the same answer, except for ties within the rounding errors of the first fields.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 8192  # most spins that fit into the registers of one program


@triton.jit
def _best(spins, fields, allowed, k, BLOCK: tl.constexpr):
    """The largest spins · fields among the allowed, its index (the first of equals) and its spin, in one reduction."""
    gain = tl.where(allowed, spins * fields + 0.0, float("-inf"))  # + 0.0 makes 0 of −0, which has other bits
    bits = gain.to(tl.int32, bitcast=True)
    # Integers in the order of the floats.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = (ordered.to(tl.int64) << 32) | ((BLOCK - 1 - k) * 2 + (spins > 0).to(tl.int32)).to(tl.int64)
    top = tl.max(key, axis=0)
    low = (top & 0xFFFFFFFF).to(tl.int32)
    high = (top >> 32).to(tl.int32)
    value = (high ^ ((high >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return value, BLOCK - 1 - (low >> 1), ((low & 1) * 2 - 1).to(tl.float32)


@triton.jit
def _search(
    quadratic,
    linear,
    products,
    spins_pointer,
    reaches,
    energies,
    flips_pointer,
    n,
    m,
    max_flips,
    patience,
    tenure,
    spread,
    seed_part,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    part, column = program // m, program % m
    quadratic += part.to(tl.int64) * n * n
    k = tl.arange(0, BLOCK)
    inside = k < n
    place = program.to(tl.int64) * n + k
    spins = tl.load(spins_pointer + place, mask=inside, other=0.0)
    biases = tl.load(linear + place, mask=inside, other=0.0)
    diagonal = tl.load(quadratic + k * (n + 1), mask=inside, other=0.0)
    product = tl.load(products + place, mask=inside, other=0.0)
    # 8 eps of single precision times the largest possible field, as in `thresholds` of landscape.py.
    threshold = 9.5367431640625e-07 * (tl.load(reaches + part) + tl.max(tl.abs(biases), axis=0))
    fields = biases + 2 * (product - diagonal * spins)

    flips = 0
    gain, best, spin = _best(spins, fields, inside, k, BLOCK)
    while (gain > threshold) & (flips < max_flips):
        row = tl.load(quadratic + best * n + k, mask=inside & (k != best), other=0.0)
        fields = fields - (2 * spin) * (2 * row)
        spins = tl.where(k == best, -spins, spins)
        flips += 1
        gain, best, spin = _best(spins, fields, inside, k, BLOCK)

    # gᵀQg + sᵀg = ½ gᵀ(f + s) + trace Q; a later flip lowers the energy by twice its gain.
    total = tl.sum((spins * (fields + biases)).to(tl.float64) / 2, axis=0) + tl.sum(diagonal.to(tl.float64), axis=0)
    if patience > 0:
        column_part = column.to(tl.uint32) * 2246822519 + seed_part.to(tl.uint32)
        lowest = spins
        free_from = tl.zeros([BLOCK], tl.int32)
        energy = 0 * total
        lowest_energy = 0 * total
        descending = 0
        move = 0
        last = patience
        while (move < last) & (flips < max_flips):
            move += 1
            gain, best, spin = _best(spins, fields, inside & (free_from <= move), k, BLOCK)
            if gain > float("-inf"):
                settled = (descending != 0) & (gain <= 0)
                lowest = tl.where(settled, spins, lowest)
                descending = tl.where(settled, 0, descending)
                row = tl.load(quadratic + best * n + k, mask=inside & (k != best), other=0.0)
                fields = fields - (2 * spin) * (2 * row)
                spins = tl.where(k == best, -spins, spins)
                flips += 1
                # As in `search` of dense.hpp: products of unsigned numbers wrap around by themselves.
                mixed = move.to(tl.uint32) * 2654435761 + column_part
                mixed = (mixed ^ (mixed >> 15)) * 2246822519
                wait = tenure + (mixed >> 13).to(tl.int32) % spread
                free_from = tl.where(k == best, move + 1 + wait, free_from)
                energy = energy - gain.to(tl.float64)
                lower = energy < lowest_energy - threshold
                lowest_energy = tl.where(lower, energy, lowest_energy)
                descending = tl.where(lower, 1, descending)
                last = tl.where(lower, move + patience, last)
        spins = tl.where(descending != 0, spins, lowest)
        total += 2 * lowest_energy

    tl.store(energies + program, total.to(tl.float32))
    tl.store(spins_pointer + place, spins, mask=inside)
    tl.store(flips_pointer + program, flips)


def fits(like: Tensor, num_spins: int) -> bool:
    """Whether the kernel supports families of this many spins in this tensor's precision."""
    return like.dtype == torch.float32 and num_spins <= LARGEST


def reaches_of(quadratic: Tensor) -> Tensor:
    """The largest field that the couplings of every quadratic part (count, n, n) can make, (count,)."""
    diagonal = quadratic.diagonal(dim1=-2, dim2=-1)
    fields: Tensor = torch.linalg.vector_norm(quadratic, 1, dim=-1) - diagonal.abs()
    return 2 * fields.amax(-1)


def search(
    quadratic: Tensor,
    linear: Tensor,
    spins: Tensor,
    *,
    reaches: Tensor | None = None,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Spins (count, m, n) lowered from `spins`, which may be overwritten; energies and flips, (count, m)."""
    count, m, n = linear.shape
    quadratic, linear, spins = quadratic.contiguous(), linear.contiguous(), spins.contiguous()
    reaches = reaches_of(quadratic) if reaches is None else reaches
    energies = linear.new_empty(count, m)
    flips = torch.empty(count, m, dtype=torch.int32, device=linear.device)
    seed_part = (seed * 3266489917) & 0xFFFFFFFF
    block = triton.next_power_of_2(max(n, 16))
    options: dict[str, Any] = {"BLOCK": block, "num_warps": 4 if block <= 1024 else min(16, block // 256)}
    with torch.cuda.device_of(linear):
        _search[(count * m,)](
            *(quadratic, linear, torch.bmm(spins, quadratic), spins, reaches, energies, flips, n, m),
            *(max_flips, patience, tenure, max(6, tenure // 2), seed_part),
            **options,
        )
    return spins, energies, flips
