"""The algorithm of a QP-SBGD step as one function over lists; processes and CUDA graphs wrap it from outside."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from qpsbgd.nn.tape import LayerMoments
from qpsbgd.projections import Direction, LayerInputs, Projection
from qpsbgd.projections.protocol import LayerState, has_gradient


@dataclass(frozen=True, eq=False)
class LayerUpdate:
    """The update of one layer in a step."""

    weight: Tensor  # the latent weights, or this rank's part of them
    inputs: LayerInputs  # what the projection gets; the step brings `state` forward
    projection: Projection  # turns the inputs into a direction
    lr: float | Tensor  # step size of the latent weights
    clip: float | None  # their bound


def qpsbgd(
    updates: Sequence[LayerUpdate],
    clock: Callable[[], float] = float,
    skip: Tensor | None = None,
    *,
    before: Callable[[], None] = lambda: None,
) -> list[Direction]:
    """Ω ← clip(Ω − lr · G, ±clip) for every layer, with G from its projection (Alg. 1); returns the directions.

    No gradient, no step: a layer whose gradient is exactly zero stays where it is, and its memory fades.

    Weights and states change only after the directions of all layers are known, and `before` has returned. `clock`
    returns the time, for `Direction.seconds`. Where `skip` is true, on the device, gradients and moments are not looked
    at, and weights and the tensors of states stay as they are.
    """
    if skip is not None:
        updates = [replace(update, inputs=_mask(update.inputs, skip)) for update in updates]
    directions: dict[LayerUpdate, Direction] = {}
    for projection in {id(update.projection): update.projection for update in updates}.values():
        served = [update for update in updates if update.projection is projection]
        begun = clock()
        results = projection.directions([update.inputs for update in served])
        seconds = clock() - begun
        pairs = zip(served, results, strict=True)
        directions |= {update: replace(direction, seconds=seconds) for update, direction in pairs}
    before()
    for update, direction in directions.items():
        rate = update.lr if skip is None else torch.where(skip, 0.0, update.lr)
        moving = has_gradient(update.inputs)
        if isinstance(rate, Tensor):
            update.weight.sub_(rate * moving * direction.values)
        else:
            update.weight.sub_(direction.values * moving, alpha=rate)
        if update.clip is not None:
            update.weight.clamp_(-update.clip, update.clip)
        _replace_state(update.inputs.state, direction.state, skip)
    return [directions[update] for update in updates]


def schedule(step: int, steps: int | None, warmup: float) -> float:
    """The factor on the rate at a step, from 0: up over `warmup` · steps, then a cosine to 0; 1 without `steps`."""
    if steps is None:
        return 1.0
    if step >= steps:
        return 0.0
    rising = max(1, round(warmup * steps)) if warmup else 0
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))


def _mask(inputs: LayerInputs, skip: Tensor) -> LayerInputs:
    """Inputs whose gradient and moments are zero where `skip` is true."""
    record = inputs.record
    if isinstance(record, LayerMoments):
        record = LayerMoments(torch.where(skip, 0.0, record.sums), record.rows)
    return replace(inputs, grad=torch.where(skip, 0.0, inputs.grad), record=record)


def _replace_state(kept: LayerState, new: LayerState, skip: Tensor | None) -> None:
    """Make `new` what is kept; on a GPU in the existing tensors, because a CUDA graph has their addresses."""
    for entry in fields(kept):
        name = entry.name
        old, value = getattr(kept, name), getattr(new, name, entry.default)
        if skip is not None and isinstance(value, Tensor) and old is not None and old is not value:
            value = torch.where(skip, old, value)
        # A number may come after a tensor, such as a penalty; copying a tensor to itself does nothing.
        if isinstance(old, Tensor) and isinstance(value, Tensor) and old.is_cuda and old.shape == value.shape:
            old.copy_(value)
            setattr(new, name, old)
        else:
            setattr(kept, name, value)
