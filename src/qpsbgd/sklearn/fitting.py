"""What the estimators train with: rows with weights in a fixed order, and columns with scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

Rows = NDArray[Any]

_MOST_REPEATS = 8
"""Whole weights repeat rows as long as there are at most this many times as many then; others weigh the loss."""


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Rows to train with, dense or sparse (CSR), their targets and, where they differ, their weights."""

    rows: Any
    values: Rows
    weights: Rows | None

    @classmethod
    def of(cls, rows: Any, values: Rows, weights: Rows | None) -> WeightedRows:
        """The samples in an order of their own, whole weights replaced by repeated rows.

        So the order of the data makes no difference, and a weight of two is the same as two rows.
        """
        if weights is not None:
            if (weights < 0).any() or not weights.any():
                raise ValueError(f"sample weights must not be negative, nor all zero, got {weights}")
            repeats = np.rint(weights).astype(int)
            if np.array_equal(repeats, weights) and repeats.sum() <= _MOST_REPEATS * len(weights):
                which, weights = np.repeat(np.arange(len(weights)), repeats), None
            else:
                which = np.flatnonzero(weights)
                weights = weights[which] / weights[which].mean()
            rows, values = rows[which], values[which]
        direction = np.random.default_rng(0).standard_normal(rows.shape[1]).astype(rows.dtype)
        tie = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
        order = np.lexsort((tie, rows @ direction))
        return cls(rows[order], values[order], None if weights is None else weights[order])

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def part(self, which: Rows) -> WeightedRows:
        """The samples of these numbers."""
        return WeightedRows(self.rows[which], self.values[which], None if self.weights is None else self.weights[which])


@final
class ScaledColumns(nn.Module):
    """Standardised columns times the scales of a network's first norm, which are trained in this place."""

    def __init__(self, norm: nn.BatchNorm1d) -> None:
        super().__init__()
        self.weight = norm.weight

    def forward(self, rows: Tensor) -> Tensor:
        """(B, n) → (B, n)."""
        return rows * self.weight


def dense(rows: Any) -> Rows:
    """Rows as a dense array."""
    return rows if isinstance(rows, np.ndarray) else rows.toarray()
