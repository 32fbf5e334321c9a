"""The steps of the ridge: `qpsbgd.optim.ridge` has the mathematics, this file tapes, weights and factorised systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import InputTape
from qpsbgd.optim import ridge
from qpsbgd.optim.binaryconnect import normalized
from qpsbgd.optim.blocks import Blocks
from qpsbgd.optim.layerwise import clipped
from qpsbgd.optim.ranks import Ranks
from qpsbgd.optim.step_figures import Observer, now
from qpsbgd.optim.together import no_rows, total_rows

Member = tuple[dict[str, Any], BinaryLayer]
"""A layer and its parameter group."""


class RidgeSteps:
    """Makes the steps of one optimiser, and holds its factorised systems, which are neither copied nor saved."""

    def __init__(self) -> None:
        self._inverses: dict[BinaryLayer, Tensor] = {}

    def advance(
        self,
        layer: BinaryLayer,
        fresh: ridge.Moments | None,
        *,
        state: Mapping[str, Any],
        options: Mapping[str, Any],
        loss_scale: Tensor | None,
        tell: Observer | None,
    ) -> ridge.Advance:
        """A layer's step; nothing is changed yet.

        Args:
            layer: A layer with a gradient.
            fresh: Moments of its new input rows, if there are any.
            state: What is kept of it.
            options: Its parameter group.
            loss_scale: A GradScaler's factor in the gradient.
            tell: Takes the layer's figures; None where nobody asks for them.

        Raises:
            RuntimeError: The state does not fit the gradient.
            ValueError: The layer's inputs are not finite, or too alike for the ridge.
        """
        grad = layer.weight.grad
        assert grad is not None
        begun = 0.0 if tell is None else now(grad.device)
        _check_kept(layer, state, grad)
        try:
            advance = ridge.advance(
                state,
                grad if loss_scale is None else grad / loss_scale,
                fresh,
                inverses=self._inverses.get(layer),
                blocks=Blocks.of(layer, options["block"]),
                options=options,
            )
        except ValueError as error:
            raise ValueError(f"{layer}: {error}") from error
        if tell is not None:
            tell(layer, {"penalty": advance.state["penalty"], "seconds": now(grad.device) - begun})
        return advance

    def finish(
        self, layer: BinaryLayer, advance: ridge.Advance, *, state: dict[str, Any], lr: float, clip: float | None
    ) -> None:
        """Move the layer's weights and keep its state."""
        layer.weight.copy_(clipped(layer.weight - lr * normalized(advance.direction), clip))
        state.update(advance.state)
        self._inverses[layer] = advance.inverses
        input_tape(layer).clear()


def fresh_moments(
    members: Sequence[Member], *, states: Mapping[Tensor, Any], ranks: Ranks
) -> dict[BinaryLayer, ridge.Moments]:
    """Moments of the new input rows of all ranks, for the layers that have some.

    One process takes what was recorded; several go by the number of steps, which all of them count alike.
    """
    found = [(group, layer, input_tape(layer).rows()) for group, layer in members]
    if ranks.size == 1:
        due = [(group, layer, rows) for group, layer, rows in found if rows is not None]
        count = {layer: len(rows) for _, layer, rows in due}
    else:
        steps = {layer: states.get(layer.weight, {}).get("step", 0) for _, layer, _ in found}
        due = [
            (group, layer, no_rows(layer) if rows is None else rows)
            for group, layer, rows in found
            if ridge.due(steps[layer], group["refresh"])
        ]
        count = total_rows({layer: len(rows) for _, layer, rows in due}, ranks)
    due = [(group, layer, rows) for group, layer, rows in due if count[layer]]
    sums = [ridge.moment_sum(_typed(rows, layer), Blocks.of(layer, group["block"])) for group, layer, rows in due]
    if ranks.size > 1:
        sums = ranks.summed(sums)
    pairs = zip(due, sums, strict=True)
    return {layer: ridge.Moments(total / count[layer], count[layer]) for (_, layer, _), total in pairs}


def _typed(rows: Tensor, layer: BinaryLayer) -> Tensor:
    return rows.to(layer.weight.device, torch.promote_types(layer.weight.dtype, torch.float32))


def tell_tape(layer: BinaryLayer, state: Mapping[str, Any], refresh: int) -> None:
    """Tell a layer's tape whether the next step renews Q̄."""
    input_tape(layer).wanted = ridge.due(state.get("step", 0), refresh)


def input_tape(layer: BinaryLayer) -> InputTape:
    """The tape on which the layer records rows of its inputs."""
    assert isinstance(layer.tape, InputTape)
    return layer.tape


def _check_kept(layer: BinaryLayer, state: Mapping[str, Any], grad: Tensor) -> None:
    """Raise RuntimeError where the mean gradient does not fit the new one."""
    if "gradient" not in state:
        return
    kept, dtype = state["gradient"], torch.promote_types(grad.dtype, torch.float32)
    found, wanted = (kept.dtype, kept.device, tuple(kept.shape)), (dtype, grad.device, tuple(grad.shape))
    if found != wanted:
        raise RuntimeError(
            f"the momentum of {layer} is {found}, but its gradient {wanted}; convert or move the model before the "
            "optimiser is made, load a state of the same model, or make a new optimiser"
        )
