"""The arithmetic of a QP-SBGD step, independent of how it is launched: plain calls and a CUDA graph use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.optim.blocks import Blocks
from qpsbgd.optim.layerwise import clipped
from qpsbgd.qubo import QuboFamily
from qpsbgd.qubo.binary_map import Scale


@dataclass(frozen=True)
class LayerOptions:
    """The options of the parameter group that a layer is in, at the time of a step."""

    lr: float
    scale: Scale
    momentum: float
    clip: float | None

    @classmethod
    def of(cls, group: Mapping[str, Any], *, lr: float, clip: float | None) -> LayerOptions:
        """The options in a parameter group, with the learning rate and bound of a layer."""
        return cls(lr, group["scale"], float(group["momentum"]), clip)


@dataclass(frozen=True, eq=False)
class LayerStep:
    """A block's share of a step; most layers are one block.

    Attributes:
        layer: Whose weights are moved.
        record: The rows that the block saw since the last step.
        options: Of its parameter group.
        mean: The mean of its earlier families; None before the first step, and without momentum.
        start: The spins of the last step (n, m), where the solver begins with them.
        count: How many steps the mean covers.
        blocks: How the layer is cut.
        index: Which block this is.
    """

    layer: BinaryLayer
    record: LayerRecord
    options: LayerOptions
    mean: QuboFamily | None
    start: Tensor | None
    count: int
    blocks: Blocks
    index: int

    @property
    def weight(self) -> Tensor:
        """The block's latent weights (m, n)."""
        return self.blocks.weights(self.layer.weight)[self.index]

    @property
    def rate(self) -> float:
        """The weight of the new family in the mean: (1 − β)/(1 − βᵗ), so that the first steps are not damped."""
        beta = self.options.momentum
        return (1 - beta) / (1 - beta ** (self.count + 1))


def averaged(mean: QuboFamily | None, fresh: QuboFamily, rate: float | Tensor) -> QuboFamily:
    """Mean + rate · (fresh − mean), the family that a step solves: Q̄ and S̄; `fresh` where there is no mean."""
    if mean is None:
        return fresh
    old, new = ([f.quadratic, f.linear, f.offset] for f in (mean, fresh))
    if isinstance(rate, Tensor):
        return QuboFamily.trusted(*(torch.lerp(*pair, rate) for pair in zip(old, new, strict=True)))
    return QuboFamily.trusted(*torch._foreach_lerp(old, new, rate))


def moved(
    weight: Tensor, fresh: QuboFamily, family: QuboFamily, spins: Tensor, *, lr: float | Tensor, clip: float | None
) -> Tensor:
    """clip(Ω − lr · G, ±clip) for the solution G = `spins` (n, m) of `family`, in the shape of `weight`.

    Weights that the rows say nothing about stay: those of a column without a linear term, for which every G has a
    twin −G; and those of an input without any term in `fresh`, the family of this step's rows alone: it was zero in
    all of them, and what the mean remembers of it would move its weight in one direction for ever.

    Args:
        weight: Ω.
        fresh: The family of this step's rows.
        family: The averaged family that was solved.
        spins: Its solution.
        lr: The learning rate.
        clip: The bound of the latent weights; None sets no bound.
    """
    seen = fresh.quadratic.diagonal()[:, None] + fresh.linear.abs() > 0
    update = (spins * (seen & family.linear.any(0))).T.reshape(weight.shape)
    return clipped(weight - lr * update, clip)
