"""A model's layers over a whole data set at its binary weights: records and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.model_summary import evaluating
from qpsbgd.nn.tape import LayerRecord, taped

Batches = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class FullBatch:
    """One layer over all data: its name, the layer, its rows, and ∂E/∂W in the shape of `weight`."""

    name: str
    layer: BinaryLayer
    record: LayerRecord
    gradient: Tensor


def full_batch(model: nn.Module, data: Batches, loss: Loss) -> list[FullBatch]:
    """One entry per binary layer that a gradient reached, with the mean loss over all of `data`.

    The model is evaluated as in `model.eval()`, with binary weights whatever its optimiser does in training. No
    parameter, `.grad`, buffer or optimiser's record is changed.

    Args:
        model: A model with binary layers.
        data: (inputs, targets), or batches of them, as a DataLoader gives.
        loss: loss(model(inputs), targets), a mean over the batch.
    """
    pair = isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor)
    batches = cast(list[tuple[Tensor, Tensor]], [data] if pair else list(data))
    total = sum(len(targets) for _, targets in batches)
    if not total:
        raise ValueError("data holds no samples")
    named = [(name, m) for name, m in model.named_modules() if isinstance(m, BinaryLayer)]
    if not named:
        raise ValueError("the model has no binary layer")
    grouped = [name for name, layer in named if layer.groups > 1]
    if grouped:
        raise ValueError(f"the analysis takes layers of one group, but {', '.join(grouped)} has several")
    layers = [layer for _, layer in named]
    with torch.enable_grad(), evaluating(model), _recording(layers), taped(layers) as tapes:
        weights = [layer.weight for layer in layers]
        for inputs, targets in batches:
            value = loss(model(inputs), targets) * (len(targets) / total)
            torch.autograd.grad(value, weights, allow_unused=True)
        seen = [(name, layer, tape.read()) for (name, layer), tape in zip(named, tapes, strict=True)]
    return [
        FullBatch(name, layer, record, _gradient(layer, record))
        for name, layer, record in seen
        if isinstance(record, LayerRecord)
    ]


def _gradient(layer: BinaryLayer, record: LayerRecord) -> Tensor:
    """∂E/∂W = gain · Vᵀ X."""
    if layer.scaling is not None:
        raise ValueError(f"the theory is about layers without scales, got {layer}")
    return layer.gain * (record.output_grads.T @ record.inputs).reshape(layer.weight.shape)


@contextmanager
def _recording(layers: list[BinaryLayer]) -> Iterator[None]:
    """The layers record also in evaluation mode, with binary weights; whoever sets that mode resets it."""
    switches = [(layer, layer.latent_forward, layer.weight.requires_grad) for layer in layers]
    try:
        for layer in layers:
            layer.training, layer.latent_forward = True, False
            layer.weight.requires_grad_(True)
        yield
    finally:
        for layer, latent_forward, requires_grad in switches:
            layer.latent_forward = latent_forward
            layer.weight.requires_grad_(requires_grad)
