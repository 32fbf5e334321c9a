"""The polar projection: the mean gradient with all of its singular values made equal, as Muon takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from qpsbgd.projections.blocks import Blocks
from qpsbgd.projections.protocol import Direction, LayerInputs, Projection, check_fits
from qpsbgd.projections.system import normalized

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Muon's quintic iteration (Jordan et al., 2024): five steps bring singular values near one."""


@dataclass(frozen=True)
class Polar(Projection):
    """G = polar(S̄), divided by its root mean square over the layer; it needs no rows.

    The orthogonal factor whitens both sides of the mean gradient S̄ by itself, where the ridge whitens the input side by
    Q̄. One step costs 15 matrix products per layer: cheap on a GPU, dear on a CPU.
    """

    name = "polar"
    kept: ClassVar[tuple[str, ...]] = ("gradient", "step")
    sharded = MappingProxyType({"gradient": 0})

    def due(self, step: int) -> bool:
        """Never: no rows are recorded."""
        return False

    def ready(self, inputs: LayerInputs) -> bool:
        """Always."""
        return True

    def capturable(self, grad: Tensor, cached: Mapping[str, Any]) -> bool:
        """Always."""
        return True

    def answers(self, inputs: Sequence[LayerInputs]) -> list[Direction]:
        """The orthogonal factors of all layers."""
        return [_answer(one) for one in inputs]


def _answer(inputs: LayerInputs) -> Direction:
    mean = inputs.grad.clone()
    if inputs.momentum and "gradient" in inputs.state:
        check_fits(inputs.layer, inputs.state["gradient"], inputs.grad)
        mean = torch.lerp(inputs.grad, inputs.state["gradient"], inputs.momentum)
    whole, own = mean, slice(None)
    if inputs.shards is not None:
        whole, own = inputs.shards.whole(mean, len(inputs.layer.weight))
    blocks = Blocks.of(inputs.layer, None)
    direction = normalized(blocks.merged(orthogonalized(blocks.weights(whole)), whole))
    return Direction(direction[own], {"gradient": mean, "step": inputs.state.get("step", 0) + 1})


def orthogonalized(matrices: Tensor, steps: int = 5) -> Tensor:
    """Nearly the orthogonal factors of matrices (count, m, n), by Newton and Schulz's iteration."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    norms = torch.linalg.matrix_norm(x, keepdim=True)
    x = x / torch.where(norms > 0, norms, 1)
    if x.is_cuda:
        x = x.bfloat16()
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.to(matrices.dtype)
    return x.transpose(1, 2) if tall else x
