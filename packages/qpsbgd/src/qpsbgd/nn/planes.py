"""The signs ±1 of all layers of a model at once: on a GPU launching a kernel takes longer than the kernel.

After a backward pass the first layer that is called computes the planes of every layer that the pass has reached, in a
few kernels instead of several per layer, and as one node of the graph. They serve until a backward pass reaches it.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qpsbgd.nn.straight_through import is_transformed, sign, straight_through

if TYPE_CHECKING:
    from qpsbgd.nn.layers import BinaryLayer

DEVICES = {"cuda"}
"""Types of devices on which layers share kernels."""


def planes_of(layer: BinaryLayer) -> Tensor:
    """The planes of a layer, in the shape of its weight; the gradient passes straight through."""
    weight, shared = layer.weight, layer.shared
    if shared is None or weight.device.type not in DEVICES or not (_by_steps(weight) and _shareable(layer, weight)):
        return straight_through(layer.plane_values(), weight, layer.unit)
    return shared.planes_of(layer, weight)


class SharedPlanes:
    """The planes of the layers of one model; a copy of the model starts without."""

    def __init__(self) -> None:
        self._planes: dict[int, tuple[Tensor, Tensor, int]] = {}  # by layer: planes, the weight, its version
        self._circumstances: tuple[int, torch.dtype | None] | None = None
        self._reached: weakref.WeakSet[BinaryLayer] = weakref.WeakSet()

    def __reduce__(self) -> tuple[type[SharedPlanes], tuple[()]]:
        return SharedPlanes, ()

    def planes_of(self, layer: BinaryLayer, weight: Tensor) -> Tensor:
        """The planes of a layer of the model."""
        device = weight.device
        stream = torch._C._cuda_getCurrentRawStream(device.index) if weight.is_cuda else 0  # another could be too early
        autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        if self._circumstances != (stream, autocast):
            self._planes, self._circumstances = {}, (stream, autocast)
        planes, of, version = self._planes.get(id(layer), (weight, None, 0))
        if of is weight and version == weight._version:
            return planes
        others = (other for other in self._reached if other is not layer and _shareable(other, other.weight))
        layers = [layer, *(other for other in others if other.weight.device == device)]
        weights = [other.weight for other in layers]
        values = _Planes.apply(self, layers, autocast, *weights)  # type: ignore[no-untyped-call]
        for other, value, source in zip(layers, values, weights, strict=True):
            self._planes[id(other)] = value, source, source._version
        self._reached.clear()
        return self._planes[id(layer)][0]

    def reached_by_gradients(self, layers: Sequence[BinaryLayer]) -> None:
        """The weights of these layers may have other values when a layer is called again."""
        self._planes = {}
        self._reached.update(layers)


def _shareable(layer: BinaryLayer, weight: Tensor) -> bool:
    """Whether a layer's planes may be computed with others': in training, and the weight is all here."""
    return layer.training and type(weight) is nn.Parameter and weight.requires_grad and weight.is_contiguous()


def _by_steps(weight: Tensor) -> bool:
    """Whether passes run now, with gradients, in this process alone.

    A CUDA graph must not keep the planes of one step. Several processes exchange the gradients of every layer as soon
    as they are there, not those of all layers at the end.
    """
    if is_transformed() or not torch.is_grad_enabled():  # first: a compiler cannot trace what follows
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    return not (weight.is_cuda and torch.cuda.is_current_stream_capturing())


class _Planes(torch.autograd.Function):
    """The planes of layers from their weights."""

    @staticmethod
    def forward(
        ctx: Any, shared: SharedPlanes, layers: list[BinaryLayer], autocast: torch.dtype | None, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.shared, ctx.layers = weakref.ref(shared), [weakref.ref(layer) for layer in layers]
        ctx.units = [layer.unit for layer in layers]
        ctx.set_materialize_grads(False)
        alike: dict[Any, list[int]] = defaultdict(list)
        for place, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
            row = weight[0].numel() // layer.bits
            rounded = layer.bits == 1 and layer.scale is None  # what autocast would round to its type anyway
            dtype = autocast if rounded and autocast else weight.dtype
            alike[row, layer.bits, layer.unit is None, weight.dtype, dtype].append(place)
        values = list(weights)
        for (row, bits, plain, _, dtype), places in alike.items():
            rows = torch.cat([weights[place].view(-1, bits, row) for place in places])
            if plain:
                signs = sign(rows)
            else:
                units = torch.cat([ctx.units[place].expand(len(weights[place])) for place in places])
                scales = magnitudes(rows, units[:, None], layers[places[0]].coefficients)
                signs = scaled_signs(rows, scales[..., None])
            parts = torch.split(signs.to(dtype), [len(weights[place]) for place in places])
            for place, part in zip(places, parts, strict=True):
                values[place] = part.view(weights[place].shape)
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        shared, layers = ctx.shared(), [layer() for layer in ctx.layers]
        if shared is not None:
            shared.reached_by_gradients(
                [layer for layer, grad in zip(layers, grads, strict=True) if layer is not None and grad is not None]
            )
        # A product with one element, not with a scalar, has the unit's precision.
        pairs = zip(grads, ctx.units, strict=True)
        return None, None, None, *(g if g is None or unit is None else g * unit.reshape(1) for g, unit in pairs)


def magnitudes(weights: Tensor, unit: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """The scales of planes of weights (m, bits, n) by their mean size: (m, bits)."""
    sizes = weights.abs().mean(-1)
    if len(coefficients) > 1:
        sizes = torch.stack([c * size for c, size in zip(coefficients, sizes.unbind(1), strict=True)], 1)
    return unit * sizes


def scaled_signs(weight: Tensor, scales: Tensor) -> Tensor:
    """± the scales, with + for zero."""
    return torch.where(weight >= 0, scales, -scales)
