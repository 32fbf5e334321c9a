"""The algorithm of a QP-SBGD step as one function over lists; processes and CUDA graphs wrap it from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from qpsbgd.projections import Direction, LayerInputs, Projection


@dataclass(frozen=True, eq=False)
class LayerUpdate:
    """The update of one layer in a step.

    Attributes:
        weight: The latent weights, or this rank's part of them.
        inputs: What the projection gets; the step brings `state` and `cached` forward.
        projection: Turns the inputs into a direction.
        lr: Step size of the latent weights.
        clip: Their bound; None for none.
    """

    weight: Tensor
    inputs: LayerInputs
    projection: Projection
    lr: float | Tensor
    clip: float | None


def qpsbgd(updates: Sequence[LayerUpdate], clock: Callable[[], float] = float) -> list[Direction]:
    """Ω ← clip(Ω − lr · G, ±clip) for every layer, with G from its projection (Alg. 1); returns the directions.

    Weights and states change only after the directions of all layers are known.

    Args:
        updates: The layers that take part.
        clock: Returns the time, for `Direction.seconds`; by default zero.
    """
    directions: dict[LayerUpdate, Direction] = {}
    for projection in {id(update.projection): update.projection for update in updates}.values():
        own = [update for update in updates if update.projection is projection]
        begun = clock()
        answers = projection.answers([update.inputs for update in own])
        seconds = clock() - begun
        directions |= {update: replace(one, seconds=seconds) for update, one in zip(own, answers, strict=True)}
    for update, direction in directions.items():
        if isinstance(update.lr, Tensor):  # in a CUDA graph
            update.weight.sub_(update.lr * direction.values)
        else:
            update.weight.sub_(direction.values, alpha=update.lr)
        if update.clip is not None:
            update.weight.clamp_(-update.clip, update.clip)
        _keep(update.inputs.state, direction.state)
        _keep(update.inputs.cached, direction.cached)
    return [directions[update] for update in updates]


def _keep(kept: MutableMapping[str, Any], new: Mapping[str, Any]) -> None:
    """Make `new` what is kept; on a GPU in the existing tensors, because a CUDA graph has their addresses."""
    for name in kept.keys() - new.keys():
        del kept[name]
    for name, value in new.items():
        old = kept.get(name)
        if isinstance(old, Tensor) and old.is_cuda and old is not value and old.shape == value.shape:
            old.copy_(value)
        else:
            kept[name] = value
