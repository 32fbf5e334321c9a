"""Weights that FSDP2 has sharded: every rank has some output units of a layer, and answers their columns itself.

`torch.distributed.fsdp.fully_shard` cuts a weight by its first dimension, the output unit, so that a column's problem
lies on one rank. What all columns have in common is reduced: the moments behind Q̄, root mean squares.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from qpsbgd.nn import BinaryLayer

Groups = Sequence[Mapping[str, Any]]


def is_sharded(tensor: Tensor | None) -> bool:
    """Whether a tensor is distributed over ranks."""
    if tensor is None or type(tensor) in (Tensor, nn.Parameter):
        return False
    from torch.distributed.tensor import DTensor  # loading it takes almost half as long as loading torch

    return isinstance(tensor, DTensor)


def local(tensor: Any) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def check_shards(layer: BinaryLayer, ranks: int) -> None:
    """Raise TypeError or ValueError if the weight of a layer is sharded in a way that the optimisers cannot train."""
    from torch.distributed.tensor import Shard

    weight: Any = layer.weight
    if tuple(weight.placements) != (Shard(0),) or weight.device_mesh.size() != ranks:
        raise TypeError(
            f"the weight of {layer} must be sharded by its first dimension over all {ranks} ranks, as by "
            f"torch.distributed.fsdp.fully_shard, got {weight.placements} over {weight.device_mesh}; tensor parallel "
            "layers and meshes of several dimensions are not supported"
        )
    if layer.groups > 1:
        raise ValueError(f"{layer} has groups, whose outputs FSDP would cut apart; keep it out of fully_shard")


def distribute_saved(state: dict[str, Any], groups: Groups) -> None:
    """In a state as torch makes it for these groups, let what is kept of sharded weights be distributed like them."""
    for weight, number, dims in _saved_parameters(groups, state["param_groups"]):
        if dims and number in state["state"]:
            kept = state["state"][number]
            parts = {name: _as_dtensor(kept[name], weight, dim) for name, dim in dims.items() if name in kept}
            state["state"][number] = {**kept, **parts}


def _as_dtensor(value: Tensor, weight: Any, dim: int) -> Tensor:
    """This rank's part of something kept of a weight, cut along `dim`, as a tensor that is distributed like it."""
    from torch.distributed.tensor import DTensor, Shard

    shape = (*value.shape[:dim], weight.shape[0], *value.shape[dim + 1 :])
    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        value.contiguous(), weight.device_mesh, [Shard(dim)], run_check=False, shape=torch.Size(shape), stride=strides
    )


def saved_tensors(state: Mapping[str, Any], groups: Groups) -> Iterator[tuple[Tensor, str, Tensor]]:
    """The saved tensors of every weight, by name, in their own precision; this rank's part of them."""
    for weight, number, dims in _saved_parameters(groups, state["param_groups"]):
        for name, value in state["state"].get(number, {}).items():
            if isinstance(value, Tensor):
                cut = name in dims
                yield weight, name, _local_part(value, weight, dims[name]) if cut else value.clone().to(weight.device)


def _local_part(value: Any, weight: Any, dim: int) -> Tensor:
    """The inverse of `_as_dtensor`; a whole tensor, as one process saves it, is cut."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = weight.device_mesh
    if is_sharded(value):
        return local(value.redistribute(mesh, [Shard(dim)])).clone()
    return local(distribute_tensor(value.to(weight.device), mesh, [Shard(dim)])).clone()


def _saved_parameters(groups: Groups, saved: Groups) -> Iterator[tuple[Tensor, int, Mapping[str, int]]]:
    """All parameters, their numbers in a saved state, and the dimensions in which what is kept of them is cut."""
    for group, other in zip(groups, saved, strict=True):
        for weight, number in zip(group["params"], other["params"], strict=True):
            cut = "projection" in group and is_sharded(weight)
            yield weight, number, group["projection"].capabilities.sharded if cut else {}


def load_sharded(folder: str | Path, *, model: nn.Module, optimizer: Optimizer) -> None:
    """Restore a model and its optimiser from what torch.distributed.checkpoint has saved, on any number of ranks.

    Args:
        folder: Where `save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=folder)`
            wrote.
        model: Sharded or not, as it is now.
        optimizer: Made for this model.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    metadata = FileSystemReader(folder).read_metadata()
    members = [
        (weight, group["projection"].capabilities.sharded if "projection" in group else {})
        for group in optimizer.param_groups
        for weight in group["params"]
    ]
    kept: dict[str, Any] = {}
    for key, path in (metadata.planner_data or {}).items():
        if path[:2] == ("optimizer", "state"):
            number, *inner, name = path[2:]
            place = kept.setdefault(number, {})
            for outer in inner:
                place = place.setdefault(outer, {})
            place[name] = _memory_for(metadata.state_dict_metadata[key], *members[int(number)], name)
    state = {"model": model.state_dict(), "optimizer": {**optimizer.state_dict(), "state": kept}}
    load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    # The checkpoint has texts as keys.
    optimizer.load_state_dict({**state["optimizer"], "state": {int(number): entry for number, entry in kept.items()}})


def _memory_for(stored: Any, weight: Any, dims: Mapping[str, int], name: str) -> Tensor | None:
    """Memory for a stored tensor, distributed as the optimiser will want it; None for what is not a tensor."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    if not isinstance(stored, TensorStorageMetadata):
        return None
    dtype = stored.properties.dtype
    if not is_sharded(weight) or (name not in dims and stored.size != weight.shape):
        return torch.empty(stored.size, dtype=dtype, device=weight.device)
    from torch.distributed.tensor import Shard, zeros

    return zeros(stored.size, dtype=dtype, device_mesh=weight.device_mesh, placements=[Shard(dims.get(name, 0))])
