"""What a binary layer saw: the rows of its inputs and of the gradients at its output."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle, unserializable_hook


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """Rows of a layer R = gain · X W: `inputs` X (B, n) and `output_grads` ∂E/∂R (B, m)."""

    inputs: Tensor
    output_grads: Tensor


class Recordable(Protocol):
    """A layer that can hold a tape."""

    tape: Tape | None


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of one backward pass through one output, and the version of their memory when they were recorded."""

    record: LayerRecord
    version: int
    backward: int


class Tape:
    """The records of one layer since the last `clear`, filled by hooks on the layer's output tensors.

    Using a layer twice, or several backward passes before a step, adds rows: QUBOs are sums over rows.

    Args:
        most: Rows recorded of one pass; of more, evenly spaced ones are taken. None takes all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._parts: list[_Part] = []

    def watch(
        self, output: Tensor, *, rows: Callable[..., Tensor], grad_rows: Callable[..., Tensor], count: int
    ) -> None:
        """Record when the gradient of `output` arrives.

        The hook sits on the tensor, not the module: a module's full backward hook does not allow the in-place
        activations that often follow a layer.

        Args:
            output: The layer's output; nothing is recorded when no gradient will reach it.
            rows: Returns the rows (B, n) of the layer's input, or those at some indices; called when the gradient
                arrives.
            grad_rows: Turns the output's gradient into rows (B, m), or those at some indices.
            count: B.
        """
        if not output.requires_grad:
            return

        def record(grad: Tensor | None) -> None:
            if grad is None:  # an operation after the layer returned no gradient
                return
            with torch.no_grad():
                at = self._chosen(count, grad.device)
                found = LayerRecord(rows(at).detach(), grad_rows(grad.detach(), at))
            self._parts.append(_Part(found, _version(found.inputs), _backward()))

        output.register_hook(record)  # type: ignore[no-untyped-call]

    def _chosen(self, count: int, device: torch.device) -> Tensor | None:
        """Which of so many rows to record; None for all of them."""
        if self._most is None or count <= self._most:
            return None
        # Not a divisor of the rows of an image as a rule, so that images share their positions out among each other.
        return torch.arange(self._most, device=device) * count // self._most

    def read(self) -> LayerRecord | None:
        """All rows recorded since the last `clear`, at least in single precision; None when there are none."""
        parts = self._counting()
        if not parts:
            return None
        dtype = torch.float32
        for part in parts:
            if _version(part.record.inputs) != part.version:
                raise RuntimeError(
                    "a layer's input was changed in place between backward and step; "
                    "give every batch a tensor of its own"
                )
            for tensor in (part.record.inputs, part.record.output_grads):
                dtype = torch.promote_types(dtype, tensor.dtype)
        inputs = [part.record.inputs.to(dtype) for part in parts]
        grads = [part.record.output_grads.to(dtype) for part in parts]
        return (
            LayerRecord(inputs[0], grads[0]) if len(inputs) == 1 else LayerRecord(torch.cat(inputs), torch.cat(grads))
        )

    def clear(self) -> None:
        """Forget all rows."""
        self._parts = []

    def _counting(self) -> list[_Part]:
        return self._parts


class TrainingTape(Tape):
    """A tape whose rows count only while the layer's weight holds the gradient of the pass that made them.

    `backward` calls that reach the weight count. `torch.autograd.grad` for a saliency map or a gradient penalty does
    not, and `model.zero_grad()` makes the tape forget, as the optimiser's `zero_grad` does.

    Args:
        weight: The layer's latent weight.
        most: Rows recorded of one pass.
    """

    def __init__(self, weight: nn.Parameter, most: int | None = None) -> None:
        super().__init__(most)
        self._weight = weight
        self._confirmed: list[_Part] = []
        self._grad: tuple[Tensor, int] | None = None
        self._hooks: list[RemovableHandle] = []

    def watch(
        self, output: Tensor, *, rows: Callable[..., Tensor], grad_rows: Callable[..., Tensor], count: int
    ) -> None:
        """Record when the gradient of `output` arrives, to count once the same pass has reached the weight."""
        if not self._hooks:
            before, after = weakref.WeakMethod(self._before_gradient), weakref.WeakMethod(self._after_gradient)
            weight: Any = self._weight
            self._hooks = [
                weight.register_hook(_calling(before)),
                weight.register_post_accumulate_grad_hook(_calling(after)),
            ]
        super().watch(output, rows=rows, grad_rows=grad_rows, count=count)

    def clear(self) -> None:
        """Forget all rows."""
        super().clear()
        self._confirmed, self._grad = [], None

    def close(self) -> None:
        """Forget all rows and stop listening to the weight."""
        self.clear()
        while self._hooks:
            self._hooks.pop().remove()

    def _before_gradient(self) -> None:
        """A backward pass is about to add to the weight's gradient: rows of a gradient that was reset are old."""
        self._confirmed = self._counting()

    def _after_gradient(self) -> None:
        """The rows of the running backward pass are in the weight's gradient now."""
        running = _backward()
        self._confirmed += [part for part in self._parts if part.backward == running]
        self._parts = []
        grad = self._weight.grad
        self._grad = None if grad is None else (grad, grad._version)

    def _counting(self) -> list[_Part]:
        return [] if self._confirmed and self._was_reset() else self._confirmed

    def _was_reset(self) -> bool:
        """Whether the weight's gradient was set to None or to zero since the last backward pass."""
        grad = self._weight.grad
        if grad is None:
            return True
        if self._grad is not None and grad is self._grad[0] and grad._version == self._grad[1]:
            return False
        # Changed since: clipped or unscaled, or zeroed, unless it was zero all along.
        return not grad.any() and any(bool(part.record.output_grads.any()) for part in self._confirmed)


