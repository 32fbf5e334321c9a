"""Layers whose Q would not fit into memory: their inputs in blocks, one family after the other.

    minimise (w'_k − ŵ_k)ᵀ Q_kk (w'_k − ŵ_k),   w'_k = w_k + Q_kk⁻¹ Σ_{l≠k} Q_kl (w_l − ŵ_l),   block by block

Every block k answers for its own weights and for the error that the blocks before it leave; blocks that are still to
come have none yet. Of Q only Q_kk is made: what else is needed of it are products with a few vectors per output, summed
over the rows in another pass over the data. An output has one scale per bit for all blocks. In the first sweep over the
blocks each has its own all the same; they then become one, fitted to the whole layer, and stand in the sweeps after it.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from qpsbgd.binarization.layer_fit import RIDGE, LayerFit
from qpsbgd.binarization.moments import Moments, NormMoments, summable
from qpsbgd.binarization.planes import Effort, Fit, best_scales
from qpsbgd.nn import sign

Rows = Callable[[bool], Iterator[tuple[Tensor, Tensor | None]]]
"""Makes all rows of a layer's inputs, part by part, the same ones every time; if asked, with their targets."""
SWEEPS = 3  # sweeps of the search over all blocks: the loss of one falls from 2.3 to 1.03 times that of the whole layer
MOST_KEPT = 2 * 2**30
"""Bytes of Q_kk that are kept from one sweep to the next; those beyond are made again, which takes most of the time."""
LEAST_AT_ONCE = 64  # rows of a pass that are taken together at least, whatever memory they need


