"""The polar projection: the mean gradient with all of its singular values made equal, as Muon takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from qpsbgd.projections.blocks import Blocks
from qpsbgd.projections.protocol import Direction, Projection, Seen, check_fits
from qpsbgd.projections.system import normalized
from qpsbgd_qubo.solvers import Solver

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

    def due(self, step: int) -> bool:
        """Never: no rows are recorded."""
        return False

    def ready(self, seen: Seen) -> bool:
        """Always."""
        return True

    def capturable(self, grad: Tensor, cached: Mapping[str, Any]) -> bool:
        """Always."""
        return True

    def answers(self, seen: Sequence[Seen], shared: Callable[[Solver], Solver]) -> list[Direction]:
        """The orthogonal factors of all layers."""
        return [_answer(one) for one in seen]


def _answer(seen: Seen) -> Direction:
    mean = seen.grad.clone()
    if seen.momentum and "gradient" in seen.state:
        check_fits(seen.layer, seen.state["gradient"], seen.grad)
        mean = torch.lerp(seen.grad, seen.state["gradient"], seen.momentum)
    blocks = Blocks.of(seen.layer, None)
    direction = blocks.joined(orthogonalized(blocks.weights(mean)), mean)
    return Direction(normalized(direction), {"gradient": mean, "step": seen.state.get("step", 0) + 1})


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
