"""Records of a binary layer's passes: moments of its inputs, or rows of its inputs and output gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle, unserializable_hook

if TYPE_CHECKING:
    from qpsbgd.nn.layers import BinaryLayer


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """Rows of a layer R = gain · X W: `inputs` X (B, n) and `output_grads` ∂E/∂R (B, m), or (B, 0) if not recorded."""

    inputs: Tensor
    output_grads: Tensor


@dataclass(frozen=True, eq=False)
class LayerMoments:
    """The `sums` of x xᵀ over a number of `rows` x of a layer's inputs, by the projection's blocks."""

    sums: Tensor
    rows: int


@dataclass(frozen=True, eq=False)
class _Part:
    """The record of one backward pass through one output, and whether its gradient was not zero."""

    record: LayerRecord | LayerMoments
    backward: int
    any_gradient: Tensor


class Tape:
    """The records of one layer since the last `clear`, filled by hooks on the layer's output tensors.

    Using a layer twice, or several backward passes before a step, adds records: QUBOs are sums over rows.

    Inputs are read in the forward pass, because later operations may change them in place. With `moments`, only their
    moments are kept.

    With `weight`, a record counts once a `backward` call has reached the weight, and only while the weight holds that
    gradient. A pass that is never backpropagated does not count, nor does `torch.autograd.grad` for a saliency map or a
    gradient penalty; `model.zero_grad()` drops all records, as the optimiser's `zero_grad` does.

    FSDP shards the weight and computes with another parameter in its place, whose gradient is reduced to that of the
    shards. Records then count until the gradient of the shards is None again.
    """

    def __init__(
        self,
        weight: nn.Parameter | None = None,  # the layer's latent weight; None counts all records
        most: int | None = None,  # rows used of one pass; if there are more, evenly spaced ones are taken
        *,
        output_grads: bool = True,  # whether to record the gradients at the output as well as the inputs
        moments: Callable[..., Tensor] | None = None,  # of rows, added to a second argument; kept instead of rows
        enough: int = 1,  # rows of one pass whose moments are computed forward; fewer take less memory as rows
        at_once: int | None = None,  # rows that are read together for their moments, which bounds the memory for rows
        sharded: bool = False,  # whether FSDP has sharded the weight
    ) -> None:
        self.sharded = sharded
        self._weight, self._most, self._output_grads = weight, most, output_grads
        self._moments, self._enough, self._at_once = moments, enough, at_once
        self._parts: list[_Part] = []
        self._confirmed: list[_Part] = []
        self._reduced = False
        self._grad: tuple[Tensor, int] | None = None
        self._hooks: list[RemovableHandle] = []
        self.wanted = True

    @property
    def wanted(self) -> bool:
        """Whether to record at all; from the first time on, the tape listens to the weight."""
        return self._wanted

    @wanted.setter
    def wanted(self, value: bool) -> None:
        self._wanted = value
        if not self.sharded:
            self._listen(self._weight)

    def watch(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> None:
        """Record the inputs x of a layer when the gradient of their `output` arrives, if any will.

        The hook sits on the tensor, not the module: a module's full backward hook does not allow the in-place
        activations that often follow a layer.
        """
        # It may have been frozen before; in a pass, FSDP puts another parameter in the place of its shards.
        self._listen(layer.weight if self.sharded else self._weight)
        transformed = torch._C._functorch.peek_interpreter_stack() is not None  # torch.func: its tensors must not stay
        if transformed or not (self.wanted and output.requires_grad):
            return
        keep = self._reader(layer, x, output)

        def record(grad: Tensor | None) -> None:
            if grad is not None:  # an operation after the layer returned no gradient
                self._add(grad, keep)

        output.register_hook(record)  # type: ignore[no-untyped-call]

    def record(self, layer: BinaryLayer, x: Tensor, grad: Tensor) -> None:
        """Record the inputs x of a layer, given the gradient of their output."""
        self._listen(self._weight)  # it may have been frozen before
        self._add(grad, self._reader(layer, x, grad))

    def _add(self, grad: Tensor, keep: Callable[[Tensor], LayerRecord | LayerMoments]) -> None:
        running = torch._C._current_graph_task_id()
        self._parts.append(_Part(keep(grad.detach()), running, grad.any()))
        if self._weight is not None:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(running))

    def _end(self, backward: int) -> None:
        """Forget the rows of a backward pass that have not reached the weight."""
        self._parts = [part for part in self._parts if part.backward != backward]

    @torch.no_grad()
    def _reader(self, layer: BinaryLayer, x: Tensor, output: Tensor) -> Callable[[Tensor], LayerRecord | LayerMoments]:
        """Read the inputs of an output, or of its gradient; the function makes the record once that is known."""
        rows, at = layer.num_rows(output.shape), None
        if self._most is not None and rows > self._most:
            # Mostly no divisor of the rows of an image, so that images share their positions out among each other.
            rows, at = self._most, torch.arange(self._most, device=output.device) * rows // self._most
        if self._moments is not None and rows >= self._enough:
            parts: Sequence[Tensor | None] = [at]
            if self._at_once is not None and rows > self._at_once:
                parts = torch.split(torch.arange(rows, device=x.device) if at is None else at, self._at_once)
            first, *others = parts
            sums = self._moments(layer.input_rows(x, first).detach())
            for part in others:
                sums = self._moments(layer.input_rows(x, part).detach(), sums)
            found = LayerMoments(sums, rows)
            return lambda grad: found
        inputs, wanted = layer.input_rows(x, at).detach().clone(), self._output_grads
        return lambda grad: LayerRecord(
            inputs, layer.grad_rows(grad, at).clone() if wanted else inputs.new_empty(len(inputs), 0)
        )

    def read(self) -> LayerRecord | LayerMoments | None:
        """All records since the last `clear` as one, at least in single precision; None if there are none."""
        found = [part.record for part in self._counting()]
        moments = [one for one in found if isinstance(one, LayerMoments)]
        if records := [one for one in found if isinstance(one, LayerRecord)]:
            inputs = _concatenated([one.inputs for one in records])
            if self._moments is None:
                grads = _concatenated([one.output_grads for one in records])
                dtype = torch.promote_types(inputs.dtype, grads.dtype)
                return LayerRecord(inputs.to(dtype), grads.to(dtype))
            moments.append(LayerMoments(self._moments(inputs), len(inputs)))
        if not moments:
            return None
        sums = reduce(torch.add, [one.sums for one in moments])  # a single one is not copied
        return LayerMoments(sums, sum(one.rows for one in moments))

    def clear(self) -> None:
        """Drop all records."""
        self._parts, self._confirmed, self._grad, self._reduced = [], [], None, False

    def close(self) -> None:
        """Drop all records and stop listening to the weight."""
        self.clear()
        while self._hooks:
            self._hooks.pop().remove()

    def _listen(self, weight: Any) -> None:
        if weight is None or not self._wanted or self._hooks or not weight.requires_grad:
            return
        self._hooks = [
            weight.register_hook(_calling(self._before_gradient)),
            weight.register_post_accumulate_grad_hook(_calling(self._after_gradient)),
        ]
        if self.sharded:
            own: Any = self._weight
            reduced = _calling(self._after_reduction)
            self._hooks.append(own.register_post_accumulate_grad_hook(reduced))  # FSDP calls it

    def _before_gradient(self) -> None:
        """A backward pass is about to add to the weight's gradient: records of a gradient that was reset are old."""
        self._confirmed = self._counting()
        self._reduced = self._reduced and bool(self._confirmed)

    def _after_gradient(self) -> None:
        """The running backward pass has reached the weight's gradient."""
        assert self._weight is not None
        running = torch._C._current_graph_task_id()
        self._confirmed += [part for part in self._parts if part.backward == running]
        self._end(running)  # a pass that runs around this one, as around a checkpoint, is not over
        grad = self._weight.grad
        self._grad = None if grad is None else (grad, grad._version)

    def _after_reduction(self) -> None:
        """FSDP has reduced the gradient to that of the shards."""
        self._reduced = True

    def _counting(self) -> list[_Part]:
        if self._weight is None:
            return self._parts
        return [] if self._confirmed and self._was_reset(self._weight.grad) else self._confirmed

    def _was_reset(self, grad: Tensor | None) -> bool:
        """Whether the weight's gradient was set to None or to zero since the last backward pass."""
        if self.sharded:
            return grad is None and self._reduced
        if grad is None:
            return True
        if self._grad is not None and grad is self._grad[0] and grad._version == self._grad[1]:
            return False
        # Changed since: clipped or unscaled, or zeroed, unless it was zero all along.
        return not grad.any() and any(bool(part.any_gradient) for part in self._confirmed)


