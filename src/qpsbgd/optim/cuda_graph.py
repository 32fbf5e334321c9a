"""A whole QP-SBGD step as one CUDA graph: rows in, weights moved, with the launches paid for once.

On a GPU the step's work takes less time than launching its many small kernels. A graph replays them together. The
arithmetic is that of `optim.step`, which `QPSBGD` launches one by one wherever a graph cannot be used.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from qpsbgd.optim.step import LayerStep, averaged, moved
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.auto import Auto
from qpsbgd.solvers.search.descent import Descent
from qpsbgd.solvers.search.landscape import sign_start

try:
    from qpsbgd.qubo import binary_map_triton
    from qpsbgd.solvers.search import kernels_triton
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

_MOST_GRAPHS = 8
_WORTH_IT = 4
"""Steps of the same shapes after which they get a graph: rare shapes are not worth one."""
_MOST_SEEN = 1000
_UNUSED = 100
"""Steps after which a graph that was not used gives way to another, once there are `_MOST_GRAPHS`."""


class GraphCache:
    """Captured steps, one per combination of layers, shapes, options and search."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[tuple[object, ...], GraphedStep] = OrderedDict()
        self._last_used: dict[tuple[object, ...], int] = {}
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._steps = 0

    def __len__(self) -> int:
        return len(self._graphs)

    def step(self, parts: Sequence[LayerStep], solver: Solver) -> GraphedStep | None:
        """Make the step; None, with nothing changed, if no graph fits or the rows hold NaN."""
        self._steps += 1
        descents = [descent_of(solver, part) for part in parts]
        devices = {part.layer.weight.device for part in parts}
        if len(devices) > 1 or None in descents:
            return None
        key = tuple((descent, *_signature(part)) for descent, part in zip(descents, parts, strict=True))
        graph = self._graphs.get(key)
        if graph is None:
            if len(self._seen) > _MOST_SEEN:
                self._seen.clear()
            self._seen[key] += 1
            if self._seen[key] < _WORTH_IT or not self._room():
                return None
            graph = self._graphs[key] = GraphedStep(parts, [d for d in descents if d is not None])
        self._graphs.move_to_end(key)
        self._last_used[key] = self._steps
        return graph if graph.replay(parts) else None

    def _room(self) -> bool:
        """Whether one more graph may be captured; of many, the least recently used one is dropped if it is old enough.

        Without that condition, a few more alternating shapes than graphs would capture anew in nearly every step.
        """
        if len(self._graphs) < _MOST_GRAPHS:
            return True
        oldest = next(iter(self._graphs))
        if self._steps - self._last_used[oldest] < _UNUSED:
            return False
        del self._graphs[oldest], self._last_used[oldest]
        self._seen[oldest] = 0
        return True


def _signature(part: LayerStep) -> tuple[object, ...]:
    """What must stay the same for a graph to be used again; learning rates and weights of the mean may change."""
    kept = [] if part.mean is None else _tensors(part.mean)
    kept += [] if part.start is None else [part.start]
    mean = tuple(tensor.data_ptr() for tensor in kept)
    shapes = part.record.inputs.shape, part.record.output_grads.shape
    return part.layer.weight.data_ptr(), part.layer.gain, part.options.scale, part.options.clip, mean, shapes


def descent_of(solver: Solver, part: LayerStep) -> Descent | None:
    """The descent that answers the layer's family, where a graph can hold it; None otherwise."""
    if not AVAILABLE:
        return None
    inputs, grads, weight = part.record.inputs, part.record.output_grads, part.layer.weight
    if part.blocks.count > 1:
        return None
    if not (weight.is_cuda and weight.dtype == torch.float32 and binary_map_triton.fits(inputs, grads)):
        return None
    n = inputs.shape[1]
    chosen = solver.choose(n, inputs.device) if type(solver) is Auto else solver
    if type(chosen) is not Descent or n > kernels_triton.LARGEST:
        return None
    return None if chosen.kicks or chosen.restarts or chosen.time_limit is not None else chosen


