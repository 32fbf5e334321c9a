"""What a binary layer saw: the rows of its inputs and of the gradients at its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """Rows of a layer R = gain · X W: `inputs` X (B, n) and `output_grads` ∂E/∂R (B, m)."""

    inputs: Tensor
    output_grads: Tensor


class Recordable(Protocol):
    """What the recording asks of a layer: a place for a tape."""

    tape: Tape | None


class Tape:
    """The records of one layer since the last `clear`, filled by hooks on the layer's output tensors.

    A layer that is used twice, or several backward passes before a step, add rows: QUBOs are sums over rows.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[LayerRecord, int]] = []

    def watch(self, output: Tensor, *, rows: Callable[[], Tensor], grad_rows: Callable[[Tensor], Tensor]) -> None:
        """Record when the gradient of `output` arrives.

        The hook sits on the tensor, not the module: a module's full backward hook does not allow the in-place
        activations that often follow a layer.

        Args:
            output: The layer's output; nothing is recorded when no gradient will reach it.
            rows: Gives the rows (B, n) of the layer's input, called when the gradient is there.
            grad_rows: Turns the output's gradient into rows (B, m).
        """
        if not output.requires_grad:
            return

        def record(grad: Tensor | None) -> None:
            if grad is None:  # an operation after the layer declared that it passes nothing back
                return
            with torch.no_grad():
                part = LayerRecord(rows().detach(), grad_rows(grad.detach()))
            self._parts.append((part, _version(part.inputs)))

        output.register_hook(record)  # type: ignore[no-untyped-call]

    def read(self) -> LayerRecord | None:
        """All rows recorded since the last `clear`, in single precision at least; None when there are none."""
        if not self._parts:
            return None
        dtype = torch.float32
        for part, version in self._parts:
            if _version(part.inputs) != version:
                raise RuntimeError(
                    "a layer's input was changed in place between backward and step; "
                    "give every batch a tensor of its own"
                )
            dtype = torch.promote_types(torch.promote_types(dtype, part.inputs.dtype), part.output_grads.dtype)
        inputs = [part.inputs.to(dtype) for part, _ in self._parts]
        grads = [part.output_grads.to(dtype) for part, _ in self._parts]
        return (
            LayerRecord(inputs[0], grads[0]) if len(inputs) == 1 else LayerRecord(torch.cat(inputs), torch.cat(grads))
        )

    def clear(self) -> None:
        """Forget all rows."""
        self._parts = []


def _version(tensor: Tensor) -> int:
    """Grows with every change in place, also of the tensors that share its memory; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def taped(layers: Iterable[Recordable]) -> Iterator[list[Tape]]:
    """Fresh tapes on the layers for the time of the block; an optimiser's own tapes see nothing of it."""
    layers = list(layers)
    before = [layer.tape for layer in layers]
    tapes = [Tape() for _ in layers]
    try:
        for layer, tape in zip(layers, tapes, strict=True):
            layer.tape = tape
        yield tapes
    finally:
        for layer, old in zip(layers, before, strict=True):
            layer.tape = old
