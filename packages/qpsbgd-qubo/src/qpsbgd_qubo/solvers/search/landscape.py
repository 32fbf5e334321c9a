"""A family prepared for single flips, where searches start, and which of two answers is better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qpsbgd_qubo.arrays import cast, type_name
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import Array, aligned


@dataclass(frozen=True, eq=False)
class Landscape:
    """A family prepared for single flips: flipping spin i changes the energy by −2 gᵢ fᵢ, f = s + couplings · g."""

    couplings: Array  # 2 Q with a zero diagonal, shape (n, n)
    linear: Array  # s, shape (n, m)
    threshold: Array  # smallest gain gᵢ fᵢ that cannot be a rounding error, shape (m,)

    @classmethod
    def of(cls, family: QuboFamily) -> Landscape:
        """The landscape of a family of arrays."""
        couplings, reach = hollow_couplings(family.quadratic)
        return cls(aligned(couplings), family.linear, thresholds(reach, abs(family.linear).max(0)))

    def fields(self, spins: Array) -> Array:
        """The local fields of `spins`, both of shape (n, m)."""
        return self.linear + self.couplings @ spins


def hollow_couplings(quadratic: Any) -> tuple[Any, Any]:
    """2 Q without its diagonal, of an array or a tensor (n, n), and the largest field that it can make."""
    n = len(quadratic)
    couplings = 2 * quadratic.reshape(-1)
    couplings[:: n + 1] = 0
    couplings = couplings.reshape(n, n)
    return couplings, abs(couplings).sum(1).max()


def thresholds(reach: Any, largest: Any) -> Any:
    """The smallest gain that counts, from the couplings' reach and the columns' largest linear terms."""
    return 8 * float(np.finfo(type_name(largest)).eps) * (reach + largest)


def sign_start(family: QuboFamily) -> Any:
    """sign(−s), the optimum when the gradient is large; shape (n, m)."""
    return 2 * cast(family.linear <= 0, family.linear) - 1


def random_spins(family: QuboFamily, generator: np.random.Generator) -> Any:
    """Independent fair spins, shape (n, m); drawn on the CPU, so they are the same on every device."""
    bits = generator.integers(0, 2, size=tuple(family.linear.shape), dtype=np.int8)
    return cast(2 * bits - 1, family.linear)


def better_of(solution: Solution, other: Solution) -> Solution:
    """The lower energy of the two, column by column, `solution` where they are equal; its arrays are overwritten."""
    wins = other.energies < solution.energies
    for name in ("spins", "energies", "proven_optimal"):
        getattr(solution, name)[..., wins] = getattr(other, name)[..., wins]
    if "flips" not in solution.stats:
        return solution
    return replace(solution, stats=solution.stats | {"flips": solution.stats["flips"] + other.stats.get("flips", 0)})
