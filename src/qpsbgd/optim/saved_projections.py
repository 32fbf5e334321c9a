"""Projections in saved states, and how options were spelt before projections had their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qpsbgd.projections import Projection

MOVED = {
    "scale": 'projection=Printed(scale="literal") for the equation as printed, or Spins(kappa={value!r})',
    "ridge": "projection=Ridge(delta={value!r})",
    "memory": "projection=Ridge(memory={value!r})",
    "refresh": "projection=Ridge(refresh={value!r})",
    "block": "projection=Ridge(block={value!r}), or the same with Spins or Printed",
    "rows": "projection=Ridge(rows={value!r}), or the same with Spins or Printed",
}
"""Options that were the optimiser's, and their new spelling."""

_OLD_RIDGE = {"ridge": "delta", "memory": "memory", "refresh": "refresh", "block": "block", "rows": "rows"}
_OLD_GROUP = {*_OLD_RIDGE, "scale"}


def check_moved(options: Mapping[str, Any]) -> None:
    """Raise TypeError for options that QPSBGD does not have, with the new spelling of those that it had."""
    for name, value in options.items():
        if name in MOVED:
            raise TypeError(
                f"{name} is now an option of the projection: {MOVED[name].format(value=value)} "
                "(from qpsbgd.projections)"
            )
        raise TypeError(f"QPSBGD has no option {name!r}")


def described(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state dict with plain descriptions in place of projections."""
    groups = [
        {**g, "projection": g["projection"].describe()} if isinstance(g.get("projection"), Projection) else g
        for g in state_dict["param_groups"]
    ]
    return {**state_dict, "param_groups": groups}


def restored(state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A described state dict with projections again: those of `groups`, with the saved options.

    States of version 0.1 are taken too, where the projection is still the same.

    Raises:
        ValueError: It was saved by another projection, or by one that is no more.
    """
    found = [dict(group) for group in state_dict["param_groups"]]
    states = {number: dict(state) for number, state in state_dict["state"].items()}
    made: dict[tuple[int, str], Projection] = {}
    for own, group in zip(groups, found, strict=True):
        if "projection" not in group or "projection" not in own:
            continue
        projection: Projection = own["projection"]
        if isinstance(group["projection"], str):
            _modernise(group, [states[number] for number in group["params"] if number in states])
        saved = group["projection"]
        if not isinstance(saved, Mapping) or not isinstance(saved.get("name"), str):
            raise ValueError(f"a saved projection must have a name and options, got {saved!r}")
        name, saved = saved["name"], {option: value for option, value in saved.items() if option != "name"}
        if name != projection.name:
            raise ValueError(
                f'this state was saved with projection="{name}", but this optimiser has "{projection.name}"; make it '
                f'with projection="{name}", or start the optimiser anew from the saved model'
            )
        if unknown := sorted(saved.keys() - projection.describe().keys()):
            raise ValueError(f"the saved projection has {', '.join(unknown)}, which {projection.name} has not")
        same = all(getattr(projection, option) == value for option, value in saved.items())
        key = (id(projection), repr(saved))
        group["projection"] = made.setdefault(key, projection if same else replace(projection, **saved))
    return {"state": states, "param_groups": found}


def _modernise(group: dict[str, Any], states: Sequence[dict[str, Any]]) -> None:
    """Bring a group of version 0.1, and the states of its weights, into today's form."""
    old = {name: group.pop(name) for name in _OLD_GROUP if name in group}
    if group["projection"] == "ridge":
        group["projection"] = {"name": "ridge", **{new: old[name] for name, new in _OLD_RIDGE.items() if name in old}}
    elif old.get("scale") == "literal":
        group["projection"] = {"name": "printed", **{name: old[name] for name in ("scale", "block", "rows")}}
        for state in states:
            if state and state["quadratic"].ndim == 2:  # a single block
                state.update({name: value[None] for name, value in state.items() if name != "step"})
    else:
        raise ValueError(
            "this state was saved by the spins of version 0.1, which answered other QUBOs than today's and kept other "
            "means; finish that run with version 0.1, or start the optimiser anew from the saved model"
        )
