"""The parts of a QP-SBGD state that torch does not know: projections by description, solver states, and shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from qpsbgd.parallel.shards import from_saved, is_sharded, to_sharded
from qpsbgd.projections import PROJECTIONS, Projection

Groups = Sequence[Mapping[str, Any]]


def described_state(state: dict[str, Any], groups: Groups, projections: Iterable[Projection]) -> dict[str, Any]:
    """A state as torch makes it for these groups, in a form that can be saved."""
    for weight, number, dims in _numbered(groups, state["param_groups"]):
        if dims and number in state["state"]:
            kept = state["state"][number]
            parts = {name: to_sharded(kept[name], weight, dim) for name, dim in dims.items() if name in kept}
            state["state"][number] = {**kept, **parts}
    own = ({"projection": group["projection"].describe()} if "projection" in group else {} for group in groups)
    state["param_groups"] = [{**group, **texts} for group, texts in zip(state["param_groups"], own, strict=True)]
    states = [{} if one.solver is None else one.solver.state_dict() for one in projections]
    return {**state, "solvers": states} if any(states) else state


def with_projections(saved: Groups, groups: Groups, free: Projection | None) -> list[dict[str, Any]]:
    """Saved groups with projections in the place of their descriptions; those that had one object have one again.

    They must be those of the optimiser's own `groups`, with other options at most; in the place of `free`, which nobody
    asked for, any other may come.
    """
    made: dict[tuple[int, str], Projection] = {}
    found = [dict(group) for group in saved]
    for own, group in zip(groups, found, strict=True):
        if "projection" in group and "projection" in own:
            key = id(own["projection"]), repr(group["projection"])
            if key not in made:
                description, kind = group["projection"], own["projection"]
                name = description.get("name") if isinstance(description, Mapping) else None
                if free is not None and kind is free and name in PROJECTIONS and name != kind.name:
                    kind = PROJECTIONS[str(name)]()
                made[key] = kind.restored(description)
            group["projection"] = made[key]
    return found


def kept_tensors(state: Mapping[str, Any], groups: Groups) -> Iterator[tuple[Tensor, str, Tensor]]:
    """The saved tensors of every weight, by name, in the precision in which they were saved.

    Torch casts it to the parameter's, but that of half-precision layers stays in single precision.
    """
    for weight, number, dims in _numbered(groups, state["param_groups"]):
        for name, value in state["state"].get(number, {}).items():
            if isinstance(value, Tensor):
                cut = name in dims
                yield weight, name, from_saved(value, weight, dims[name]) if cut else value.clone().to(weight.device)


def _numbered(groups: Groups, saved: Groups) -> Iterator[tuple[Tensor, int, Mapping[str, int]]]:
    """All parameters, their numbers in a saved state, and the dimensions in which what is kept of them is cut."""
    for group, other in zip(groups, saved, strict=True):
        for weight, number in zip(group["params"], other["params"], strict=True):
            cut = "projection" in group and is_sharded(weight)
            yield weight, number, group["projection"].sharded if cut else {}
