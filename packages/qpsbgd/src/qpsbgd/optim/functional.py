"""The algorithm of a QP-SBGD step as one function over lists; processes and CUDA graphs wrap it from outside."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from torch import Tensor

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
    *,
    before: Callable[[], None] = lambda: None,
) -> list[Direction]:
    """Ω ← clip(Ω − lr · G, ±clip) for every layer, with G from its projection (Alg. 1); returns the directions.

    No gradient, no step: a layer whose gradient is exactly zero stays where it is, and its memory fades.

    Weights and states change only after the directions of all layers are known, and `before` has returned.
    """
    directions: dict[LayerUpdate, Direction] = {}
    for projection in {id(update.projection): update.projection for update in updates}.values():
        served = [update for update in updates if update.projection is projection]
        directions |= zip(served, projection.directions([update.inputs for update in served]), strict=True)
    before()
    for update, direction in directions.items():
        moving = has_gradient(update.inputs)
        if isinstance(update.lr, Tensor):
            update.weight.sub_(update.lr * moving * direction.values)
        else:
            update.weight.sub_(direction.values * moving, alpha=update.lr)
        if update.clip is not None:
            update.weight.clamp_(-update.clip, update.clip)
        _replace_state(update.inputs.state, direction.state)
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


def _replace_state(kept: LayerState, new: LayerState) -> None:
    """Make `new` what is kept; on a GPU in the existing tensors, because a CUDA graph has their addresses."""
    for entry in fields(kept):
        name = entry.name
        old, value = getattr(kept, name), getattr(new, name, entry.default)
        # A number may come after a tensor, such as a penalty; copying a tensor to itself does nothing.
        if isinstance(old, Tensor) and isinstance(value, Tensor) and old.is_cuda and old.shape == value.shape:
            old.copy_(value)
            setattr(new, name, old)
        else:
            setattr(kept, name, value)
