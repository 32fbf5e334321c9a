"""Records of a binary layer's passes: moments of its inputs, or rows of its inputs and output gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle, unserializable_hook

from qpsbgd.nn.contexts import temporary_attributes

if TYPE_CHECKING:
    from qpsbgd.nn.layers import BinaryLayer


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """Rows of a layer R = gain · X W: `inputs` X (B, n) and `output_grads` ∂E/∂R (B, m)."""

    inputs: Tensor
    output_grads: Tensor


@dataclass(frozen=True, eq=False)
class LayerMoments:
    """The `sums` of x xᵀ over a number of `rows` x of a layer's inputs, by the projection's blocks."""

    sums: Tensor
    rows: int


class MomentTape:
    """The moments of one layer's inputs since the last `clear`, over all of its uses in passes.

    They are computed in the forward pass, since later operations may change inputs, and count once a gradient arrives.
    """

    inside_join = False  # whether DistributedDataParallel has called the layer inside torch's `Join`

    def __init__(
        self,
        moments: Callable[..., Tensor],  # sums over rows, added to a second argument
        most: int | None = None,  # rows used of one pass; if there are more, evenly spaced ones are taken
        *,
        wanted: bool = True,  # whether to record at all
        at_once: int | None = None,  # rows that are read together for their moments, which bounds the memory for rows
        sharded: bool = False,  # whether FSDP has sharded the weight
    ) -> None:
        self._moments, self._most, self._at_once = moments, most, at_once
        self._recorded: LayerMoments | None = None
        self.sharded, self.wanted = sharded, wanted

    def watch(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> None:
        """Record the inputs x of a layer when a gradient of their `output` arrives, if any will."""
        if self.wanted and _expects_gradient(output):
            self.inside_join |= _inside_join()
            moments = self._moments_of(layer, x, output)
            _on_gradient(output, lambda grad: self._add(moments))

    def record(self, layer: BinaryLayer, x: Tensor, grad: Tensor) -> None:
        """Record the inputs x of a layer, given the gradient of their output."""
        self._add(self._moments_of(layer, x, grad))

    @torch.no_grad()
    def _moments_of(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> LayerMoments:
        rows, at = _rows_used(layer, output, self._most)
        parts: Sequence[Tensor | None] = [at]
        if self._at_once is not None and rows > self._at_once:
            parts = torch.split(torch.arange(rows, device=x.device) if at is None else at, self._at_once)
        first, *others = parts
        sums = self._moments(layer.input_rows(x, first).detach())
        for part in others:
            sums = self._moments(layer.input_rows(x, part).detach(), sums)
        return LayerMoments(sums, rows)

    def _add(self, new: LayerMoments) -> None:
        old = self._recorded
        self._recorded = new if old is None else LayerMoments(old.sums + new.sums, old.rows + new.rows)

    def read(self) -> LayerMoments | None:
        """All moments since the last `clear`; None if there are none."""
        return self._recorded

    def clear(self) -> None:
        """Drop them."""
        self._recorded = None

    close = clear


@dataclass(frozen=True, eq=False)
class _Part:
    """The record of one backward pass through one output, and whether its gradient was not zero."""

    record: LayerRecord
    backward: int
    any_gradient: Tensor


class Tape:
    """The rows of one layer since the last `clear`, with their output gradients, over all of its uses in passes.

    With `weight`, a record counts once a `backward` call has reached the weight, and only while the weight holds that
    gradient: not after a pass that is never backpropagated, `torch.autograd.grad`, or `model.zero_grad()`.
    """

    sharded, inside_join = False, False

    def __init__(
        self,
        weight: nn.Parameter | None = None,  # the layer's latent weight; None counts all records
        most: int | None = None,  # as for `MomentTape`
        *,
        wanted: bool = True,
    ) -> None:
        self._weight, self._most = weight, most
        self._parts: list[_Part] = []
        self._confirmed: list[_Part] = []
        self._grad: tuple[Tensor, int] | None = None
        self._hooks: list[RemovableHandle] = []
        self.wanted = wanted

    @property
    def wanted(self) -> bool:
        """Whether to record at all; from the first time on, the tape listens to the weight."""
        return self._wanted

    @wanted.setter
    def wanted(self, value: bool) -> None:
        self._wanted = value
        self._listen()

    def watch(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> None:
        """Record the inputs x of a layer when the gradient of their `output` arrives, if any will."""
        self._listen()  # it may have been frozen before
        if self.wanted and _expects_gradient(output):
            self.inside_join |= _inside_join()
            keep = self._reader(layer, x, output)
            _on_gradient(output, lambda grad: self._add(grad, keep))

    def record(self, layer: BinaryLayer, x: Tensor, grad: Tensor) -> None:
        """Record the inputs x of a layer, given the gradient of their output."""
        self._listen()
        self._add(grad, self._reader(layer, x, grad))

    def _add(self, grad: Tensor, keep: Callable[[Tensor], LayerRecord]) -> None:
        running = torch._C._current_graph_task_id()
        self._parts.append(_Part(keep(grad.detach()), running, grad.any()))
        if self._weight is not None:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(running))

    def _end(self, backward: int) -> None:
        """Forget the rows of a backward pass that have not reached the weight."""
        self._parts = [part for part in self._parts if part.backward != backward]

    @torch.no_grad()
    def _reader(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> Callable[[Tensor], LayerRecord]:
        """Read the inputs of an output, or of its gradient; the function makes the record once that is known."""
        _, at = _rows_used(layer, output, self._most)
        inputs = layer.input_rows(x, at).detach().clone()
        return lambda grad: LayerRecord(inputs, layer.grad_rows(grad, at).clone())

    def read(self) -> LayerRecord | None:
        """All records since the last `clear` as one, at least in single precision; None if there are none."""
        records = [part.record for part in self._valid_parts()]
        if not records:
            return None
        inputs = _concatenate([record.inputs for record in records])
        grads = _concatenate([record.output_grads for record in records])
        dtype = torch.promote_types(inputs.dtype, grads.dtype)
        return LayerRecord(inputs.to(dtype), grads.to(dtype))

    def clear(self) -> None:
        """Drop all records."""
        self._parts, self._confirmed, self._grad = [], [], None

    def close(self) -> None:
        """Drop all records and stop listening to the weight."""
        self.clear()
        while self._hooks:
            self._hooks.pop().remove()

    def _listen(self) -> None:
        weight = self._weight
        if weight is None or not self._wanted or self._hooks or not weight.requires_grad:
            return
        self._hooks = [
            weight.register_hook(_weak_hook(self._before_gradient)),  # type: ignore[no-untyped-call]
            weight.register_post_accumulate_grad_hook(_weak_hook(self._after_gradient)),  # type: ignore[no-untyped-call]
        ]

    def _before_gradient(self) -> None:
        """A backward pass is about to add to the weight's gradient: records of a gradient that was reset are old."""
        self._confirmed = self._valid_parts()

    def _after_gradient(self) -> None:
        """The running backward pass has reached the weight's gradient."""
        assert self._weight is not None
        running = torch._C._current_graph_task_id()
        self._confirmed += [part for part in self._parts if part.backward == running]
        self._end(running)  # a pass that runs around this one, as around a checkpoint, is not over
        grad = self._weight.grad
        self._grad = None if grad is None else (grad, grad._version)

    def _valid_parts(self) -> list[_Part]:
        if self._weight is None:
            return self._parts
        return [] if self._confirmed and self._was_reset(self._weight.grad) else self._confirmed

    def _was_reset(self, grad: Tensor | None) -> bool:
        """Whether the weight's gradient was set to None or to zero since the last backward pass."""
        if grad is None:
            return True
        if self._grad is not None and grad is self._grad[0] and grad._version == self._grad[1]:
            return False
        # Changed since: clipped or unscaled, or zeroed, unless it was zero all along.
        return not grad.any() and any(bool(part.any_gradient) for part in self._confirmed)