class InputTape(Tape):
    """A tape of input rows alone, for optimisers that take the rest from the weight's gradient.

    Rows are kept from forward passes in which the layer can be trained, whatever becomes of the pass: only their
    second moments are wanted.

    Args:
        most: Rows kept, of the latest passes; None keeps those of the last pass.

    Attributes:
        wanted: Whether to record at all.
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__(most)
        self.wanted = True
        self._rows: list[Tensor] = []

    def watch(
        self, output: Tensor, *, rows: Callable[..., Tensor], grad_rows: Callable[..., Tensor], count: int
    ) -> None:
        """Keep the rows of this pass if they are wanted."""
        if not (self.wanted and output.requires_grad):
            return
        with torch.no_grad():
            # A copy: the input may change before the step.
            self._rows.append(rows(self._chosen(count, output.device)).detach().clone())
        while len(self._rows) > 1 and sum(map(len, self._rows[1:])) >= (self._most or 1):
            del self._rows[0]

    def rows(self) -> Tensor | None:
        """The rows since the last `clear`, at least in single precision; None when there are none."""
        if not self._rows:
            return None
        joined = self._rows[0] if len(self._rows) == 1 else torch.cat(self._rows)
        return joined[-(self._most or len(joined)) :].to(torch.promote_types(joined.dtype, torch.float32))

    def clear(self) -> None:
        """Forget all rows."""
        super().clear()
        self._rows = []


def _calling(method: weakref.WeakMethod[Callable[[], None]]) -> Callable[[Tensor], None]:
    """A hook that calls the tape while it is alive and is not pickled with the weight."""

    def hook(_: Tensor) -> None:
        if (call := method()) is not None:
            call()

    marked: Callable[[Tensor], None] = unserializable_hook(hook)  # type: ignore[no-untyped-call]
    return marked


def _backward() -> int:
    """The id of the running backward pass."""
    number: int = torch._C._current_graph_task_id()
    return number


def _version(tensor: Tensor) -> int:
    """Grows with every in-place change, including to tensors that share its memory; 0 for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def taped(layers: Iterable[Recordable]) -> Iterator[list[Tape]]:
    """Fresh tapes on the layers for the duration of the block; an optimiser's own tapes see nothing of it."""
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
