"""A QP-SBGD step as one CUDA graph: gradients in, weights moved, with the launches paid for once.

On a GPU the step's work takes less time than launching its many small kernels. A graph replays them together. What is
captured is `functional.qpsbgd` itself, in steps that need no new rows; the others, one in `refresh`, run as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qpsbgd.optim.functional import LayerUpdate, qpsbgd
from qpsbgd.projections import Direction

_MOST_GRAPHS = 8
"""Other combinations of layers run as they are: capturing in turns would take longer than it saves."""
_WORTH_IT = 4
"""Steps of the same shapes after which they get a graph: rare shapes are not worth one."""
_MOST_SEEN = 1000


class GraphedSteps:
    """Makes steps as `qpsbgd` does, by graphs where that is possible: one per combination of layers and options."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[object, ...], _Graph] = {}
        self._seen: Counter[tuple[object, ...]] = Counter()

    def __len__(self) -> int:
        return len(self._graphs)

    def step(self, updates: Sequence[LayerUpdate], skip: Tensor | None = None) -> list[Direction]:
        """The step of `qpsbgd`; `skip` is as there."""
        if not updates or not all(_steady(update) for update in updates):
            return qpsbgd(updates, skip=skip)
        key = tuple(entry for update in updates for entry in _signature(update))
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._seen) > _MOST_SEEN:
                self._seen.clear()
            self._seen[key] += 1
            if self._seen[key] < _WORTH_IT or len(self._graphs) == _MOST_GRAPHS:
                return qpsbgd(updates, skip=skip)
            graph = self._graphs[key] = _Graph(updates)
        return graph.replay(updates, skip)


def _steady(update: LayerUpdate) -> bool:
    """Whether a step of this layer can be captured: on a GPU, with what it keeps in place, without asking the CPU."""
    inputs = update.inputs
    waits = inputs.record is not None or "gradient" not in inputs.state
    if not update.weight.is_cuda or waits or inputs.shards is not None:
        return False
    return update.projection.capturable(inputs.grad, inputs.cached)


def _signature(update: LayerUpdate) -> tuple[object, ...]:
    """A key that is equal where a graph can be used again; learning rates and gradients are not part of it."""
    inputs = update.inputs
    kept = [
        value.data_ptr() for part in (inputs.state, inputs.cached) for value in part.values() if torch.is_tensor(value)
    ]
    return update.weight.data_ptr(), update.projection, inputs.momentum, update.clip, tuple(kept)


class _Graph:
    """A captured step; `replay` takes gradients of the same layers."""

    def __init__(self, updates: Sequence[LayerUpdate]) -> None:
        device = updates[0].weight.device
        self._grads = [update.inputs.grad.clone() for update in updates]
        self._rates = torch.zeros(len(updates), device=device)
        self._skip = torch.zeros((), dtype=torch.bool, device=device)
        self._updates = []
        for update, grad, rate in zip(updates, self._grads, self._rates.unbind(), strict=True):
            state, cached = dict(update.inputs.state), dict(update.inputs.cached)
            inputs = replace(update.inputs, grad=grad, state=state, cached=cached)
            self._updates.append(replace(update, inputs=inputs, lr=rate))
        kept = [value for update in self._updates for value in update.inputs.state.values()]
        changed = [tensor for tensor in (*(u.weight for u in self._updates), *kept) if isinstance(tensor, Tensor)]
        before = [tensor.clone() for tensor in changed]
        with torch.no_grad(), torch.cuda.device(device):
            try:
                self._capture()
            finally:
                torch._foreach_copy_(changed, before)

    def _capture(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._made()  # compiles and allocates
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads, such as a DataLoader's that pins memory, may use CUDA meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._directions = self._made()

    def _made(self) -> list[Direction]:
        """The step; layers without solvers one after another, in the same memory, since no answer can fail."""
        if any(update.projection.solver is not None for update in self._updates):
            return qpsbgd(self._updates, skip=self._skip)
        for update in self._updates:
            qpsbgd([update], skip=self._skip)
        return [Direction(update.weight.new_empty(0)) for update in self._updates]  # nobody reads them

    def replay(self, updates: Sequence[LayerUpdate], skip: Tensor | None) -> list[Direction]:
        """Make the step for these gradients; the next replay overwrites the directions that this one returns."""
        torch._foreach_copy_(self._grads, [update.inputs.grad for update in updates])
        self._rates.copy_(torch.tensor([float(update.lr) for update in updates]).pin_memory(), non_blocking=True)
        self._skip.zero_() if skip is None else self._skip.copy_(skip)
        self._graph.replay()
        for update in updates:
            update.inputs.state["step"] += 1
        return self._directions
