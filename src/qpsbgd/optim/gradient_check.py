"""Whether gradients are finite: asked at once, or on a GPU without waiting for the answer."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from qpsbgd.parallel.shards import local


def nonfinite(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters whose gradients hold NaN or infinite values."""
    return _wrong(*_norms(parameters))


class LateAnswer:
    """The same question on a GPU: the step goes on under a flag on the device, and the host reads it a step later."""

    def __init__(self) -> None:
        self._asked: tuple[list[Tensor], Tensor] | None = None
        self._kept: tuple[torch.device, Tensor, torch.cuda.Event] | None = None

    def ask(self, parameters: Iterable[Tensor]) -> Tensor:
        """Whether a gradient holds NaN or infinite values, as a flag on the device; the last answer must be read."""
        moving, found = _norms(parameters)
        norms = found
        if norms.is_cuda:
            device, pinned, done = self._kept or (None, norms, None)
            if done is None or device != norms.device or pinned.shape != norms.shape or pinned.dtype != norms.dtype:
                pinned = torch.empty(norms.shape, dtype=norms.dtype, pin_memory=True)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._kept = norms.device, pinned, done
            found = pinned.copy_(norms, non_blocking=True)
            done.record(torch.cuda.current_stream(norms.device))
        self._asked = moving, found
        return (norms.amax() < math.inf).logical_not()  # norms of NaN are NaN, and so is the largest one

    def answer(self) -> list[Tensor]:
        """The parameters whose gradients were not finite when last asked; waits for no more than that question."""
        if self._asked is None:
            return []
        (moving, found), self._asked = self._asked, None
        if self._kept is not None and found is self._kept[1]:
            self._kept[2].synchronize()
        return _wrong(moving, found)


def _wrong(moving: list[Tensor], norms: Tensor) -> list[Tensor]:
    return [p for p, norm in zip(moving, norms.tolist(), strict=True) if not math.isfinite(norm)]


def _norms(parameters: Iterable[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The parameters that have gradients, and the largest magnitudes in these."""
    moving, values = [], []
    for p in parameters:
        if (grad := p.grad) is not None:
            value = grad.coalesce().values() if grad.is_sparse else local(grad)
            if value.numel():
                moving.append(p)
                values.append(value)
    if not moving:
        return [], torch.empty(0)
    norms = torch._foreach_norm(values, math.inf)
    alike = len({(norm.dtype, norm.device) for norm in norms}) == 1
    return moving, torch.stack(norms if alike else [norm.to(norms[0]) for norm in norms])