def rows_at_once(inputs: int, most_inputs: int) -> int:
    """So many rows that they need no more memory than Q of a block."""
    return max(LEAST_AT_ONCE, most_inputs**2 // inputs)


def passes_over(inputs: int, most_inputs: int, *, bits: int, targets: bool, effort: Effort) -> int:
    """How often `WideLayer` reads all rows: moments, targets, the scales of every plane, and its sweeps."""
    return 1 + targets + bits + _sweeps(effort) * (1 + -(-inputs // most_inputs))


def _sweeps(effort: Effort) -> int:
    return {"rounding": 0, "feedback": 2}.get(str(effort.solver), SWEEPS)


class WideLayer:
    """The planes of a layer with weights (groups, n, m), in double precision, and inputs (B, groups · n), in blocks.

    Where `centred`, errors count around their mean, which a bias can take. With `targets` the outputs should come near
    those of the rows, t, instead of those of the weights: with d = mean(x (t − wᵀx)ᵀ), block k answers for d_k, too.
    """

    def __init__(
        self, rows: Rows, weights: Tensor, *, bits: int, most_inputs: int, centred: bool, targets: bool = False
    ) -> None:
        size = weights.abs().amax()
        self._size = torch.where(size > 0, size, 1.0)
        self._weights, self._rows, self._centred = weights / self._size, rows, centred
        moments = NormMoments()
        for part, _ in rows(False):
            moments.add(part)
        groups, n, m = weights.shape
        self._count = moments.count
        self.mean = moments.mean.reshape(groups, n)
        power = moments.variance.mean() + (0.0 if centred else self.mean.square().mean())
        self._unit = torch.where(power > 0, power, 1.0)
        self._missing, self._missing_variance = torch.zeros_like(self._weights), weights.new_zeros(())
        self.target_mean: Tensor | None = None
        if targets:
            self.target_mean = self._add_targets(weights.new_zeros(groups, m))
        width = -(-n // -(-n // most_inputs))
        self._blocks = [slice(start, min(start + width, n)) for start in range(0, n, width)]
        self._metrics: dict[int, Tensor] = {}
        self._most_kept = MOST_KEPT // (8 * groups * width**2)
        self._planes = weights.new_empty(0, groups, n, m)
        # A block's own; those of an output are equal at the end.
        self._scales = weights.new_empty(0, groups, len(self._blocks), m)
        for _ in range(bits):
            rest = self._weights - self._approximation()
            self._planes = torch.cat([self._planes, sign(rest)[None]])
            start = self._fit_scales()
        self._lost = {"rounding": start}
        self._margins = torch.zeros_like(self._planes)

    def fitted(self, effort: Effort) -> LayerFit:
        """Planes and scales, searched as the effort says."""
        for sweep in range(_sweeps(effort)):
            for number, block in enumerate(self._blocks):
                self._search(number, block, effort, first=sweep == 0)
            self._lost["feedback" if effort.solver == "feedback" else "search"] = self._fit_scales()
        return LayerFit(
            self._planes.movedim(1, 2).flatten(2),
            self._size * self._scales[:, :, 0].flatten(1),
            self._size * self._margins.movedim(1, 2).flatten(2),
            self._size * (self._weights - self._approximation()),
            self._lost,
        )

    def _add_targets(self, mean: Tensor) -> Tensor:
        """Take in what the targets have that the outputs of the weights have not; the mean of the targets."""
        rest_sum = torch.zeros_like(mean)
        for part, wanted in self._rows(True):
            assert wanted is not None
            around, rows = self._around(part), summable(wanted).reshape(len(wanted), *mean.shape)
            rest = rows.transpose(0, 1) / (self._size * self._unit.sqrt()) - around @ self._weights.to(around)
            self._missing += around.mT @ rest.to(around)
            self._missing_variance = self._missing_variance + rest.square().sum()
            mean += rows.sum(0)
            rest_sum += rest.sum(1)
        self._missing, self._missing_variance = self._missing / self._count, self._missing_variance / self._count
        if self._centred:
            self._missing_variance = self._missing_variance - (rest_sum / self._count).square().sum()
        return mean / self._count

    def _approximation(self) -> Tensor:
        parts = zip(self._blocks, self._scales.unbind(2), strict=True)
        return torch.cat([(scales[:, :, None] * self._planes[:, :, block]).sum(0) for block, scales in parts], 1)

    def _search(self, number: int, block: slice, effort: Effort, *, first: bool) -> None:
        error = self._weights - self._approximation()
        error[:, slice(block.start, None) if first else block] = 0  # at first, blocks from here on are still real
        metrics, products = self._seen(number, block, error)
        for group, (metric, product) in enumerate(zip(metrics, products, strict=True)):
            weights = self._weights[group, block] + torch.linalg.solve(metric, product)
            planes = self._planes[:, group, block]
            fit = Fit(metric, weights, planes, self._scales[:, group, number], fixed=not first)
            if first or effort.solver == "feedback":
                list(fit.improve(effort))
            else:
                fit.search(effort)
            self._scales[:, group, number] = fit.scales
            self._planes[:, group, block], self._margins[:, group, block] = fit.planes, fit.margins()

    def _seen(self, number: int, block: slice, error: Tensor) -> tuple[Tensor, Tensor]:
        """Q_kk + ridge (groups, k, k) of a block, and Σ_l Q_kl e_l + d_k (groups, k, m) for errors e (groups, n, m)."""
        kept, products = self._metrics.get(number), torch.zeros_like(error[:, block])
        moments = Moments(*products.shape[:2])
        for around in map(self._around, self._inputs()):
            if kept is None:
                moments.add(around[..., block].transpose(0, 1).flatten(1))
            products.add_(around[..., block].mT @ (around @ error.to(around)))
        if kept is None:
            kept = moments.metric(centred=self._centred)
            kept.diagonal(dim1=1, dim2=2).add_(RIDGE)
            if len(self._metrics) < self._most_kept:
                self._metrics[number] = kept
        return kept, products / self._count + self._missing[:, block]

    def _fit_scales(self) -> float:
        """The best scales for the planes, negated where these are negative; the relative error then left."""
        vectors, bits = torch.cat([self._weights[None], self._planes]), len(self._planes)
        grams = self._weights.new_zeros(len(self.mean), self._weights.shape[2], bits + 1, bits + 1)
        for around in map(self._around, self._inputs()):
            outputs = around @ vectors.to(around)  # (1 + bits, groups, B, m)
            grams.add_(torch.einsum("agrm,bgrm->gmab", outputs, outputs))
        grams /= self._count
        ridged = grams + RIDGE * torch.einsum("agnm,bgnm->gmab", vectors, vectors)
        missing = torch.einsum("agnm,gnm->gma", vectors, self._missing)
        scales = best_scales(ridged[..., 1:, 1:], ridged[..., 1:, 0] + missing[..., 1:])
        rest = torch.cat([torch.ones_like(scales[..., :1]), -scales], -1)  # of the weights, in terms of the vectors
        lost = torch.einsum("gma,gmab,gmb->", rest, grams, rest) + 2 * (rest * missing).sum() + self._missing_variance
        whole = grams[..., 0, 0].sum() + 2 * missing[..., 0].sum() + self._missing_variance
        scales = scales.movedim(-1, 0)[:, :, None].expand(-1, -1, len(self._blocks), -1)  # for all blocks
        self._planes = torch.where(scales[:, :, :1] < 0, -self._planes, self._planes)
        self._scales = scales.abs()
        return float(lost / whole) if whole > 0 else 0.0

    def _inputs(self) -> Iterator[Tensor]:
        return (part for part, _ in self._rows(False))

    def _around(self, rows: Tensor) -> Tensor:
        """Rows by group around their mean, in units in which Q has a mean diagonal of one: (groups, B, n)."""
        rows = summable(rows).reshape(-1, *self.mean.shape)
        around = rows - self.mean.to(rows) if self._centred else rows
        return (around / self._unit.sqrt().to(rows)).transpose(0, 1)
