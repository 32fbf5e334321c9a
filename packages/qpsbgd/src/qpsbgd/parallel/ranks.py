"""The processes that train one model together, and what they exchange."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerMoments, LayerRecord
from qpsbgd.projections import Projection

Record = LayerRecord | LayerMoments | None
Work = TypeVar("Work")


class Ranks:
    """The ranks of torch.distributed's default group, or a single one; every method is a collective."""

    def __init__(self) -> None:
        self.sent = 0  # bytes of tensors that this rank has sent

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def rank(self) -> int:
        """The number of this one."""
        return dist.get_rank() if self.size > 1 else 0

    def all_gather(self, values: Tensor) -> Tensor:
        """The tensors of all ranks, of one shape, stacked in their order."""
        sent = values.to(_place(values.device)).contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        with self._exchange(sent):
            dist.all_gather(parts, sent)
        return torch.stack(parts).to(values.device)

    def gather_units(self, part: Tensor, units: int) -> tuple[Tensor, slice]:
        """All `units` output units of a layer that FSDP has sharded, and which of them this rank's part are."""
        most = -(-units // self.size)  # torch's cut: all but the last ranks have so many
        begin = min(self.rank * most, units)
        return self._gather_padded(part, most).flatten(0, 1)[:units], slice(begin, begin + len(part))

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum of the tensors of all ranks."""
        sent = values.to(_place(values.device), copy=True).contiguous()
        with self._exchange(sent):
            dist.all_reduce(sent)
        return sent.to(values.device)

    def gather_rows(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Rows (B, …) of all ranks one after the other, per given tensor; ranks may have different numbers of them."""
        if self.size == 1 or not rows:
            return list(rows)
        counts = self.all_gather(torch.tensor([len(part_rows) for part_rows in rows], dtype=torch.int64)).T.tolist()
        gathered = []
        for part_rows, all_counts in zip(rows, counts, strict=True):
            everyone = self._gather_padded(part_rows, max(all_counts))
            gathered.append(torch.cat([part[:count] for part, count in zip(everyone, all_counts, strict=True)]))
        return gathered

    def _gather_padded(self, part: Tensor, most: int) -> Tensor:
        padded = part.new_zeros(most, *part.shape[1:])
        padded[: len(part)] = part
        return self.all_gather(padded) if most else padded[None].expand(self.size, *padded.shape)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The objects of all ranks, in their order: any that can be pickled."""
        objects = [None] * self.size
        with self._exchange(torch.empty(0)):
            dist.all_gather_object(objects, value)
        return objects

    def synchronize(self, work: Callable[[], Work]) -> Work:
        """This rank's work, done without communication, once all ranks have done theirs.

        Raises:
            RuntimeError: Another rank failed; this rank's own error is raised as it is.
        """
        if self.size == 1:
            return work()
        error = None
        try:
            result = work()
        except BaseException as caught:
            error = caught
        failed = self.all_gather(torch.tensor([error is not None], dtype=torch.int64)).flatten().tolist()
        if any(failed):
            messages = self.all_gather_object(None if error is None else f"{type(error).__name__}: {error}")
            if error is not None:
                raise error
            first = failed.index(1)
            raise RuntimeError(f"rank {first} failed, so that no rank takes this step: {messages[first]}")
        return result

    @contextmanager
    def _exchange(self, sent: Tensor) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.size} could not exchange its part of a step with the others; nothing was "
                f"changed. A process has stopped, or waits elsewhere: look at the first error of all ranks, and start "
                f"them again from the last checkpoint ({error})"
            ) from error
        self.sent += sent.numel() * sent.element_size()


def gather_records(
    records: Mapping[BinaryLayer, Record], wanted: Mapping[BinaryLayer, Projection], ranks: Ranks
) -> dict[BinaryLayer, Record]:
    """The moments of all ranks summed, or their rows gathered: N ranks then take the step of one process.

    `wanted` are the layers whose records this step needs, the same on all ranks, with their projections.
    """
    needed = {layer: records[layer] or _empty_record(layer, projection) for layer, projection in wanted.items()}
    rows = {layer: record for layer, record in needed.items() if isinstance(record, LayerRecord)}
    moments = {layer: record for layer, record in needed.items() if isinstance(record, LayerMoments)}
    unused = {layer for layer in moments if records[layer] is None}
    return {**records, **_gather_rows(rows, ranks), **_reduce_moments(moments, unused, ranks)}


def _empty_record(layer: BinaryLayer, projection: Projection) -> LayerRecord | LayerMoments:
    """What a rank contributes that did not use a layer."""
    weight, width = layer.weight, layer.groups * math.prod(layer.weight.shape[1:])
    nothing = torch.empty(0, width, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    moments_of = projection.moments(layer)
    return (
        LayerMoments(moments_of(nothing), 0) if moments_of else LayerRecord(nothing, nothing.new_empty(0, len(weight)))
    )


def _gather_rows(records: Mapping[BinaryLayer, LayerRecord], ranks: Ranks) -> dict[BinaryLayer, Record]:
    """The rows of all ranks; None where there are none."""
    parts = [part for record in records.values() for part in (record.inputs, record.output_grads)]
    gathered = iter(ranks.gather_rows(parts))
    whole = {layer: LayerRecord(next(gathered), next(gathered)) for layer in records}
    return {layer: record if len(record.inputs) else None for layer, record in whole.items()}


def _reduce_moments(
    records: Mapping[BinaryLayer, LayerMoments], unused: Set[BinaryLayer], ranks: Ranks
) -> dict[BinaryLayer, Record]:
    """The moments of all ranks, summed; None where a layer is `unused` on all of them."""
    if not records:
        return {}
    counts = torch.tensor([-1 if layer in unused else record.rows for layer, record in records.items()])
    reduced: dict[BinaryLayer, Record] = {}
    for (layer, record), all_counts in zip(records.items(), ranks.all_gather(counts).T, strict=True):
        used, total = all_counts.max().item() >= 0, int(all_counts.clamp(min=0).sum())
        reduced[layer] = LayerMoments(ranks.all_reduce(record.sums), total) if used else None
    return reduced


def _place(device: torch.device) -> torch.device:
    """Where a tensor must be for the group's backend: NCCL takes those of a GPU, gloo those of the CPU."""
    backends = str(dist.get_backend_config())
    if device.type == "cuda":
        return device if "nccl" in backends else torch.device("cpu")
    if "nccl" in backends and "gloo" not in backends:
        return torch.device("cuda", torch.cuda.current_device())
    return device
