"""First and second moments of a layer's inputs, summed over batches in double precision."""

import torch
from torch import Tensor

AT_ONCE = 2048  # rows whose products are summed in one go
BLOCK = 256  # inputs whose products with those after them are made at once: the others are the same ones mirrored


class Moments:
    """Sums over rows (B, groups · n); memory for n² numbers per group, whatever the number of rows."""

    def __init__(self, groups: int, inputs: int, name: str = "") -> None:
        self.count, self._name = 0, name
        self._shape = groups, inputs
        self._shift = self._sum = self._products = torch.zeros(0)
        self._target_shift = self._target_sum = self._cross = torch.zeros(0)

    def add(self, rows: Tensor, targets: Tensor | None = None) -> None:
        """Take in rows (B, groups · n), and what their outputs should be (B, groups · m); raises ValueError for NaN."""
        if not len(rows):
            return
        self._check(rows, "its inputs hold NaN or infinite values")
        groups, inputs = self._shape
        if not self.count:
            self._shift = _summable(rows[:AT_ONCE]).mean(0).reshape(groups, 1, inputs)
            self._sum = torch.zeros(groups, inputs, dtype=torch.float64, device=rows.device)
            self._products = torch.zeros(groups, inputs, inputs, dtype=torch.float64, device=rows.device)
            if targets is not None:
                self._target_shift = _summable(targets[:1]).reshape(groups, 1, -1)  # constant targets are then zeros
                self._target_sum = self._cross = self._sum.new_zeros(1)
        for part in torch.split(rows, AT_ONCE):
            around = _summable(part).reshape(-1, groups, inputs).transpose(0, 1) - self._shift
            self._sum += around.sum(1)
            for start in range(0, inputs, BLOCK):
                upper = around[..., start : start + BLOCK].mT @ around[..., start:]
                self._products[:, start : start + BLOCK, start:] += upper
        if targets is not None:
            wanted = _summable(targets).reshape(len(rows), groups, -1).transpose(0, 1) - self._target_shift
            around = _summable(rows).reshape(-1, groups, inputs).transpose(0, 1) - self._shift
            self._cross = self._cross + around.mT @ wanted
            self._target_sum = self._target_sum + wanted.sum(1)
        self.count += len(rows)

    @property
    def target_mean(self) -> Tensor:
        """The mean of the targets, (groups, m)."""
        return self._target_sum / self.count + self._target_shift[:, 0]

    def cross(self, *, centred: bool) -> Tensor:
        """The mean of x · targetᵀ, (groups, n, m), of both around their means where `centred`."""
        offset, target_offset = self._sum / self.count, self._target_sum / self.count
        covariance = self._cross / self.count - offset[:, :, None] * target_offset[:, None, :]
        return covariance if centred else covariance + self.mean[:, :, None] * self.target_mean[:, None, :]

    @property
    def mean(self) -> Tensor:
        """The mean of the rows, (groups, n)."""
        return self._sum / self.count + self._shift[:, 0]

    def metric(self, *, centred: bool) -> Tensor:
        """The mean of x xᵀ, (groups, n, n), of x around its mean where `centred`; raises ValueError if it overflows."""
        self._check(self._products, "the squares of its inputs overflow")
        for stop in range(BLOCK, len(self._products[0]), BLOCK):
            block = slice(stop - BLOCK, stop)
            self._products[:, stop:, block] = self._products[:, block, stop:].mT
        offset, mean = self._sum / self.count, self.mean
        covariance = self._products / self.count - offset[:, :, None] * offset[:, None, :]
        return covariance if centred else covariance + mean[:, :, None] * mean[:, None, :]

    def _check(self, values: Tensor, problem: str) -> None:
        if not values.isfinite().all():
            where = "look for them in the calibration data, or in the model"
            raise ValueError(f"{self._name}: {problem}; {where}")


def _summable(rows: Tensor) -> Tensor:
    """Rows in the precision in which their products are made: their own on a CPU, at least single.

    Around a fixed point near their mean that is exact enough, since sums over more than `AT_ONCE` rows are in double.
    GPUs may round single products to ten bits, so that double is taken there.
    """
    return rows.to(torch.float64 if rows.is_cuda else torch.promote_types(rows.dtype, torch.float32))
