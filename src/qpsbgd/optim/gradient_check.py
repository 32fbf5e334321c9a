"""Whether gradients are finite: asked at once, or on a GPU without waiting for the answer."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from qpsbgd.parallel.shards import local


def nonfinite(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters whose gradients hold NaN or infinite values."""
    moving, norms = _norms(parameters)
    if not moving or norms.isfinite().all():
        return []
    return [p for p, norm in zip(moving, norms, strict=True) if not norm.isfinite()]


class LateAnswer:
    """The same question on a GPU: the step goes on under a flag on the device, and the host reads it a step later."""

    def __init__(self) -> None:
        self._asked: tuple[list[Tensor], Tensor, torch.cuda.Event | None] | None = None

    def ask(self, parameters: Iterable[Tensor]) -> Tensor:
        """Whether a gradient holds NaN or infinite values, as a flag on the device."""
        moving, norms = _norms(parameters)
        done = None
        found = norms.detach()
        if norms.is_cuda:
            found = torch.empty(norms.shape, dtype=norms.dtype, pin_memory=True)
            found.copy_(norms, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        self._asked = moving, found, done
        return (norms.amax() < math.inf).logical_not()  # norms of NaN are NaN, and so is the largest one

    def answer(self) -> list[Tensor]:
        """The parameters whose gradients were not finite when last asked; waits for no more than that question."""
        if self._asked is None:
            return []
        (moving, found, done), self._asked = self._asked, None
        if done is not None:
            done.synchronize()
        return [p for p, norm in zip(moving, found.tolist(), strict=True) if not math.isfinite(norm)]


def _norms(parameters: Iterable[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The parameters that have gradients, and the largest magnitudes in these."""
    grads = {p: p.grad for p in parameters if p.grad is not None}
    values = {p: grad.coalesce().values() if grad.is_sparse else local(grad) for p, grad in grads.items()}
    some = {p: own for p, own in values.items() if own.numel()}
    if not some:
        return [], torch.empty(0)
    norms = torch._foreach_norm(list(some.values()), math.inf)
    return list(some), torch.stack([norm.to(norms[0]) for norm in norms])
