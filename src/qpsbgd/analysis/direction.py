"""Do projected directions point where the gradient points? The paper's test of the CDP assumption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DirectionTest:
    """k of n compared entries have the gradient's sign; results of several updates can be added."""

    k: int
    n: int

    @property
    def z(self) -> float:
        """Z = (k − n/2)/√(n/4); above 1.96, random directions are ruled out at 95 %."""
        return (self.k - self.n / 2) / math.sqrt(self.n / 4) if self.n else 0.0

    def __add__(self, other: DirectionTest) -> DirectionTest:
        return DirectionTest(self.k + other.k, self.n + other.n)


def direction_test(projected: Tensor | Sequence[Tensor], gradient: Tensor | Sequence[Tensor]) -> DirectionTest:
    """Compare the signs of projected directions with those of the full-batch gradient, entry by entry.

    Entries where either is zero say nothing and are left out.

    Args:
        projected: Binary directions, one tensor or one per layer (`full_batch` gives them in the shape of `weight`).
        gradient: The full batch's gradients, of the same shapes.
    """
    left, right = ([t] if isinstance(t, Tensor) else list(t) for t in (projected, gradient))
    if [t.shape for t in left] != [t.shape for t in right]:
        raise ValueError(f"shapes differ: {[tuple(t.shape) for t in left]} and {[tuple(t.shape) for t in right]}")
    result = DirectionTest(0, 0)
    for direction, slope in zip(left, right, strict=True):
        if not (direction.isfinite().all() and slope.isfinite().all()):
            raise ValueError("directions and gradients must be finite")
        compared = (direction != 0) & (slope != 0)
        agree = compared & (direction.sign() == slope.sign())
        result += DirectionTest(int(agree.sum()), int(compared.sum()))
    return result
