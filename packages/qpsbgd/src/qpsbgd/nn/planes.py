"""The signs ±1 of all layers at once: on a GPU launching a kernel takes longer than the kernel.

After a backward pass the first layer of a model that is called computes the planes of all its layers that the pass has
reached, in a few kernels instead of several per layer. They serve until a backward pass reaches the layer.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qpsbgd.nn.straight_through import sign, straight_through, transformed

if TYPE_CHECKING:
    from qpsbgd.nn.layers import BinaryLayer

DEVICES = {"cuda"}
"""Types of devices on which layers share kernels."""
STALE: weakref.WeakSet[BinaryLayer] = weakref.WeakSet()
"""Layers that a backward pass has reached since their planes were computed."""


class ModelKey:
    """What the layers of one model share, and those of its copy another."""


@dataclass(frozen=True)
class Planes:
    """A layer's planes, and what they were computed from."""

    values: Tensor
    weight: Tensor
    version: int
    stream: int
    """Another stream could read them before they are written."""

    def of(self, weight: Tensor, dtype: torch.dtype, stream: int) -> bool:
        """Whether they are those of this weight as it is now, in this type and on this stream."""
        same = self.weight is weight and self.version == weight._version
        return same and self.values.dtype == dtype and self.stream == stream


def planes_of(layer: BinaryLayer) -> Tensor:
    """The planes of a layer, in the shape of its weight; the gradient passes straight through."""
    weight = layer.weight
    if not _shares(layer):
        return straight_through(layer.plane_values(), weight, layer.unit)
    stream = torch._C._cuda_getCurrentRawStream(weight.device.index) if weight.is_cuda else 0
    dtype = _dtype(layer)
    if layer.planes is None or not layer.planes.of(weight, dtype, stream):
        others = [
            other for other in STALE if other.model_key is layer.model_key and other.weight.device == weight.device
        ]
        layers = {layer, *filter(_shares, others)}
        _compute(layers, stream)
        STALE.difference_update(layers)
    assert layer.planes is not None
    return straight_through(layer.planes.values, weight, layer.unit, layer.expire_planes)


def _shares(layer: BinaryLayer) -> bool:
    """Whether a layer's planes may be computed with others': in training, eagerly, from a weight that is all here."""
    weight = layer.weight
    if weight.device.type not in DEVICES or not layer.training or not torch.is_grad_enabled() or transformed():
        return False
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():  # a graph must not keep the planes of one step
        return False
    return type(weight) is nn.Parameter and weight.requires_grad and weight.is_contiguous()


def _dtype(layer: BinaryLayer) -> torch.dtype:
    """What the layer computes in: that of autocast where planes are rounded to it anyway."""
    kind = layer.weight.device.type
    rounded = layer.bits == 1 and layer.scale is None and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if rounded else layer.weight.dtype


def _compute(layers: set[BinaryLayer], stream: int) -> None:
    """The planes of these layers, those with rows of one length together."""
    alike: dict[Any, list[BinaryLayer]] = defaultdict(list)
    for layer in layers:
        row = layer.weight[0].numel() // layer.bits
        alike[row, layer.bits, layer.unit is None, layer.weight.dtype, _dtype(layer)].append(layer)
    for (row, bits, plain, _, dtype), members in alike.items():
        weights = torch.cat([layer.weight.detach().view(-1, bits, row) for layer in members])
        if plain:
            values = sign(weights)
        else:
            units = torch.cat([layer.unit.expand(len(layer.weight)) for layer in members if layer.unit is not None])
            values = scaled_signs(weights, magnitudes(weights, units[:, None], members[0].coefficients)[..., None])
        parts = torch.split(values.to(dtype), [len(layer.weight) for layer in members])
        for layer, part in zip(members, parts, strict=True):
            layer.planes = Planes(part.view(layer.weight.shape), layer.weight, layer.weight._version, stream)


def magnitudes(weights: Tensor, unit: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """The scales of planes of weights (m, bits, n) by their mean size: (m, bits)."""
    sizes = weights.abs().mean(-1)
    if len(coefficients) > 1:
        sizes = torch.stack([c * size for c, size in zip(coefficients, sizes.unbind(1), strict=True)], 1)
    return unit * sizes


def scaled_signs(weight: Tensor, scales: Tensor) -> Tensor:
    """± the scales, with + for zero."""
    return torch.where(weight >= 0, scales, -scales)
