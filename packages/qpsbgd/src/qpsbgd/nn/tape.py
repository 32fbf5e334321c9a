"""Records of a binary layer's passes: moments of its inputs, or rows of its inputs and output gradients."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle, unserializable_hook

from qpsbgd.nn.contexts import temporary_attributes

if TYPE_CHECKING:
    from qpsbgd.nn.layers import BinaryLayer


_READ_AT_ONCE = 2**20
"""Numbers in rows that are read together for their moments, 4 MiB in single precision; all 2,048 rows of a layer with
4,608 inputs are 36. Larger parts raise the peak memory in reproduction/benchmarks/training/step_cost.py."""


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


class _Recording(ABC):
    """When the passes of a layer are recorded; subclasses say what is kept of each."""

    inside_join = False  # whether DistributedDataParallel has called the layer inside torch's `Join`
    sharded = False  # whether FSDP has sharded the weight

    def __init__(self, most: int | None, wanted: bool) -> None:
        self._most = most  # rows used of one pass; if there are more, evenly spaced ones are taken
        self.wanted = wanted  # whether to record at all

    def watch(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> None:
        """Record the inputs x of a layer when a gradient of their `output` arrives, if any will."""
        if self.wanted and _expects_gradient(output):
            model = DistributedDataParallel._active_ddp_module
            self.inside_join |= model is not None and bool(model._join_config.enable)
            keep = self._reader(layer, x, output)
            # A module's full backward hook would not allow in-place activations. An operation may return no gradient.
            output.register_hook(lambda grad: None if grad is None else keep(grad))  # type: ignore[no-untyped-call]

    def record(self, layer: BinaryLayer, x: Tensor, grad: Tensor) -> None:
        """Record the inputs x of a layer, given the gradient of their output."""
        self._reader(layer, x, grad)(grad)

    @abstractmethod
    def _reader(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> Callable[[Tensor], None]:
        """Read the inputs of an output, or of its gradient; the function adds the record once that is known."""

    def _rows_used(self, layer: BinaryLayer, output: Tensor) -> tuple[int, Tensor | None]:
        """The number of rows of an output that are used, and their numbers unless they are all."""
        rows = layer.num_rows(output.shape)
        if self._most is None or rows <= self._most:
            return rows, None
        # Mostly no divisor of the rows of an image, so that images share their positions out among each other.
        return self._most, torch.arange(self._most, device=output.device) * rows // self._most


class MomentTape(_Recording):
    """The moments of one layer's inputs since the last `clear`, over all of its uses in passes.

    They are computed in the forward pass, since later operations may change inputs, and count once a gradient arrives.
    """

    def __init__(
        self,
        moments: Callable[..., Tensor],  # sums over rows, added to a second argument
        most: int | None = None,
        *,
        wanted: bool = True,
        sharded: bool = False,
    ) -> None:
        super().__init__(most, wanted)
        self._moments, self.sharded = moments, sharded
        self._recorded: LayerMoments | None = None

    @torch.no_grad()
    def _reader(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> Callable[[Tensor], None]:
        rows, at = self._rows_used(layer, output)
        parts: Sequence[Tensor | None] = [at]
        at_once = max(1, _READ_AT_ONCE // (layer.groups * math.prod(layer.weight.shape[1:])))
        if rows > at_once:
            parts = torch.split(torch.arange(rows, device=x.device) if at is None else at, at_once)
        first, *others = parts
        sums = self._moments(layer.input_rows(x, first).detach())
        for part in others:
            sums = self._moments(layer.input_rows(x, part).detach(), sums)
        return lambda grad: self._add(sums, rows)

    def _add(self, sums: Tensor, rows: int) -> None:
        old = self._recorded
        self._recorded = LayerMoments(sums, rows) if old is None else LayerMoments(old.sums + sums, old.rows + rows)

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


class Tape(_Recording):
    """The rows of one layer since the last `clear`, with their output gradients, over all of its uses in passes.

    With `weight`, a record counts once a `backward` call has reached the weight, and only while the weight holds that
    gradient: not after a pass that is never backpropagated, `torch.autograd.grad`, or `model.zero_grad()`.
    """

    def __init__(
        self,
        weight: nn.Parameter | None = None,  # the layer's latent weight; None counts all records
        most: int | None = None,
        *,
        wanted: bool = True,
    ) -> None:
        super().__init__(most, wanted)
        self._weight = weight
        self._parts: list[_Part] = []
        self._confirmed: list[_Part] = []
        self._grad: tuple[Tensor, int] | None = None
        self._hooks: list[RemovableHandle] = []
        self._listen()

    @torch.no_grad()
    def _reader(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> Callable[[Tensor], None]:
        self._listen()  # it may have been frozen before
        _, at = self._rows_used(layer, output)
        inputs = layer.input_rows(x, at).detach().clone()

        def add(grad: Tensor) -> None:
            running = torch._C._current_graph_task_id()
            record = LayerRecord(inputs, layer.grad_rows(grad.detach(), at).clone())
            self._parts.append(_Part(record, running, grad.any()))
            if self._weight is not None:
                torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(running))

        return add

    def _end(self, backward: int) -> None:
        """Forget the rows of a backward pass that have not reached the weight."""
        self._parts = [part for part in self._parts if part.backward != backward]

    def read(self) -> LayerRecord | None:
        """All records since the last `clear` as one, at least in single precision; None if there are none."""
        records = [part.record for part in self._valid_parts()]
        if not records:
            return None
        inputs = torch.cat([record.inputs for record in records])
        grads = torch.cat([record.output_grads for record in records])
        dtype = torch.promote_types(torch.promote_types(inputs.dtype, grads.dtype), torch.float32)
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
        if weight is None or self._hooks or not weight.requires_grad:
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
