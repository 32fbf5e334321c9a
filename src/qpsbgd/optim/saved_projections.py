"""Projections in saved states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qpsbgd.projections import Projection


def described(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state dict with plain descriptions in place of projections."""
    groups = [
        {**g, "projection": g["projection"].describe()} if isinstance(g.get("projection"), Projection) else g
        for g in state_dict["param_groups"]
    ]
    return {**state_dict, "param_groups": groups}


def restored(state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A described state dict with projections again: those of `groups`, with the saved options.

    Raises:
        ValueError: It was saved by another projection.
    """
    found = [dict(group) for group in state_dict["param_groups"]]
    made: dict[tuple[int, str], Projection] = {}
    for own, group in zip(groups, found, strict=True):
        if "projection" not in group or "projection" not in own:
            continue
        projection: Projection = own["projection"]
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
    return {"state": dict(state_dict["state"]), "param_groups": found}
