"""Ising problems whose couplings are a full matrix, in numpy: what a `QuboFamily` is, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qpsbgd_qubo.kernels import Array

if TYPE_CHECKING:
    from qpsbgd_qubo.family import QuboFamily

MAX_DENSE = 10_000
"""The most spins of a problem that is made dense: its matrix then takes 0.8 GB, and solvers need several of those."""


@dataclass(frozen=True, eq=False)
class DenseIsing:
    """m problems over n spins that share their quadratic part, E_j(g) = gᵀ Q g + s_jᵀ g + c_j; nothing is checked.

    Attributes:
        quadratic: Q, symmetric, shape (n, n).
        linear: s, shape (n, m).
        offset: c, shape (m,).
    """

    quadratic: Array
    linear: Array
    offset: Array

    @classmethod
    def of_family(cls, family: QuboFamily) -> DenseIsing:
        """The same as a family, in its floating type."""
        parts = (family.quadratic, family.linear, family.offset)
        return cls(*(part.detach().cpu().numpy() for part in parts))

    @property
    def num_spins(self) -> int:
        """n, the number of spins."""
        return len(self.linear)

    @property
    def num_columns(self) -> int:
        """m, the number of problems."""
        return int(self.linear.shape[1])

    @property
    def num_couplings(self) -> int:
        """How many pairs of spins are coupled."""
        return int(np.count_nonzero(np.triu(self.quadratic, 1)))

    @property
    def constant(self) -> float:
        """What the first problem's couplings and fields do not depend on: c and, since g_i² = 1, the trace of Q."""
        return float(self.offset[0]) + float(np.trace(self.quadratic))

    def couplings(self) -> Array:
        """2 Q without its diagonal, (n, n), float64."""
        couplings = np.multiply(self.quadratic, 2, dtype=np.float64)
        np.fill_diagonal(couplings, 0)
        return couplings

    def energies(self, spins: Any) -> Array:
        """Energies of one spin vector per problem: (n, m) → (m,), float64."""
        spins = np.asarray(spins)
        if spins.shape != self.linear.shape:
            raise ValueError(f"spins must have shape (n, m) = {self.linear.shape}, got {spins.shape}")
        spins = spins.astype(np.float64)
        found: Array = ((self.quadratic @ spins + self.linear) * spins).sum(0) + self.offset
        return found

    def __mul__(self, factor: float) -> DenseIsing:
        if not isinstance(factor, int | float):
            return NotImplemented
        return DenseIsing(self.quadratic * factor, self.linear * factor, self.offset * factor)

    def to_family(self) -> QuboFamily:
        """The same as a family."""
        import torch

        from qpsbgd_qubo.family import QuboFamily

        return QuboFamily.trusted(*(torch.from_numpy(part) for part in (self.quadratic, self.linear, self.offset)))

    def __repr__(self) -> str:
        return f"DenseIsing(n={self.num_spins}, m={self.num_columns})"


class TooLargeError(MemoryError, ValueError):
    """A problem has too many variables for what is to be done with it."""


def check_dense(num_spins: int) -> int:
    """The number itself, if a problem of that many spins may be made dense."""
    if num_spins > MAX_DENSE:
        raise TooLargeError(
            f"a dense problem may have up to {MAX_DENSE} variables, got {num_spins}: one matrix would take "
            f"{8 * num_spins**2:,} bytes; use a solver that keeps problems sparse"
        )
    return num_spins
