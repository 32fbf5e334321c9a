"""The algorithm of a QP-SBGD step, for any projection; processes and CUDA graphs wrap it from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from qpsbgd.projections import Direction, Projection, Seen
from qpsbgd.solvers import Solver

Shared = Callable[[Solver], Solver]


@dataclass(frozen=True, eq=False)
class Share:
    """A layer's share of a step.

    Attributes:
        seen: What the layer saw.
        projection: What answers it.
        lr: Step size of its latent weights.
        clip: Their bound; None for none.
        state: What is kept of the layer, brought forward by the step.
        cached: The same, of what is not saved.
    """

    seen: Seen
    projection: Projection
    lr: float | Tensor
    clip: float | None
    state: MutableMapping[str, Any]
    cached: MutableMapping[str, Any]


def advance(shares: Sequence[Share], shared: Shared, clock: Callable[[], float] = float) -> list[Direction]:
    """Ω ← clip(Ω − lr · G, ±clip) for every layer, with G from its projection (Alg. 1); the answers, per share.

    Weights and states change only after the answers to all layers have come.

    Args:
        shares: The layers that take part.
        shared: Returns a solver that several processes use together.
        clock: Returns the time, for the answers' `seconds`; by default zero.
    """
    answers: dict[Share, Direction] = {}
    for own in by_projection(shares):
        begun = clock()
        found = own[0].projection.answers([share.seen for share in own], shared)
        seconds = clock() - begun
        answers.update({share: replace(answer, seconds=seconds) for share, answer in zip(own, found, strict=True)})
    for share in shares:
        weight, answer = share.seen.layer.weight, answers[share]
        weight.sub_(share.lr * answer.values)
        if share.clip is not None:
            weight.clamp_(-share.clip, share.clip)
        keep(share.state, answer.state)
        keep(share.cached, answer.cached)
    return [answers[share] for share in shares]


def by_projection(shares: Iterable[Share]) -> list[list[Share]]:
    """The shares of each projection, which answers all of its layers together."""
    found: dict[int, list[Share]] = {}
    for share in shares:
        found.setdefault(id(share.projection), []).append(share)
    return list(found.values())


def keep(kept: MutableMapping[str, Any], new: Mapping[str, Any]) -> None:
    """Make `new` what is kept; on a GPU in the existing tensors, because a CUDA graph has their addresses."""
    for name in kept.keys() - new.keys():
        del kept[name]
    for name, value in new.items():
        old = kept.get(name)
        if isinstance(old, Tensor) and old.is_cuda and old is not value and old.shape == value.shape:
            old.copy_(value)
        else:
            kept[name] = value
