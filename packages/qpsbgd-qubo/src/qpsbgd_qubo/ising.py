"""Columns of a family as Ising models: fields and couplings, as annealers use them."""

from __future__ import annotations

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
    if not (np.isfinite(linear).all() and np.isfinite(couplings).all()):
        raise ValueError("fields and couplings must be finite, but hold NaN or infinite values")
    norm = largest_eigenvalue(couplings)
    return [Ising(fields, couplings, norm) for fields in linear]
