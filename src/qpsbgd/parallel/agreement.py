"""The settings that ranks compare before a step, and the moments or rows that they exchange for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerMoments, LayerRecord
from qpsbgd.parallel.ranks import Ranks
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections import Projection

Record = LayerRecord | LayerMoments | None


def described(
    groups: Iterable[Mapping[str, Any]], layers: Iterable[BinaryLayer], states: Mapping[Tensor, Any]
) -> list[str]:
    """Descriptions that must be equal on all ranks: options, layers, steps made, and the solvers' numbers."""
    lines = []
    for group in groups:
        options = {name: value for name, value in group.items() if name != "params"}
        projection: Projection | None = options.pop("projection", None)
        if projection is not None:
            options |= projection.describe()
        solver: Any = None if projection is None else projection.solver
        plain = {one.name: getattr(solver, one.name) for one in fields(solver)} if is_dataclass(solver) else {}
        numbers = {name: value for name, value in plain.items() if isinstance(value, int | float | None)}
        own = "" if solver is None else f" and the solver {type(solver).__name__} with {numbers}"
        lines.append(f"the options {options}{own}")
    for number, layer in enumerate(layers):
        weight, state = layer.weight, states.get(layer.weight, {})
        lines.append(
            f"layer {number} of shape {tuple(weight.shape)} in {weight.dtype}, {'in' if layer.training else 'not in'} "
            f"training, with{'out' if weight.grad is None else ''} a gradient, after {state.get('step', 0)} steps"
        )
    return [*lines, f"{len(lines)} lines"]


def compared(layers: Sequence[BinaryLayer]) -> dict[str, list[tuple[str, Tensor]]]:
    """Gradients and weights with their layers' names, which must be equal on all ranks, bit for bit; not of shards."""
    weights: list[tuple[str, Tensor]] = [(str(one), one.weight) for one in layers if not is_sharded(one.weight)]
    grads = [(name, weight.new_empty(0) if weight.grad is None else weight.grad) for name, weight in weights]
    return {"gradients": grads, "weights": weights}


def gather_records(
    records: Mapping[BinaryLayer, Record], wanted: Mapping[BinaryLayer, Projection], ranks: Ranks
) -> dict[BinaryLayer, Record]:
    """The moments of all ranks summed, or their rows gathered: N ranks then take the step of one process.

    `wanted` are the layers whose records this step needs, the same on all ranks, with their projections.
    """
    found, own = dict(records), dict[BinaryLayer, Record]()
    for layer, projection in wanted.items():
        own[layer] = records[layer]
        if own[layer] is None:  # this rank did not use the layer
            weight, width = layer.weight, layer.groups * math.prod(layer.weight.shape[1:])
            dtype = torch.promote_types(weight.dtype, torch.float32)
            nothing = torch.empty(0, width, dtype=dtype, device=weight.device)
            grads = nothing.new_empty(0, len(weight) if projection.output_grads else 0)
            moments_of = projection.moments(layer)
            own[layer] = LayerMoments(moments_of(nothing), 0) if moments_of else LayerRecord(nothing, grads)
    rows = {layer: record for layer, record in own.items() if isinstance(record, LayerRecord)}
    parts = iter(ranks.gather_rows([part for record in rows.values() for part in (record.inputs, record.output_grads)]))
    for layer in rows:
        inputs, grads = next(parts), next(parts)
        found[layer] = LayerRecord(inputs, grads) if len(inputs) else None
    moments = {layer: record for layer, record in own.items() if isinstance(record, LayerMoments)}
    if moments:
        counts = torch.tensor([-1 if records[layer] is None else record.rows for layer, record in moments.items()])
        for (layer, record), all_counts in zip(moments.items(), ranks.all_gather(counts).T, strict=True):
            used, total = all_counts.max().item() >= 0, int(all_counts.clamp(min=0).sum())
            found[layer] = LayerMoments(ranks.all_reduce(record.sums), total) if used else None
    return found
