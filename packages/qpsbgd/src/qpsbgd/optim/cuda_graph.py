"""A QP-SBGD step as one CUDA graph: gradients in, weights moved, with the launches paid for once.

On a GPU the step's work takes less time than launching its many small kernels. A graph replays them together. What is
captured is `functional.qpsbgd` itself: one graph for steps without new moments, another one for those that renew Q̄.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qpsbgd.nn.tape import LayerMoments, LayerRecord
from qpsbgd.optim.functional import LayerUpdate, qpsbgd
from qpsbgd.projections import Direction

_MOST_GRAPHS = 8  # other combinations of layers run as they are: capturing in turns would take longer than it saves
_WORTH_IT = 4  # steps of the same shapes after which they get a graph: rare shapes are not worth one
_MOST_COUNTED = 1000


class GraphedSteps:
    """Makes steps as `qpsbgd` does, by graphs where that is possible: one per combination of layers and options."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[object, ...], _Graph] = {}
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._graphs)

    def step(self, updates: Sequence[LayerUpdate], *, before: Callable[[], None] = lambda: None) -> list[Direction]:
        """The step of `qpsbgd`; `before` is as there."""
        one_device = len({update.weight.device for update in updates}) == 1
        if not one_device or not all(_capturable(update) for update in updates) or not _all_move(updates):
            return qpsbgd(updates, before=before)
        key = tuple(entry for update in updates for entry in _signature(update))
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._counts) > _MOST_COUNTED:
                self._counts.clear()
            self._counts[key] += 1
            if self._counts[key] < _WORTH_IT or len(self._graphs) == _MOST_GRAPHS:
                return qpsbgd(updates, before=before)
            # One pool for what a replay leaves unused: graphs are replayed one at a time, and keep their directions.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = self._graphs[key] = _Graph(updates, self._pool)
        before()
        return graph.replay(updates)


def _capturable(update: LayerUpdate) -> bool:
    """Whether a step of this layer can be captured: on a GPU, with what it keeps in place, without asking the CPU."""
    inputs = update.inputs
    if not update.weight.is_cuda or inputs.state.gradient is None or inputs.shards is not None:
        return False
    return not isinstance(inputs.record, LayerRecord) and update.projection.capturable(inputs)


def _all_move(updates: Sequence[LayerUpdate]) -> bool:
    """Whether all layers whose directions are whole steps have a rate and a gradient."""
    whole = [update.inputs for update in updates if update.projection.capabilities.takes_rate]
    if not all(inputs.rate > 0 for inputs in whole):
        return False
    return not whole or bool(torch.stack(torch._foreach_norm([inputs.grad for inputs in whole], torch.inf)).all())


def _signature(update: LayerUpdate) -> tuple[object, ...]:
    """A key that is equal where a graph can be used again; learning rates, gradients and moments are not part of it."""
    inputs = update.inputs
    rows = inputs.record.rows if isinstance(inputs.record, LayerMoments) else None
    kept = tuple(tensor.data_ptr() for tensor in inputs.state.tensors())
    return update.weight.data_ptr(), update.projection, inputs.momentum, update.clip, rows, kept


def _inputs_of(updates: Sequence[LayerUpdate]) -> list[Tensor]:
    """What passes have brought: the gradients, and the moments where there are new ones."""
    moments = [update.inputs.record.sums for update in updates if isinstance(update.inputs.record, LayerMoments)]
    return [update.inputs.grad for update in updates] + moments


def _numbers(updates: Sequence[LayerUpdate]) -> list[float]:
    """The learning rates, those that projections are given, the steps made, and how often every Q̄ was renewed."""
    inputs = [update.inputs for update in updates]
    numbers = [float(update.lr) for update in updates] + [each.rate for each in inputs]
    numbers += [float(each.state.step) for each in inputs]
    return numbers + [float(getattr(each.state, "refreshes", 0)) for each in inputs]


class _Graph:
    """A captured step; `replay` takes gradients and moments of the same layers."""

    def __init__(self, updates: Sequence[LayerUpdate], pool: Any) -> None:
        device = updates[0].weight.device
        self._inputs = [tensor.clone() for tensor in _inputs_of(updates)]
        self._numbers = torch.zeros(4 * len(updates), dtype=torch.float64, device=device)
        self._updates = []
        grads, sums = self._inputs[: len(updates)], iter(self._inputs[len(updates) :])
        numbers = self._numbers.reshape(4, -1).mT
        for update, grad, (lr, rate, step, count) in zip(updates, grads, numbers, strict=True):
            record, state = update.inputs.record, replace(update.inputs.state, step=step)
            if isinstance(record, LayerMoments):
                record, state.refreshes = LayerMoments(next(sums), record.rows), count
            inputs = replace(update.inputs, grad=grad, record=record, state=state, rate=rate)
            self._updates.append(replace(update, inputs=inputs, lr=lr))
        kept = [tensor for update in updates for tensor in update.inputs.state.tensors()]
        changed = [*(update.weight for update in updates), *kept]
        before = [tensor.clone() for tensor in changed]
        with torch.no_grad(), torch.cuda.device(device):
            try:
                stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    self._step()  # compiles and allocates
                torch.cuda.current_stream().wait_stream(stream)
                self._graph = torch.cuda.CUDAGraph()
                # Other threads, such as a DataLoader's that pins memory, may use CUDA meanwhile.
                with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                    self._directions = self._step()
            finally:
                torch._foreach_copy_(changed, before)

    def _step(self) -> list[Direction]:
        """The step; layers without solvers one after another, in the same memory, since no answer can fail."""
        if any(update.projection.solver is not None for update in self._updates):
            return qpsbgd(self._updates)
        for update in self._updates:
            qpsbgd([update])
        return [Direction(update.weight.new_empty(0)) for update in self._updates]  # nobody reads them

    def replay(self, updates: Sequence[LayerUpdate]) -> list[Direction]:
        """Make the step for these gradients; the next replay overwrites the directions that this one returns."""
        torch._foreach_copy_(self._inputs, _inputs_of(updates))
        numbers = torch.tensor(_numbers(updates), dtype=torch.float64)
        self._numbers.copy_(numbers.pin_memory(), non_blocking=True)
        self._graph.replay()
        for update in updates:
            update.inputs.state.step += 1
            if update.inputs.record is not None:
                update.inputs.state.refreshes += 1
        return self._directions
