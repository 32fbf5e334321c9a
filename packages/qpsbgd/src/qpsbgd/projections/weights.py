"""The weights projection: chooses the binary weights themselves, as solutions of QUBOs, and keeps no latent ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerMoments
from qpsbgd.projections.blocks import Blocks
from qpsbgd.projections.polar import orthogonal_factors
from qpsbgd.projections.protocol import Capabilities, Direction, LayerInputs, Projection, check_fits, of_moving_units
from qpsbgd.projections.system import block_moments, normalized, system_matrix

STEERING = 0.05
"""c ← c · (flips / wanted)^STEERING in every step."""
FARTHEST = 20.0
"""The largest factor between flips and wanted ones that counts."""
REACHABLE = 1.5
"""Flips that are allowed per column for every wanted one: c cannot raise the share above what is allowed."""


@dataclass(frozen=True)
class Weights(Projection):
    """The weights that lower the layer's model of the loss, from where they stand.

        W_j ← lower ⟨Ḡ_j − c A W̄_j, w⟩ + (c/2) wᵀ A w   over w ∈ {−1, +1}ⁿ,   A = Q̄ / mean(diag Q̄)

    Ḡ and W̄ are running means of the gradient, divided by its root mean square over the layer, and of the binary
    weights. c is steered so that the rate of the parameter group is the share of weights that flip in a step.
    """

    name = "weights"
    capabilities = Capabilities(
        momentum=0.98,
        takes_rate=True,
        state_names=("gradient", "weights", "gram", "step", "refreshes", "curvature"),
    )

    max_flips: int = field(default=24, kw_only=True)
    couplings: bool = field(default=True, kw_only=True)
    direction: Literal["mean", "polar"] = field(default="mean", kw_only=True)
    unit_power: float = field(default=0.0, kw_only=True)
    """c of a unit is that of the layer times (rms of its mean gradient / that of the layer)^unit_power."""
    memory: float = field(default=0.9, kw_only=True)
    refresh: int = field(default=20, kw_only=True)

    def records_at(self, step: int) -> bool:
        """Whether Q̄ is renewed: every `refresh` steps, and more often at the start."""
        return step % self.refresh == 0 or (step < self.refresh and step & (step + 1) == 0)

    def moments(self, layer: BinaryLayer) -> Callable[..., Tensor]:
        """The sums of x xᵀ by block."""
        dtype = torch.promote_types(layer.weight.dtype, torch.float32)
        return partial(block_moments, Blocks.of(layer, self.block), dtype)

    def ready(self, inputs: LayerInputs) -> bool:
        """Whether a layer has a Q̄."""
        return inputs.record is not None or "gram" in inputs.state

    def directions(self, inputs: Sequence[LayerInputs]) -> list[Direction]:
        """2 Ω where a weight flips, and zero elsewhere."""
        return [self._direction(layer) for layer in inputs]

    def _direction(self, inputs: LayerInputs) -> Direction:
        blocks = Blocks.of(inputs.layer, self.block, len(inputs.grad))
        latent = inputs.layer.weight.detach()
        spins = torch.where(latent >= 0, 1.0, -1.0).to(inputs.grad)
        state, cached = dict(inputs.state) or {"step": 0, "refreshes": 0}, dict(inputs.cached)
        state["step"] += 1
        for name, new in {"gradient": inputs.grad, "weights": spins}.items():
            state[name] = _mean(inputs.layer, state.get(name), new, inputs.momentum, state["step"])
        if inputs.record is not None:
            assert isinstance(inputs.record, LayerMoments)
            state["refreshes"] += 1
            moments = inputs.record.sums / inputs.record.rows
            state["gram"] = _mean(inputs.layer, state.get("gram"), moments, self.memory, state["refreshes"])
            cached = {}
        if "matrix" not in cached:
            cached["matrix"] = system_matrix(state["gram"], 0.0, blocks)
        matrix = cached["matrix"] if self.couplings else torch.eye(blocks.width).to(spins).expand(blocks.count, -1, -1)
        if not inputs.rate:
            return Direction(torch.zeros_like(latent), state, cached)
        gradient = blocks.weights(self._target(state["gradient"], inputs.grad, blocks))
        start, mean = blocks.weights(spins), blocks.weights(state["weights"])
        wanted = min(inputs.rate, self.max_flips / (REACHABLE * blocks.width))
        if "curvature" not in state:
            state["curvature"] = _first_curvature(start * gradient, matrix, wanted)
        curvature = state["curvature"]
        if self.couplings:
            quadratic = curvature * matrix
            flipped = lower(quadratic, torch.baddbmm(gradient, mean, quadratic, alpha=-1), start, self.max_flips)
        else:
            flipped = start * (gradient - curvature * mean) > 0
        share = flipped.sum() / (wanted * latent.numel())
        state["curvature"] = curvature * share.clamp(1 / FARTHEST, FARTHEST) ** STEERING
        away = torch.where(latent == 0, torch.finfo(latent.dtype).tiny, 2 * latent)  # the sign of zero is +1
        return Direction(torch.where(blocks.merged(flipped, latent), away, 0), state, cached)

    def _target(self, mean: Tensor, grad: Tensor, blocks: Blocks) -> Tensor:
        """Ḡ in the model, with root mean square 1."""
        if self.direction == "polar":
            whole = Blocks(blocks.groups, blocks.inputs, blocks.outputs, 1)
            (factor,) = orthogonal_factors([whole.weights(of_moving_units(mean, grad))])
            mean = whole.merged(factor, mean)
        if power := 1.0 if self.direction == "polar" else self.unit_power:
            mean = normalized(of_moving_units(mean, grad))
            sizes = mean.flatten(1).square().mean(1).sqrt().reshape(-1, *(1,) * (mean.ndim - 1))
            mean = mean / torch.where(sizes > 0, sizes, 1) ** power
        return normalized(mean)


def lower(quadratic: Tensor, linear: Tensor, start: Tensor, max_flips: int) -> Tensor:
    """Which spins flip in a descent of ⟨s, w⟩ + ½ wᵀ Q w for Q (count, n, n), s and the start (count, m, n).

    All columns side by side flip the spin that gains most, until none does or `max_flips` flips are made; nothing waits
    for a GPU.
    """
    spins = start.clone()
    fields = torch.baddbmm(linear, spins, quadratic)
    thresholds = quadratic.diagonal(dim1=-2, dim2=-1)[:, None]
    count, width, _ = quadratic.shape
    rows, first = quadratic.reshape(count * width, width), width * torch.arange(count, device=start.device)[:, None]
    for _ in range(max_flips):
        gain, place = torch.sub(spins * fields, thresholds).max(-1, keepdim=True)
        step = torch.where(gain > 0, -2 * spins.gather(-1, place), 0)
        spins.scatter_add_(-1, place, step)
        fields.addcmul_(rows[place[..., 0] + first], step)
    return spins != start


def _first_curvature(gains: Tensor, matrix: Tensor, wanted: float) -> Tensor:
    """The c at which the `wanted` share of the spins gains by flipping alone."""
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)[:, None]
    ratios = torch.where(diagonal > 0, gains / torch.where(diagonal > 0, diagonal, 1), 0).flatten()
    rank = min(len(ratios), max(1, round((1 - wanted) * len(ratios))))
    limit = ratios.kthvalue(rank).values
    return torch.where(limit > 0, limit, 1)


def _mean(layer: BinaryLayer, last: Tensor | None, new: Tensor, memory: float, count: int) -> Tensor:
    """The running mean after `count` values, the first ones not damped."""
    if last is None:
        return new.clone()
    check_fits(layer, last, new)
    return torch.lerp(last, new, (1 - memory) / (1 - memory**count))