class GraphedStep:
    """A captured step for layers and rows of one signature; `replay` takes rows of the same shapes.

    Attributes:
        means: The families that the last replay solved, in the memory that holds the layers' means.
        starts: The spins that the last replay found, in the memory that holds those of the last step, where they are
            kept to begin with.
    """

    def __init__(self, parts: Sequence[LayerStep], descents: Sequence[Descent]) -> None:
        device = parts[0].layer.weight.device
        self._parts, self._descents = list(parts), list(descents)
        self._inputs = [part.record.inputs.clone() for part in parts]
        self._grads = [part.record.output_grads.clone() for part in parts]
        self._numbers = torch.zeros(2, len(parts), device=device)
        self._rates, self._lrs = self._numbers
        self._sound = torch.zeros((), dtype=torch.bool, device=device)
        self._streams = [torch.cuda.Stream(device) for _ in parts]  # type: ignore[no-untyped-call]
        self._solutions: list[Solution] = []
        # Before the first mean there is nothing to average with; zeros at rate 1 give the family itself.
        self.means = [part.mean or _zeros(part) for part in parts]
        self.starts = [part.start for part in parts]
        kept = [tensor.clone() for tensor in self._changed()]
        with torch.no_grad(), torch.cuda.device(device):
            try:
                self._capture()
            finally:
                for tensor, value in zip(self._changed(), kept, strict=True):
                    tensor.copy_(value)

    def _capture(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._compute()  # compiles and allocates
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads, such as a DataLoader's that pins memory, may use CUDA meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._compute()

    def replay(self, parts: Sequence[LayerStep]) -> bool:
        """Make the step for these rows; False, with nothing changed, if they hold NaN or infinite values."""
        rows = [part.record.inputs for part in parts] + [part.record.output_grads for part in parts]
        torch._foreach_copy_(self._inputs + self._grads, rows)
        numbers = [[part.rate for part in parts], [part.options.lr for part in parts]]
        self._numbers.copy_(torch.tensor(numbers))
        self._graph.replay()
        return bool(self._sound)

    def solutions(self) -> list[Solution]:
        """Copies of the last replay's solutions."""
        return [
            Solution(s.spins.clone(), s.energies.clone(), s.proven_optimal.clone(), dict(s.stats))
            for s in self._solutions
        ]

    def _compute(self) -> None:
        # One stream per layer: the columns of one layer do not fill the GPU.
        main = torch.cuda.current_stream(self._sound.device)
        answers = []
        for index, stream in enumerate(self._streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                answers.append(self._answer(index))
        for stream in self._streams:
            main.wait_stream(stream)
        self._solutions = [solution for _, _, solution, _ in answers]
        self._sound.copy_(torch.stack([sound for *_, sound in answers]).all())
        for index, (fresh, family, solution, _) in enumerate(answers):
            part = self._parts[index]
            weight = moved(
                part.layer.weight, fresh, family, solution.spins, lr=self._lrs[index], clip=part.options.clip
            )
            changed, new = [part.layer.weight, *_tensors(self.means[index])], [weight, *_tensors(family)]
            if (start := self.starts[index]) is not None:
                changed, new = [*changed, start], [*new, solution.spins]
            torch._foreach_copy_(changed, [torch.where(self._sound, *pair) for pair in zip(new, changed, strict=True)])

    def _answer(self, index: int) -> tuple[QuboFamily, QuboFamily, Solution, Tensor]:
        """A layer's family of these rows, the averaged one, its solution, and whether the rows were sound."""
        part = self._parts[index]
        directions, targets, offset, health = binary_map_triton.scaled_rows(
            self._inputs[index],
            self._grads[index],
            gain=part.layer.gain,
            scale=None if part.options.scale == "literal" else float(part.options.scale),
        )
        fresh = QuboFamily.trusted(directions.T @ directions, directions.T @ targets, offset)
        family = averaged(self.means[index], fresh, self._rates[index])
        start = self.starts[index]
        solution = self._descents[index].improved(family, sign_start(family) if start is None else start.clone())
        return fresh, family, solution, health.isfinite().all()

    def _changed(self) -> list[Tensor]:
        weights = [part.layer.weight for part in self._parts]
        starts = [start for start in self.starts if start is not None]
        return weights + [tensor for mean in self.means for tensor in _tensors(mean)] + starts


def _tensors(family: QuboFamily) -> list[Tensor]:
    return [family.quadratic, family.linear, family.offset]


def _zeros(part: LayerStep) -> QuboFamily:
    inputs, grads = part.record.inputs, part.record.output_grads
    n, m = inputs.shape[1], grads.shape[1]
    return QuboFamily.trusted(inputs.new_zeros(n, n), inputs.new_zeros(n, m), inputs.new_zeros(m))
