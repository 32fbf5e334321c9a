"""Whether what a step reads from its passes is finite: asked at once, or on a GPU without waiting for the answer."""

import math
from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from qpsbgd.parallel.shards import local

Owner = TypeVar("Owner")


def nonfinite(values: Mapping[Owner, Tensor]) -> list[Owner]:
    """The owners of the tensors, such as the parameters of gradients, that hold NaN or infinite values."""
    return _nonfinite_owners(*_norms(values))


class DeferredFiniteCheck(Generic[Owner]):
    """The same question on a GPU: the step goes on under a flag on the device, and the host reads it a step later."""

    def __init__(self) -> None:
        self._asked: tuple[list[Owner], Tensor] | None = None
        self._pinned: dict[tuple[torch.device, torch.dtype, torch.Size], Tensor] = {}
        self._done: torch.cuda.Event | None = None

    def ask(self, values: Mapping[Owner, Tensor]) -> Tensor:
        """Whether a tensor holds NaN or infinite values, as a flag on the device; the last answer must be read."""
        owners, norms = _norms(values)
        largest = norms
        if norms.is_cuda:
            # Page-locked memory takes long to get; there are few shapes: with the moments of inputs, and without.
            key = norms.device, norms.dtype, norms.shape
            if key not in self._pinned:
                self._pinned[key] = torch.empty(norms.shape, dtype=norms.dtype, pin_memory=True)
            largest = self._pinned[key].copy_(norms, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record(torch.cuda.current_stream(norms.device))
        self._asked = owners, largest
        return (norms.amax() < math.inf).logical_not()  # norms of NaN are NaN, and so is the largest one

    def answer(self) -> list[Owner]:
        """The owners of what was not finite when last asked; waits for no more than that question."""
        if self._asked is None:
            return []
        (owners, largest), self._asked = self._asked, None
        if self._done is not None:
            self._done.synchronize()
        return _nonfinite_owners(owners, largest)


def _nonfinite_owners(owners: list[Owner], norms: Tensor) -> list[Owner]:
    return [owner for owner, norm in zip(owners, norms.tolist(), strict=True) if not math.isfinite(norm)]


def _norms(values: Mapping[Owner, Tensor]) -> tuple[list[Owner], Tensor]:
    """The owners of tensors that are not empty, and the largest magnitudes in these."""
    plain = {owner: value.coalesce().values() if value.is_sparse else local(value) for owner, value in values.items()}
    plain = {owner: value for owner, value in plain.items() if value.numel()}
    if not plain:
        return [], torch.empty(0)
    norms = list(torch._foreach_norm(list(plain.values()), math.inf))
    if len({(norm.dtype, norm.device) for norm in norms}) > 1:  # in half precision large moments would be infinite
        norms = [norm.to(norms[0].device, torch.float64) for norm in norms]
    return list(plain), torch.stack(norms)
