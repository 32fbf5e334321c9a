"""The moves of the search in plain Python, for reading and testing; every kernel must make the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.solvers.search.landscape import Landscape

Array = np.ndarray[Any, Any]


def search(
    landscape: Landscape, spins: Tensor, *, max_flips: int, patience: int, tenure: int = 2, seed: int = 0
) -> Tensor:
    """Lower `spins` (n, m) in place by descent, then by tabu moves; returns the flips of every column, shape (m,).

    Args:
        landscape: What to descend.
        spins: The start.
        max_flips: Most flips per column, tabu moves included.
        patience: Moves without a new lowest energy after which a column ends, 0 for descent alone.
        tenure: Moves for which a flipped spin stays tabu, and up to half as many more, at least 5.
        seed: Decides how many more.
    """
    couplings, fields = landscape.couplings.numpy(), landscape.fields(spins).numpy()
    flips = torch.zeros(spins.shape[1], dtype=torch.int64)
    for j, threshold in enumerate(landscape.threshold.tolist()):
        column = spins[:, j].numpy()
        flips[j] = _descend(couplings, fields[:, j], column, threshold, max_flips)
        if patience:
            left = max_flips - int(flips[j])
            flips[j] += _search_on(couplings, fields[:, j], column, threshold, left, patience, tenure, j, seed)
    return flips


def _descend(couplings: Array, fields: Array, spins: Array, threshold: float, max_flips: int) -> int:
    """Flip the spin that gains most, the first of equals, while that is more than rounding."""
    for flips in range(max_flips):
        best = int(np.argmax(spins * fields))
        if not spins[best] * fields[best] > threshold:
            return flips
        _flip(couplings, fields, spins, best)
    return max_flips


def _search_on(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: float,
    max_flips: int,
    patience: int,
    tenure: int,
    column: int,
    seed: int,
) -> int:
    """Make the best move that is not tabu, uphill too, and end with the lowest spins met."""
    lowest, free_from = spins.copy(), np.zeros(len(spins))
    energy = lowest_energy = 0.0
    descending = False
    flips, move, last = 0, 0, patience
    while move < last and flips < max_flips:
        move += 1
        gains = np.where(free_from <= move, spins * fields, -np.inf)
        best = int(np.argmax(gains))
        if gains[best] == -np.inf:
            continue
        # The spins of a new low are kept where it ends: before the first move that does not lower the energy further.
        if descending and gains[best] <= 0:
            lowest, descending = spins.copy(), False
        _flip(couplings, fields, spins, best)
        flips += 1
        free_from[best] = move + 1 + tenure_of(move, column, seed, tenure)
        energy -= float(gains[best])
        if energy < lowest_energy - threshold:
            lowest_energy, descending, last = energy, True, move + patience
    if not descending:
        spins[:] = lowest
    return flips


def _flip(couplings: Array, fields: Array, spins: Array, i: int) -> None:
    fields -= 2 * spins[i] * couplings[i]
    spins[i] = -spins[i]


def tenure_of(move: int, column: int, seed: int, tenure: int) -> int:
    """Moves for which the spin flipped in this move stays tabu: a hash, the same on every device."""
    mixed = (move * 2654435761 + column * 2246822519 + seed * 3266489917) % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return tenure + (mixed >> 13) % max(6, tenure // 2)
