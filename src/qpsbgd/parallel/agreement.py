"""What the ranks compare before a step, and the rows that they gather for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.parallel.ranks import Ranks
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections import Projection


def described(
    groups: Iterable[Mapping[str, Any]], layers: Iterable[BinaryLayer], states: Mapping[Tensor, Any]
) -> list[str]:
    """What must be the same on all ranks: options, layers, steps made, and the solvers' numbers."""
    lines = []
    for group in groups:
        options = {name: value for name, value in group.items() if name != "params"}
        projection: Projection | None = options.pop("projection", None)
        if projection is not None:
            options |= projection.describe()
        lines.append(f"the options {options}{_numbers(None if projection is None else projection.solver)}")
    for number, layer in enumerate(layers):
        weight, state = layer.weight, states.get(layer.weight, {})
        lines.append(
            f"layer {number} of shape {tuple(weight.shape)} in {weight.dtype}, {'in' if layer.training else 'not in'} "
            f"training, with{'out' if weight.grad is None else ''} a gradient, after {state.get('step', 0)} steps"
        )
    return [*lines, f"{len(lines)} lines"]


def _numbers(solver: Any) -> str:
    if solver is None:
        return ""
    plain = {field.name: getattr(solver, field.name) for field in fields(solver)} if is_dataclass(solver) else {}
    numbers = {name: value for name, value in plain.items() if isinstance(value, int | float | None)}
    return f" and the solver {type(solver).__name__} with {numbers}"


def compared(layers: Sequence[BinaryLayer]) -> dict[str, list[tuple[str, Tensor]]]:
    """Gradients and weights with their layers' names, which must be equal on all ranks, bit for bit; not of shards."""
    layers = [layer for layer in layers if not is_sharded(layer.weight)]
    grads = [layer.weight.new_empty(0) if layer.weight.grad is None else layer.weight.grad for layer in layers]
    names = [str(layer) for layer in layers]
    weights = [layer.weight for layer in layers]
    return {"gradients": list(zip(names, grads, strict=True)), "weights": list(zip(names, weights, strict=True))}


def gather_records(
    records: Mapping[BinaryLayer, LayerRecord | None],
    wanted: Mapping[BinaryLayer, Projection],
    ranks: Ranks,
) -> dict[BinaryLayer, LayerRecord | None]:
    """The rows of all ranks: QUBOs are sums over rows, so ranks take the step of one process with all of them.

    Args:
        records: Of this rank; None where nothing was recorded.
        wanted: The layers whose rows this step needs, the same on all ranks, with their projections.
        ranks: All of them.
    """
    found = dict(records)
    if ranks.size == 1:
        return found
    own = {layer: records[layer] or _no_rows(layer, projection) for layer, projection in wanted.items()}
    found.update({layer: own[layer] for layer in own if is_sharded(layer.weight)})  # their projections gather
    whole = [layer for layer in own if not is_sharded(layer.weight)]
    rows = iter(ranks.gather_rows([rows for layer in whole for rows in (own[layer].inputs, own[layer].output_grads)]))
    for layer in whole:
        inputs, grads = next(rows), next(rows)
        found[layer] = LayerRecord(inputs, grads) if len(inputs) else None
    return found


def _no_rows(layer: BinaryLayer, projection: Projection) -> LayerRecord:
    """The record of a layer that this rank did not use."""
    weight = layer.weight
    width = layer.groups * math.prod(weight.shape[1:])
    dtype = torch.promote_types(weight.dtype, torch.float32)
    inputs = torch.empty(0, width, dtype=dtype, device=weight.device)
    return LayerRecord(inputs, inputs.new_empty(0, len(weight) if projection.output_grads else 0))
