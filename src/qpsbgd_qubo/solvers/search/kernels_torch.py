"""Descent and tabu search of all columns in plain torch, for any device: one move per column and pass."""

from __future__ import annotations

import torch
from torch import Tensor

from qpsbgd_qubo.solvers.search.landscape import Landscape


def search(
    landscape: Landscape, spins: Tensor, *, max_flips: int, patience: int, tenure: int = 2, seed: int = 0
) -> Tensor:
    """Lower `spins` (n, m) in place with the moves of `reference.search`; returns the flips of every column."""
    columns = torch.arange(spins.shape[1], device=spins.device)
    fields = landscape.fields(spins)
    flips = torch.zeros_like(columns)
    for count in range(max_flips):
        gains, best = (spins * fields).max(0)
        active = gains > landscape.threshold
        # Asking the device whether to go on costs more than a pass, so do it rarely.
        if count % 16 == 0 and not active.any():
            break
        _flip(landscape, fields, spins, best, active)
        flips += active
    if not patience:
        return flips

    searching = flips < max_flips
    lowest = spins.clone()
    free_from = torch.zeros_like(spins, dtype=torch.int64)
    energy = torch.zeros_like(landscape.threshold, dtype=torch.float64)
    lowest_energy = energy.clone()
    descending = torch.zeros_like(searching)
    last = torch.full_like(columns, patience)
    move = 0
    while move % 16 or searching.any():
        move += 1
        gains, best = torch.where(free_from <= move, spins * fields, -torch.inf).max(0)
        moving = searching & (gains > -torch.inf)
        settled = moving & descending & (gains <= 0)
        lowest = torch.where(settled, spins, lowest)
        descending &= ~settled
        _flip(landscape, fields, spins, best, moving)
        flips += moving
        free = move + 1 + _tenures(move, columns, seed, tenure)
        free_from[best, columns] = torch.where(moving, free, free_from[best, columns])
        energy = torch.where(moving, energy - gains.double(), energy)
        lower = moving & (energy < lowest_energy - landscape.threshold)
        lowest_energy = torch.where(lower, energy, lowest_energy)
        descending |= lower
        last = torch.where(lower, move + patience, last)
        searching &= (move < last) & (flips < max_flips)
    spins.copy_(torch.where(descending, spins, lowest))
    return flips


def _flip(landscape: Landscape, fields: Tensor, spins: Tensor, which: Tensor, active: Tensor) -> None:
    columns = torch.arange(spins.shape[1], device=spins.device)
    old = spins[which, columns]
    change = torch.where(active, -2 * old, 0)
    spins[which, columns] = old + change
    fields += landscape.couplings[:, which] * change


def _tenures(move: int, columns: Tensor, seed: int, tenure: int) -> Tensor:
    """`reference.tenure_of` of every column."""
    shared = (move * 2654435761 + seed * 3266489917) & 0xFFFFFFFF
    mixed = (shared + columns * 2246822519) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
    return tenure + (mixed >> 13) % max(6, tenure // 2)