def _expects_gradient(output: Tensor) -> bool:
    """Whether a gradient of an output may arrive; under torch.func, whose tensors must not stay, it does not count."""
    return output.requires_grad and torch._C._functorch.peek_interpreter_stack() is None


def _inside_join() -> bool:
    model = DistributedDataParallel._active_ddp_module
    return model is not None and bool(model._join_config.enable)


def _on_gradient(output: Tensor, act: Callable[[Tensor], object]) -> None:
    """Call `act` with the gradient of an output: a module's full backward hook would not allow in-place activations."""

    def hook(grad: Tensor | None) -> None:
        if grad is not None:  # an operation after the layer returned no gradient
            act(grad)

    output.register_hook(hook)  # type: ignore[no-untyped-call]


def _rows_used(layer: BinaryLayer, output: Tensor, most: int | None) -> tuple[int, Tensor | None]:
    """The number of rows of an output that are used, at most `most`, and their numbers unless they are all."""
    rows = layer.num_rows(output.shape)
    if most is None or rows <= most:
        return rows, None
    # Mostly no divisor of the rows of an image, so that images share their positions out among each other.
    return most, torch.arange(most, device=output.device) * rows // most


def _concatenate(rows: Sequence[Tensor]) -> Tensor:
    """Rows part after the other, at least in single precision."""
    dtype = reduce(torch.promote_types, [part.dtype for part in rows], torch.float32)
    return rows[0].to(dtype) if len(rows) == 1 else torch.cat([part.to(dtype) for part in rows])


def _weak_hook(method: Callable[[], None]) -> Callable[[Tensor], None]:
    """A hook that calls the tape while it is alive and is not pickled with the weight."""
    weak = weakref.WeakMethod(method)

    def hook(_: Tensor) -> None:
        if (call := weak()) is not None:
            call()

    return unserializable_hook(hook)  # type: ignore[no-untyped-call]


@contextmanager
def record_rows(layers: Iterable[BinaryLayer]) -> Iterator[list[Tape]]:
    """Fresh tapes on the layers for the duration of the block; an optimiser's own tapes see nothing of it."""
    tapes = []
    with ExitStack() as stack:
        for layer in layers:
            tapes.append(Tape())
            stack.enter_context(temporary_attributes([layer], tape=tapes[-1]))
        yield tapes
