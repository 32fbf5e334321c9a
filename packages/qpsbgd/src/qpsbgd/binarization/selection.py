"""Which layers of a model become binary, and why others do not."""

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.conv import _ConvNd

from qpsbgd.nn.conversion import format_reasons, is_converted, outer_layers, reasons_to_stay

Select = Collection[str] | Callable[[str, nn.Module], bool] | None
Texts = dict[nn.Module, str]  # names of layers, or reasons to leave them


@dataclass(frozen=True)
class Selection:
    """The layers that become binary and those that could but shall not, by name; those that cannot, with the reason."""

    names: Texts
    real: Texts
    kept: dict[str, str]


def select_layers(
    model: nn.Module,
    layers: Select,
    *,
    calls: Mapping[nn.Module, int],
    unclear: Collection[nn.Module],
    first: bool,
    last: bool,
) -> Selection:
    """The layers to binarise, by the options of `binarize` and how often a pass calls each module, in its order.

    Those whose uses are `unclear` stay real-valued.
    """
    named = dict(model.named_modules())
    candidates = {module: name for name, module in named.items() if is_converted(module)}
    reasons = reasons_to_stay(model, named)
    for module, name in candidates.items():
        if module not in calls:
            reasons.setdefault(name, "no calibration batch reaches it")
        elif module in unclear:
            reasons.setdefault(name, "its weight is used elsewhere, too, or batches call it in different orders")
        elif calls[module] > 1 and isinstance(module, _ConvNd):
            reasons.setdefault(name, "it is a convolution that is used more than once")
    if layers is None:
        beginning, end = outer_layers({module: candidates.get(module, "") for module in calls})
        left = {*(() if first else beginning), *(() if last else end)}
        wanted = [name for name, module in named.items() if module not in left]
    elif callable(layers):
        wanted = [name for module, name in candidates.items() if layers(name, module)]
    else:
        wanted = _by_name(candidates.values(), layers, reasons)
    kept = {name: reasons[name] for name in wanted if name in reasons}
    binary = set(wanted) - set(reasons)
    chosen = {module: name for module, name in candidates.items() if name in binary}
    if not chosen:
        hint = format_reasons(kept) or (
            "the first and the last layer stay real-valued unless you pass first=True or last=True"
            if candidates
            else "the model has no real-valued linear layer or convolution; subclasses of torch's own are left alone"
        )
        raise ValueError(f"there is no layer to binarise ({hint})")
    if kept:
        warnings.warn(
            f"these layers stay real-valued: {format_reasons(kept)}; give `layers` without them if that is intended",
            stacklevel=5,
        )
    real = {module: name for module, name in candidates.items() if module not in chosen and name not in reasons}
    return Selection(chosen, real, kept)


def _by_name(candidates: Collection[str], layers: Collection[str], reasons: Mapping[str, str]) -> list[str]:
    asked = {layers} if isinstance(layers, str) else set(layers)
    if unknown := sorted(map(str, asked - set(candidates))):
        raise ValueError(
            f"layers must name linear layers or convolutions of the model, got {', '.join(unknown)}; there are "
            f"{', '.join(candidates) or 'none'}"
        )
    if bad := {name: reasons[name] for name in candidates if name in asked and name in reasons}:
        raise ValueError(f"these layers cannot be binarised; leave them out of `layers`: {format_reasons(bad)}")
    return [name for name in candidates if name in asked]
