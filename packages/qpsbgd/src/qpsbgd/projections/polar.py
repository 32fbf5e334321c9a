"""The polar projection: the mean gradient with all of its singular values made equal, as Muon takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.projections.blocks import Blocks
from qpsbgd.projections.protocol import (
    Capabilities,
    Direction,
    LayerInputs,
    LayerShards,
    LayerState,
    Projection,
    mean_gradient,
    zero_idle_units,
)
from qpsbgd.projections.system import binary_size, unit_rms

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Muon's quintic iteration (Jordan et al., 2024): five steps bring singular values near one."""

SMALL = 2**17
"""Numbers in a matrix up to which those of one shape are taken together: a ResNet has many layers of few numbers, whose
products are mostly overhead; larger ones would just take more memory."""


@dataclass(frozen=True)
class Polar(Projection):
    """G = polar(S̄), divided by its root mean square over the layer; it needs no rows.

    Units whose gradient is exactly zero in a step do not move, and do not affect the others.

    The orthogonal factor whitens both sides of the mean gradient S̄ by itself, where the ridge whitens the input side by
    Q̄. One step costs 15 matrix products per layer: cheap on a GPU, expensive on a CPU.
    """

    name = "polar"
    capabilities = Capabilities(records=False, sharded={"gradient": 0})

    def capturable(self, inputs: LayerInputs) -> bool:
        """Always."""
        return True

    def directions(self, inputs: Sequence[LayerInputs]) -> list[Direction]:
        """The orthogonal factors of all layers."""
        means = [mean_gradient(each) for each in inputs]
        moving = [zero_idle_units(mean, each.grad) for each, mean in zip(inputs, means, strict=True)]
        factors = polar_factors([(each.layer, mean, each.shards) for each, mean in zip(inputs, moving, strict=True)])
        states = [LayerState(each.state.step + 1, mean) for each, mean in zip(inputs, means, strict=True)]
        return [Direction(factor, state) for factor, state in zip(factors, states, strict=True)]


def polar_factors(gradients: Sequence[tuple[BinaryLayer, Tensor, LayerShards | None]]) -> list[Tensor]:
    """The polar factors of layers' mean gradients, or of this rank's shards of them, of root mean square 1."""
    places = [
        (mean, slice(None)) if shards is None else shards.gather_units(mean, len(layer.weight))
        for layer, mean, shards in gradients
    ]
    blocks = [Blocks.of(layer, None) for layer, *_ in gradients]
    matrices = [cut.weights(whole) for cut, (whole, _) in zip(blocks, places, strict=True)]
    parts = zip(blocks, orthogonal_factors(matrices), places, strict=True)
    return [unit_rms(cut.rejoin(factor, whole))[units] for cut, factor, (whole, units) in parts]


def orthogonal_factors(matrices: Sequence[Tensor]) -> list[Tensor]:
    """The orthogonal factors of every (count, m, n), small ones of the same m and n together."""
    alike: dict[object, list[int]] = {}
    for number, matrix in enumerate(matrices):
        small = matrix[0].numel() <= SMALL
        alike.setdefault(matrix.shape[1:] if small else number, []).append(number)
    factors: dict[int, Tensor] = {}
    for numbers in alike.values():
        together = newton_schulz(torch.cat([matrices[number] for number in numbers]))
        factors |= zip(numbers, torch.split(together, [len(matrices[number]) for number in numbers]), strict=True)
    return [factors[number] for number in range(len(matrices))]


def newton_schulz(matrices: Tensor) -> Tensor:
    """Nearly the orthogonal factors of matrices (count, m, n), by five steps of Newton and Schulz's iteration."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.numel():
        x = x / binary_size(x, (1, 2))
    norms = torch.linalg.matrix_norm(x, keepdim=True)
    x = x / torch.where(norms > 0, norms, 1)
    if x.is_cuda:
        x = x.bfloat16()
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.to(matrices.dtype)
    return x.transpose(1, 2) if tall else x
