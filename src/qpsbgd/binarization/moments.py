"""First and second moments of a layer's inputs, summed over batches in double precision."""

from __future__ import annotations

import torch
from torch import Tensor

AT_ONCE = 2048
"""Rows whose products are summed in one go."""


class Moments:
    """Sums over rows (B, groups · n); memory for n² numbers per group, whatever the number of rows.

    Args:
        groups: Groups of the layer.
        inputs: n, the inputs of a group.
        device: Where the rows are.
    """

    def __init__(self, groups: int, inputs: int, device: torch.device) -> None:
        self.count = 0
        self._shift: Tensor | None = None
        self._sum = torch.zeros(groups, inputs, dtype=torch.float64, device=device)
        self._products = torch.zeros(groups, inputs, inputs, dtype=torch.float64, device=device)

    def add(self, rows: Tensor) -> None:
        """Take in rows (B, groups · n).

        Raises:
            ValueError: A number is not finite.
        """
        if not len(rows):
            return
        if not rows.isfinite().all():
            raise ValueError("its inputs hold NaN or infinite values")
        # In the rows' own precision on a CPU, at least single: around a fixed point near their mean that is exact enough,
        # since sums over more than `AT_ONCE` rows are in double precision. GPUs may round single products to ten bits.
        dtype = torch.float64 if rows.is_cuda else torch.promote_types(rows.dtype, torch.float32)
        groups, inputs = self._sum.shape
        for part in rows.split(AT_ONCE):
            part = part.to(dtype).reshape(-1, groups, inputs).transpose(0, 1)
            if self._shift is None:
                self._shift = part.mean(1, keepdim=True)
            part = part - self._shift
            self._sum += part.sum(1)
            self._products += part.transpose(1, 2) @ part
        self.count += len(rows)

    @property
    def mean(self) -> Tensor:
        """The mean of the rows, (groups, n)."""
        assert self._shift is not None
        return self._sum / self.count + self._shift[:, 0]

    def covariance(self) -> Tensor:
        """The mean of (x − mean)(x − mean)ᵀ, (groups, n, n)."""
        offset = self._sum / self.count
        return self._products / self.count - offset[:, :, None] * offset[:, None, :]

    def second_moment(self) -> Tensor:
        """The mean of x xᵀ, (groups, n, n)."""
        mean = self.mean
        return self.covariance() + mean[:, :, None] * mean[:, None, :]
