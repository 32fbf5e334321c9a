"""How alike are an annealer's low-energy samples? The paper's Jaccard similarity of spin vectors."""

from __future__ import annotations

import torch
from torch import Tensor


def jaccard(spins: Tensor) -> Tensor:
    """Similarity of every two spin vectors by their sets of +1 spins: (k, n) → (k, k), in double precision.

        J(a, b) = |A ∩ B| / |A ∪ B|,   A = {i : aᵢ = +1}

    Two vectors without any +1 spin are equal and have similarity 1. Independent random spins have 1/3 on average.
    """
    _check_spins(spins)
    up = (spins > 0).double()
    common = up @ up.T
    sizes = up.sum(1)
    union = sizes[:, None] + sizes[None, :] - common
    return torch.where(union > 0, common / union.clamp(min=1), 1.0)


def lowest(spins: Tensor, energies: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """The `count` different samples of lowest energy, (k, n) and (k,); fewer if there are not that many.

    Samples of equal energy come in the order of their spins, −1 before +1, so that the order of the reads does
    not matter.

    Args:
        spins: −1 or +1, shape (reads, n).
        energies: Shape (reads,).
        count: How many, at least 1.
    """
    _check_spins(spins)
    if energies.shape != spins.shape[:1]:
        raise ValueError(f"energies must have shape ({len(spins)},) as there are samples, got {tuple(energies.shape)}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    different, which = torch.unique(spins, dim=0, return_inverse=True)  # sorted by spins
    energy = energies.new_empty(len(different))
    energy[which] = energies
    # Rounding must not decide between samples of equal energy.
    order = energy.double().round(decimals=9).sort(stable=True).indices[:count]
    return different[order], energy[order]


def _check_spins(spins: Tensor) -> None:
    if spins.ndim != 2 or not bool((spins.abs() == 1).all()):
        raise ValueError(f"spins must be −1 or +1 and have shape (samples, n), got {tuple(spins.shape)}")
