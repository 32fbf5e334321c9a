"""Weights that FSDP has cut into shards are refused: the optimisers work on whole layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from qpsbgd.nn import BinaryLayer


def check_whole_weights(layers: Iterable[BinaryLayer]) -> None:
    """Raise TypeError, naming DistributedDataParallel, if a layer's weight is a shard or a view of FSDP's.

    A column's QUBO and a layer's ridge regression need all of its weights.
    """
    for layer in layers:
        weight = layer.weight
        sharded = hasattr(weight, "placements") or getattr(weight, "_fsdp_flattened", False)
        if sharded or not isinstance(weight, nn.Parameter):
            raise TypeError(
                f"the weight of {layer} is not a whole parameter; FSDP cuts weights into shards, but the binary "
                "optimisers need whole layers on every rank: use torch.nn.parallel.DistributedDataParallel instead"
            )
