"""Weights that are not whole parameters are refused with the reason: the optimisers work on whole layers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from torch import nn

from qpsbgd.nn import BinaryLayer


def check_whole_weights(layers: Iterable[BinaryLayer]) -> None:
    """Raise TypeError if a layer's weight is a shard or a view of FSDP's, or computed from other parameters.

    A column's QUBO and a layer's ridge regression need all of its weights.
    """
    for layer in layers:
        weight = layer.weight
        own = isinstance(layer._parameters.get("weight"), nn.Parameter)
        computed = hasattr(layer, "parametrizations") or any(name.startswith("weight_") for name in layer._parameters)
        # FSDP's older form replaces the parameter by a view of a flat one, which the layer does not have.
        if hasattr(weight, "placements") or getattr(weight, "_fsdp_flattened", False) or not (own or computed):
            raise TypeError(
                f"the weight of {layer} is not a whole parameter; FSDP cuts weights into shards, but the binary "
                "optimisers need whole layers on every rank: use torch.nn.parallel.DistributedDataParallel instead"
            )
        if not own:
            raise TypeError(
                f"the weight of {layer} is not a parameter, but computed from others, as under weight_norm, "
                "spectral_norm, prune or a parametrization; a binary layer's latent weights must be a parameter: undo "
                "it with torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight'), remove_weight_norm or "
                "prune.remove"
            )


def check_not_split() -> None:
    """Raise TypeError if the optimiser is being made by torch's ZeroRedundancyOptimizer."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.distributed.optim.zero_redundancy_optimizer":
            raise TypeError(
                "ZeroRedundancyOptimizer gives every rank a part of the parameters, but a step of a binary optimiser "
                "needs what all ranks saw of all layers; make the optimiser itself on every rank, with "
                "torch.nn.parallel.DistributedDataParallel around the model: the solver's work is then shared"
            )
        frame = frame.f_back
