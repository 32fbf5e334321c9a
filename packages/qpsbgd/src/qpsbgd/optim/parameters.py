"""The arguments of an optimiser, models, layers or parameters, sorted into binary layers and the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.known_layers import layers_of
from qpsbgd.nn.layers import guard_fused_paths, label_layers
from qpsbgd.parallel.shards import check_shards, is_sharded

Layers = nn.Module | Iterable[nn.Module] | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
NamedTensor = Tensor | tuple[str, Tensor]

NO_LAYER = (
    "there is no binary layer here; build the model with qpsbgd.nn.BinaryLinear and its like, or make a copy of yours "
    "with binary layers: model = qpsbgd.nn.convert(model)"
)


@dataclass(frozen=True)
class ParameterSplit:
    """The members of a parameter group."""

    layers: list[BinaryLayer]  # of the given modules and weights, in order, each once
    given: list[Tensor]  # parameters that were given themselves and are not binary weights
    inside: dict[Tensor, str]  # those of the given modules that are not binary weights, and their names there
    names: dict[Tensor, str]  # names of parameters that were given with them

    @classmethod
    def of(cls, params: Layers) -> ParameterSplit:
        """The members of a model, layers, parameters, or parameters with names; anything else is an error."""
        modules: list[nn.Module] = []
        parameters: list[Tensor] = []
        names: dict[Tensor, str] = {}
        for item in _as_list(params):
            name, member = item if isinstance(item, tuple) and len(item) == 2 else (None, item)
            if isinstance(member, torch.jit.ScriptModule):
                raise TypeError("a binary optimiser cannot train a model of TorchScript; make it for the model itself")
            if isinstance(member, nn.Module):
                modules.append(member)
            elif isinstance(member, Tensor):
                parameters.append(member)
                names |= {} if name is None else {member: name}
            else:
                raise TypeError(
                    f"a binary optimiser takes a model, layers or parameters, got {type(member).__name__}; "
                    "pass the model or model.parameters()"
                )
        parts = list(dict.fromkeys(part for module in modules for part in module.modules()))
        guard_fused_paths(parts)
        owners = layers_of(parameters)
        layers = list(dict.fromkeys([*(part for part in parts if isinstance(part, BinaryLayer)), *owners]))
        weights = [layer.weight for layer in layers]
        if len(set(weights)) < len(weights):
            raise ValueError(
                "some weights belong to more than one layer; call one layer several times instead of sharing its weight"
            )
        given = [p for p in dict.fromkeys(parameters) if p not in {layer.weight for layer in owners}]
        inside: dict[Tensor, str] = {}
        for module in modules:
            label_layers(module)
            for name, p in module.named_parameters():
                inside.setdefault(p, name)
        for known in (*weights, *given):
            inside.pop(known, None)
        return cls(layers, given, inside, names)

    def with_names(self, parameters: list[Tensor]) -> list[NamedTensor]:
        """The parameters, with their names where they have some."""
        return [(self.names[p], p) if p in self.names else p for p in parameters]


def param_groups(params: Layers) -> list[dict[str, Any]]:
    """Parameter groups, each with a list of members, because iterators can be read only once."""
    items = _as_list(params)
    if items and all(isinstance(item, dict) for item in items):
        return [{**item, "params": _as_list(item["params"])} if "params" in item else item for item in items]
    return [{"params": items}]


def check_weights(layers: Iterable[BinaryLayer], ranks: int) -> None:
    """Raise TypeError if a layer's weight is not sharded by output units, a flat view, or computed from others."""
    for layer in layers:
        if is_sharded(layer.weight):
            check_shards(layer, ranks)
        # FSDP's older form replaces the parameter by a view of a flat one.
        if getattr(layer.weight, "_fsdp_flattened", False) or not isinstance(
            layer._parameters.get("weight"), nn.Parameter
        ):
            raise TypeError(
                f"the weight of {layer} is not a parameter of its own, but a view of a flat parameter, as "
                "FullyShardedDataParallel makes it, or computed from others, as under weight_norm, prune or a "
                "parametrization; use torch.distributed.fsdp.fully_shard or DistributedDataParallel, or undo it, as by "
                "torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')"
            )


def _as_list(params: Any) -> list[Any]:
    """One thing, or several in order, as a list."""
    if isinstance(params, set | frozenset):
        raise TypeError("parameters must come in an order that does not change between runs; give a list, not a set")
    return [params] if isinstance(params, nn.Module | Tensor | dict) else list(params)
