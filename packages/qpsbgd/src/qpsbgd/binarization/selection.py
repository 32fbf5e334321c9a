"""Which layers of a model become binary, and why others do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import nn

from qpsbgd.nn.conversion import is_converted, parameter_uses, refusal

Select = Collection[str] | Callable[[str, nn.Module], bool] | None
Texts = dict[nn.Module, str]
"""Names of layers, or reasons to leave them."""


@dataclass(frozen=True)
class Selection:
    """The layers that become binary and those that could but shall not, by name; those that cannot, with the reason."""

    names: Texts
    real: Texts
    kept: dict[str, str]


def selected(model: nn.Module, layers: Select, *, calls: Mapping[nn.Module, int], first: bool, last: bool) -> Selection:
    """The layers to binarise, by the options of `binarize` and how often a pass calls each module, in its order.

    Raises:
        ValueError: A layer that was named cannot be binarised, or there is nothing to do.
    """
    candidates = {module: name for name, module in model.named_modules() if is_converted(module)}
    uses, reasons = parameter_uses(model), Texts()
    for module in candidates:
        reason = refusal(module, uses)
        if not reason and calls.get(module, 0) != 1:
            reason = "it is used more than once" if module in calls else "no calibration batch reaches it"
        if reason:
            reasons[module] = reason
    if layers is None:
        order = [module for module in calls if module in candidates]
        left = {*(() if first else order[:1]), *(() if last else order[-1:])}
        wanted = {module: name for module, name in candidates.items() if module not in left}
    elif callable(layers):
        wanted = {module: name for module, name in candidates.items() if layers(name, module)}
    else:
        wanted = _named(candidates, layers, reasons)
    kept = {name: reasons[module] for module, name in wanted.items() if module in reasons}
    chosen = {module: name for module, name in wanted.items() if module not in reasons}
    if not chosen:
        why = "; ".join(f"{name}: {reason}" for name, reason in kept.items())
        hint = why or (
            "the first and the last layer stay real-valued unless you pass first=True or last=True"
            if candidates
            else "the model has no real-valued linear layer or convolution; subclasses of torch's own are left alone"
        )
        raise ValueError(f"there is no layer to binarise ({hint})")
    if kept:
        listed = ", ".join(f"{name} ({reason})" for name, reason in kept.items())
        warnings.warn(
            f"these layers stay real-valued: {listed}; leave them out of `layers` if that is meant", stacklevel=5
        )
    real = {module: name for module, name in candidates.items() if module not in chosen and module not in reasons}
    return Selection(chosen, real, kept)


def _named(candidates: Texts, layers: Collection[str], reasons: Texts) -> Texts:
    asked = {layers} if isinstance(layers, str) else set(layers)
    if unknown := sorted(map(str, asked - set(candidates.values()))):
        raise ValueError(
            f"layers must name linear layers or convolutions of the model, got {', '.join(unknown)}; there are "
            f"{', '.join(candidates.values()) or 'none'}"
        )
    wanted = {module: name for module, name in candidates.items() if name in asked}
    if bad := [f"{name}: {reasons[module]}" for module, name in wanted.items() if module in reasons]:
        raise ValueError(f"these layers cannot be binarised; leave them out of `layers`: {'; '.join(bad)}")
    return wanted
