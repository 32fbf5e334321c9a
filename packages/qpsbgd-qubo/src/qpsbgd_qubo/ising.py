"""Columns of a family as Ising models: fields and couplings, as annealers use them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import Array


@dataclass(frozen=True, eq=False)
class Ising:
    """One column as the energy Σ hᵢ gᵢ + Σ_{i<j} Jᵢⱼ gᵢ gⱼ."""

    fields: Array  # h (n,)
    couplings: Array  # J (n, n), symmetric, its diagonal zero
    norm: float | None = None  # the largest absolute eigenvalue of J, if known: the columns of a family share it

    def strength(self, factor: float) -> float:
        """The coupling inside chains, factor · ‖J‖₂: only couplings can break a chain, fields pull all of it."""
        norm = largest_eigenvalue(self.couplings) if self.norm is None else self.norm
        return factor * (norm or float(np.abs(self.fields).max(initial=0.0)) or 1.0)

    @property
    def typical_field(self) -> float:
        """√(meanᵢ (hᵢ² + Σⱼ Jᵢⱼ²)), the typical field on a spin among random others; 1 if all coefficients are zero."""
        largest = max(np.abs(self.fields).max(initial=0.0), np.abs(self.couplings).max(initial=0.0))
        if not largest:
            return 1.0
        # Squares of very large or small numbers would overflow or vanish.
        fields, couplings = self.fields / largest, self.couplings / largest
        return float(largest * np.sqrt(np.mean(fields**2 + (couplings**2).sum(1))))

    def spin_reversed(self, gauge: Array) -> Ising:
        """The same problem after gᵢ → gaugeᵢ gᵢ, a spin-reversal transform."""
        return Ising(self.fields * gauge, self.couplings * np.outer(gauge, gauge), self.norm)


def largest_eigenvalue(couplings: Array) -> float:
    """The largest absolute eigenvalue of a symmetric matrix."""
    return float(np.abs(np.linalg.eigvalsh(couplings)[[0, -1]]).max()) if len(couplings) else 0.0


def ising_columns(family: QuboFamily) -> list[Ising]:
    """Every column of a family as fields h = s_j and couplings J = 2Q without diagonal; up to a constant."""
    couplings, linear = family.couplings(), family.numpy().double().linear.T.copy()
    _check_numbers(linear, couplings)
    norm = largest_eigenvalue(couplings)
    return [Ising(fields, couplings, norm) for fields in linear]


def direct_sum(parts: Sequence[Ising]) -> Ising:
    """Problems side by side as one: a layer of N neurons with n inputs is one problem of n · N spins."""
    if not parts:
        raise ValueError("a direct sum needs at least one problem")
    starts = np.cumsum([0, *(len(part.fields) for part in parts)])
    couplings = np.zeros((starts[-1], starts[-1]))
    for (low, high), part in zip(itertools.pairwise(starts), parts, strict=True):
        couplings[low:high, low:high] = part.couplings
    return Ising(np.concatenate([part.fields for part in parts]), couplings)


def in_range(ising: Ising, *, h_range: float = 4.0, j_range: float = 1.0) -> Ising:
    """The problem scaled to fill a chip's ranges: |h| ≤ h_range and |J| ≤ j_range, one of them reached."""
    check_finite(ising)
    fullest = max(np.abs(ising.fields).max() / h_range, np.abs(ising.couplings).max() / j_range)
    factor = 1 / fullest if fullest > 0 else 1.0
    return Ising(ising.fields * factor, ising.couplings * factor)


def check_finite(ising: Ising) -> None:
    """Raise ValueError if the shapes do not match or a coefficient is not finite."""
    n = len(ising.fields)
    if ising.couplings.shape != (n, n) or not n:
        raise ValueError(f"couplings must have shape (n, n) = ({n}, {n}), n ≥ 1, got {ising.couplings.shape}")
    _check_numbers(ising.fields, ising.couplings)


def _check_numbers(fields: Array, couplings: Array) -> None:
    if not (np.isfinite(fields).all() and np.isfinite(couplings).all()):
        raise ValueError("fields and couplings must be finite, but hold NaN or infinite values")