def _concatenated(rows: Sequence[Tensor]) -> Tensor:
    """Rows one after the other, at least in single precision."""
    dtype = reduce(torch.promote_types, [one.dtype for one in rows], torch.float32)
    return rows[0].to(dtype) if len(rows) == 1 else torch.cat([one.to(dtype) for one in rows])


def _calling(method: Callable[[], None]) -> Callable[[Tensor], None]:
    """A hook that calls the tape while it is alive and is not pickled with the weight."""
    weak = weakref.WeakMethod(method)

    def hook(_: Tensor) -> None:
        if (call := weak()) is not None:
            call()

    marked: Callable[[Tensor], None] = unserializable_hook(hook)  # type: ignore[no-untyped-call]
    return marked


@contextmanager
def taped(layers: Iterable[BinaryLayer]) -> Iterator[list[Tape]]:
    """Fresh tapes on the layers for the duration of the block; an optimiser's own tapes see nothing of it."""
    tapes = []
    with ExitStack() as stack:
        for layer in layers:
            tapes.append(Tape())
            stack.enter_context(having([layer], tape=tapes[-1]))
        yield tapes


@contextmanager
def having(things: Iterable[Any], **values: Any) -> Iterator[None]:
    """Attributes have these values for the duration of the block, and then their own again."""
    before = [(thing, name, getattr(thing, name)) for thing in things for name in values]
    try:
        for thing, name, _ in before:
            setattr(thing, name, values[name])
        yield
    finally:
        for thing, name, value in before:
            setattr(thing, name, value)
