"""The processes that train one model together: what they exchange, and that they agree."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerMoments, LayerRecord
from qpsbgd.parallel.shards import is_sharded
from qpsbgd.projections import Projection

Record = LayerRecord | LayerMoments | None
Work = TypeVar("Work")

COMPARED_EVERY = 100
"""Steps between two comparisons of the ranks' weights and gradients."""


class Ranks:
    """The ranks of torch.distributed's default group; a single one where that is not used.

    Every method is a collective: all ranks call it, in the same order.
    """

    def __init__(self) -> None:
        self.sent = 0  # bytes of tensors that this rank has sent
        self._compared = 0

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
        own = values.to(_place(values.device)).contiguous()
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self._exchange(own):
            dist.all_gather(found, own)
        return torch.stack(found).to(values.device)

    def gather_units(self, part: Tensor, units: int) -> tuple[Tensor, slice]:
        """All `units` output units of a layer that FSDP has sharded, and which of them this rank's part are."""
        most = -(-units // self.size)  # torch's cut: all but the last ranks have so many
        begin = min(self.rank * most, units)
        return self._all_gather_padded(part, most).flatten(0, 1)[:units], slice(begin, begin + len(part))

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum of the tensors of all ranks."""
        own = values.to(_place(values.device), copy=True).contiguous()
        with self._exchange(own):
            dist.all_reduce(own)
        return own.to(values.device)

    def gather_rows(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Rows (B, …) of all ranks one after the other, per given tensor; ranks may have different numbers of them."""
        if self.size == 1 or not rows:
            return list(rows)
        counts = self.all_gather(torch.tensor([len(own) for own in rows], dtype=torch.int64)).T.tolist()
        found = []
        for own, all_counts in zip(rows, counts, strict=True):
            everyone = self._all_gather_padded(own, max(all_counts))
            found.append(torch.cat([part[:count] for part, count in zip(everyone, all_counts, strict=True)]))
        return found

    def _all_gather_padded(self, part: Tensor, most: int) -> Tensor:
        padded = part.new_zeros(most, *part.shape[1:])
        padded[: len(part)] = part
        return self.all_gather(padded) if most else padded[None].expand(self.size, *padded.shape)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The objects of all ranks, in their order: any that can be pickled."""
        found = [None] * self.size
        with self._exchange(torch.empty(0)):
            dist.all_gather_object(found, value)
        return found

    def synchronized(
        self,
        work: Callable[[], Work | None],
        described: Callable[[], Sequence[str]] = list,
        compared: Callable[[], dict[str, list[tuple[str, Tensor]]]] | None = None,
    ) -> Work | None:
        """This rank's work, done without communication, once all ranks have theirs; None where one of them has none.

        What `described` returns must be the same on all ranks. "gradients" and "weights" by `compared`, with their
        layers' names, must be equal bit for bit, in the first of the calls that give it and in every `COMPARED_EVERY`th
        after it. RuntimeError says what differs, or that another rank failed.
        """
        if self.size == 1:
            return work()
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:
            error = caught
        sums: dict[str, list[tuple[str, int]]] = {}
        if compared is not None and result is not None and self._compared % COMPARED_EVERY == 0:
            sums = {kind: checksums(named) for kind, named in compared().items()}
        digests = [_digest([str(number) for _, number in found]) for found in sums.values()] or [0, 0]
        description = described()
        digests.insert(0, _digest(description))
        statuses = self.all_gather(torch.tensor([error is not None, result is None, *digests], dtype=torch.int64))
        failed, empty, descriptions, *digested = statuses.T.tolist()
        if any(failed):
            messages = self.all_gather_object(None if error is None else f"{type(error).__name__}: {error}")
            if error is not None:
                raise error
            first = failed.index(1)
            raise RuntimeError(f"rank {first} failed, so that no rank takes this step: {messages[first]}")
        if len(set(descriptions)) > 1:
            raise RuntimeError(_difference(self.all_gather_object(list(description))))
        if any(empty):
            return None
        for kind, digest in zip(sums, digested, strict=False):
            if len(set(digest)) > 1:
                raise RuntimeError(_drift(kind, self.all_gather_object(sums[kind])))
        self._compared += compared is not None
        return result

    @contextmanager
    def _exchange(self, own: Tensor) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.size} could not exchange its part of a step with the others; nothing was "
                f"changed. A process has stopped, or waits elsewhere: look at the first error of all ranks, and start "
                f"them again from the last checkpoint ({error})"
            ) from error
        self.sent += own.numel() * own.element_size()


def described(
    groups: Iterable[Mapping[str, Any]], layers: Iterable[BinaryLayer], states: Mapping[Tensor, Any]
) -> list[str]:
    """Descriptions that must be equal on all ranks: options, layers, steps made, and the solvers' numbers."""
    lines = []
    for group in groups:
        options = {name: value for name, value in group.items() if name != "params"}
        projection: Projection | None = options.pop("projection", None)
        if projection is not None:
            options |= projection.describe()
        solver: Any = None if projection is None else projection.solver
        plain = {one.name: getattr(solver, one.name) for one in fields(solver)} if is_dataclass(solver) else {}
        numbers = {name: value for name, value in plain.items() if isinstance(value, int | float | None)}
        own = "" if solver is None else f" and the solver {type(solver).__name__} with {numbers}"
        lines.append(f"the options {options}{own}")
    for number, layer in enumerate(layers):
        weight, state = layer.weight, states.get(layer.weight, {})
        lines.append(
            f"layer {number} of shape {tuple(weight.shape)} in {weight.dtype}, {'in' if layer.training else 'not in'} "
            f"training, with{'out' if weight.grad is None else ''} a gradient, after {state.get('step', 0)} steps"
        )
    return [*lines, f"{len(lines)} lines"]


def compared(layers: Sequence[BinaryLayer]) -> dict[str, list[tuple[str, Tensor]]]:
    """Gradients and weights with their layers' names, which must be equal on all ranks, bit for bit; not of shards."""
    weights: list[tuple[str, Tensor]] = [(str(one), one.weight) for one in layers if not is_sharded(one.weight)]
    grads = [(name, weight.new_empty(0) if weight.grad is None else weight.grad) for name, weight in weights]
    return {"gradients": grads, "weights": weights}


def gather_records(
    records: Mapping[BinaryLayer, Record], wanted: Mapping[BinaryLayer, Projection], ranks: Ranks
) -> dict[BinaryLayer, Record]:
    """The moments of all ranks summed, or their rows gathered: N ranks then take the step of one process.

    `wanted` are the layers whose records this step needs, the same on all ranks, with their projections.
    """
    found, own = dict(records), dict[BinaryLayer, Record]()
    for layer, projection in wanted.items():
        own[layer] = records[layer]
        if own[layer] is None:  # this rank did not use the layer
            weight, width = layer.weight, layer.groups * math.prod(layer.weight.shape[1:])
            dtype = torch.promote_types(weight.dtype, torch.float32)
            nothing = torch.empty(0, width, dtype=dtype, device=weight.device)
            grads = nothing.new_empty(0, len(weight) if projection.output_grads else 0)
            moments_of = projection.moments(layer)
            own[layer] = LayerMoments(moments_of(nothing), 0) if moments_of else LayerRecord(nothing, grads)
    rows = {layer: record for layer, record in own.items() if isinstance(record, LayerRecord)}
    parts = iter(ranks.gather_rows([part for record in rows.values() for part in (record.inputs, record.output_grads)]))
    for layer in rows:
        inputs, grads = next(parts), next(parts)
        found[layer] = LayerRecord(inputs, grads) if len(inputs) else None
    moments = {layer: record for layer, record in own.items() if isinstance(record, LayerMoments)}
    if moments:
        counts = torch.tensor([-1 if records[layer] is None else record.rows for layer, record in moments.items()])
        for (layer, record), all_counts in zip(moments.items(), ranks.all_gather(counts).T, strict=True):
            used, total = all_counts.max().item() >= 0, int(all_counts.clamp(min=0).sum())
            found[layer] = LayerMoments(ranks.all_reduce(record.sums), total) if used else None
    return found


def checksums(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, int]]:
    """Name → the sum of a tensor's bits, read as whole numbers: the same on every device and in every order."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [tensor.detach().contiguous().view(kinds[tensor.element_size()]).sum() for _, tensor in named]
    numbers = torch.stack([one.to(sums[0].device) for one in sums]).tolist() if sums else []
    return [(name, number) for (name, _), number in zip(named, numbers, strict=True)]


def _place(device: torch.device) -> torch.device:
    """Where a tensor must be for the group's backend: NCCL takes those of a GPU, gloo those of the CPU."""
    backends = str(dist.get_backend_config())
    if device.type == "cuda":
        return device if "nccl" in backends else torch.device("cpu")
    if "nccl" in backends and "gloo" not in backends:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _digest(texts: Sequence[str]) -> int:
    return int.from_bytes(hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest(), "big", signed=True)


def _difference(descriptions: Sequence[Sequence[str]]) -> str:
    rank, first, second = next(
        (rank, first, second)
        for rank, other in enumerate(descriptions)
        for first, second in zip_longest(descriptions[0], other, fillvalue="nothing")
        if first != second
    )
    return (
        f"the ranks train different models, or with different options: rank 0 has {first}, and rank {rank} has "
        f"{second}; make the same model and the same optimiser on every rank, without ZeroRedundancyOptimizer, which "
        "gives every rank a part of the parameters"
    )


def _drift(kind: str, sums: Sequence[Sequence[tuple[str, int]]]) -> str:
    names = [name for index, (name, _) in enumerate(sums[0]) if len({found[index][1] for found in sums}) > 1]
    advice = {
        "gradients": "torch.nn.parallel.DistributedDataParallel, which averages them, call the wrapped model, and make "
        "the last backward pass before step() outside no_sync()",
        "weights": "DistributedDataParallel, which starts all ranks with those of rank 0; load the same checkpoint on "
        "all ranks; and change weights outside the optimiser on all ranks alike",
    }
    return f"the ranks have different {kind} of {', '.join(names)}: wrap the model in {advice[kind]}"
