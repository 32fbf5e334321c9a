"""A QP-SBGD step as one CUDA graph: gradients in, weights moved, with the launches paid for once.

On a GPU the step's work takes less time than launching its many small kernels. A graph replays them together. What is
captured is `optim.step.advance` itself, in steps that need no new rows; the others, one in `refresh`, run as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qpsbgd.optim.step import Share, Shared, advance
from qpsbgd.projections import Direction, Ridge, Spins
from qpsbgd.projections.solving import follows
from qpsbgd_qubo.solvers.search.landscape import triton_kernels

_MOST_GRAPHS = 8
"""Other combinations of layers run as they are: capturing in turns would take longer than it saves."""
_WORTH_IT = 4
"""Steps of the same shapes after which they get a graph: rare shapes are not worth one."""
_MOST_SEEN = 1000


class GraphedSteps:
    """Makes steps as `advance` does, by graphs where that is possible: one per combination of layers and options."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[object, ...], _Graph] = {}
        self._seen: Counter[tuple[object, ...]] = Counter()

    def __len__(self) -> int:
        return len(self._graphs)

    def advance(self, shares: Sequence[Share], shared: Shared) -> list[Direction]:
        """The step of `advance`."""
        if not shares or not all(_steady(share) for share in shares):
            return advance(shares, shared)
        key = tuple(entry for share in shares for entry in _signature(share))
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._seen) > _MOST_SEEN:
                self._seen.clear()
            self._seen[key] += 1
            if self._seen[key] < _WORTH_IT or len(self._graphs) == _MOST_GRAPHS:
                return advance(shares, shared)
            graph = self._graphs[key] = _Graph(shares, shared)
        return graph.replay(shares)


def _steady(share: Share) -> bool:
    """Whether a step of this layer can be captured: on a GPU, with what it keeps in place, without asking the CPU."""
    weight, projection = share.seen.layer.weight, share.projection
    if not weight.is_cuda or share.seen.record is not None or not share.cached or "gradient" not in share.state:
        return False
    if type(projection) is Ridge:
        return "inverse" in share.cached
    if type(projection) is not Spins or not follows(projection.solver) or "matrix" not in share.cached:
        return False
    kernels = triton_kernels(share.seen.grad)
    return kernels is not None and share.cached["matrix"].shape[-1] <= kernels.LARGEST


def _signature(share: Share) -> tuple[object, ...]:
    """What must stay the same for a graph to be used again; learning rates and gradients may change."""
    kept = [
        value.data_ptr() for part in (share.state, share.cached) for value in part.values() if torch.is_tensor(value)
    ]
    return share.seen.layer.weight.data_ptr(), share.projection, share.seen.momentum, share.clip, tuple(kept)


class _Graph:
    """A captured step; `replay` takes gradients of the same layers."""

    def __init__(self, shares: Sequence[Share], shared: Shared) -> None:
        device = shares[0].seen.layer.weight.device
        self._grads = [share.seen.grad.clone() for share in shares]
        self._rates = torch.zeros(len(shares), device=device)
        inputs = zip(shares, self._grads, self._rates.unbind(), strict=True)
        self._shares = [
            replace(
                share, seen=replace(share.seen, grad=grad), lr=rate, state=dict(share.state), cached=dict(share.cached)
            )
            for share, grad, rate in inputs
        ]
        changed = [tensor for share in self._shares for tensor in _changed(share)]
        before = [tensor.clone() for tensor in changed]
        with torch.no_grad(), torch.cuda.device(device):
            try:
                self._capture(shared)
            finally:
                torch._foreach_copy_(changed, before)

    def _capture(self, shared: Shared) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            advance(self._shares, shared)  # compiles and allocates
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads, such as a DataLoader's that pins memory, may use CUDA meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._answers = advance(self._shares, shared)

    def replay(self, shares: Sequence[Share]) -> list[Direction]:
        """Make the step for these gradients; the answers are those of the last replay, in memory that the next uses."""
        torch._foreach_copy_(self._grads, [share.seen.grad for share in shares])
        self._rates.copy_(torch.tensor([float(share.lr) for share in shares]))
        self._graph.replay()
        for share in shares:
            share.state["step"] += 1
        return self._answers


def _changed(share: Share) -> list[Tensor]:
    return [share.seen.layer.weight, *(value for value in share.state.values() if isinstance(value, Tensor))]
