"""A whole QP-SBGD step as one CUDA graph: rows in, weights moved, with the launches paid for once.

On a GPU the step's work takes less time than launching its many small kernels. A graph replays them together. The
arithmetic is that of `QPSBGD.step`, which launches one by one wherever a graph cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.optim.layerwise import clip_latent
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.qubo.binary_map import Scale
from qpsbgd.solvers import Solver
from qpsbgd.solvers.auto import Auto
from qpsbgd.solvers.search.descent import Descent, sign_start

try:
    from qpsbgd.qubo import binary_map_triton
    from qpsbgd.solvers.search import kernels_triton
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True


@dataclass(eq=False)
class GraphPart:
    """One layer's share of a step: its rows, options, and the running mean of its family (None before the first)."""

    layer: BinaryLayer
    record: LayerRecord
    scale: Scale
    clip: float | None
    mean: list[Tensor] | None
    rate: float = 1.0
    lr: float = 0.0

    def signature(self) -> tuple[object, ...]:
        """What must stay the same for a graph to be used again."""
        mean = tuple(tensor.data_ptr() for tensor in self.mean or ())
        shapes = self.record.inputs.shape, self.record.output_grads.shape
        return self.layer.weight.data_ptr(), self.layer.gain, self.scale, self.clip, mean, shapes


def descent_of(solver: Solver, parts: Sequence[GraphPart]) -> Descent | None:
    """The descent that answers every part, where a graph can hold it; None otherwise."""
    if not AVAILABLE:
        return None
    chosen: Solver | None = None
    for part in parts:
        inputs, grads = part.record.inputs, part.record.output_grads
        weight = part.layer.weight
        if not (weight.is_cuda and weight.dtype == torch.float32 and binary_map_triton.fits(inputs, grads)):
            return None
        n = inputs.shape[1]
        chosen = solver.choose(n, inputs.device) if isinstance(solver, Auto) else solver
        once = isinstance(chosen, Descent) and not (chosen.kicks or chosen.restarts or chosen.time_limit)
        if not once or n > kernels_triton.LARGEST:
            return None
    one_device = len({part.layer.weight.device for part in parts}) == 1
    return chosen if one_device and isinstance(chosen, Descent) else None


@dataclass(eq=False)
class GraphedStep:
    """A captured step for layers and rows of one signature; `replay` takes rows of the same shapes."""

    parts: list[GraphPart]
    descent: Descent
    solutions: list[Solution] = field(default_factory=list)

    def __post_init__(self) -> None:
        device = self.parts[0].layer.weight.device
        self._inputs = [part.record.inputs.clone() for part in self.parts]
        self._grads = [part.record.output_grads.clone() for part in self.parts]
        self._numbers = torch.zeros(2, len(self.parts), device=device)
        self._rates, self._lrs = self._numbers
        self._sound = torch.zeros((), dtype=torch.bool, device=device)
        self._streams = [torch.cuda.Stream(device) for _ in self.parts]  # type: ignore[no-untyped-call]
        # Before the first mean there is nothing to average with; zeros at rate 1 give the family itself.
        self.means = [part.mean or self._zeros(part) for part in self.parts]
        kept = [tensor.clone() for tensor in self._changed()]
        with torch.no_grad():
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                self._compute()  # compiles and allocates
            torch.cuda.current_stream(device).wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._compute()
            for tensor, value in zip(self._changed(), kept, strict=True):
                tensor.copy_(value)

    def replay(self, parts: Sequence[GraphPart]) -> bool:
        """Make the step for these rows; False, with nothing changed, if they hold NaN or infinite values."""
        rows = [part.record.inputs for part in parts] + [part.record.output_grads for part in parts]
        torch._foreach_copy_(self._inputs + self._grads, rows)
        self._numbers.copy_(torch.tensor([[part.rate for part in parts], [part.lr for part in parts]]))
        self._graph.replay()
        return bool(self._sound)

    def _compute(self) -> None:
        # One stream a layer: the columns of one layer do not fill the GPU.
        main = torch.cuda.current_stream(self._sound.device)
        answers = []
        for index, stream in enumerate(self._streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                answers.append(self._answer(index))
        for stream in self._streams:
            main.wait_stream(stream)
        self.solutions = [solution for _, solution, _ in answers]
        self._sound.copy_(torch.stack([sound for _, _, sound in answers]).all())
        for index, (family, solution, _) in enumerate(answers):
            weight = self.parts[index].layer.weight
            update = (solution.spins * family.linear.any(0)).T.reshape(weight.shape)
            moved = weight - self._lrs[index] * update
            clip_latent(moved, self.parts[index].clip)
            changed = [weight, *self.means[index]]
            new = [moved, family.quadratic, family.linear, family.offset]
            torch._foreach_copy_(changed, [torch.where(self._sound, *pair) for pair in zip(new, changed, strict=True)])

    def _answer(self, index: int) -> tuple[QuboFamily, Solution, Tensor]:
        """A layer's averaged family, its solution, and whether the rows were sound."""
        part = self.parts[index]
        directions, targets, offset, health = binary_map_triton.scaled_rows(
            self._inputs[index],
            self._grads[index],
            gain=part.layer.gain,
            scale=None if part.scale == "literal" else float(part.scale),
        )
        fresh = directions.T @ directions, directions.T @ targets, offset
        rate = self._rates[index]
        family = QuboFamily.trusted(
            *(torch.lerp(old, new, rate) for old, new in zip(self.means[index], fresh, strict=True))
        )
        solution = self.descent.improved(family, sign_start(family))
        return family, solution, health.isfinite().all()

    def _changed(self) -> list[Tensor]:
        return [part.layer.weight for part in self.parts] + [tensor for mean in self.means for tensor in mean]

    @staticmethod
    def _zeros(part: GraphPart) -> list[Tensor]:
        inputs, grads = part.record.inputs, part.record.output_grads
        n, m = inputs.shape[1], grads.shape[1]
        return [inputs.new_zeros(n, n), inputs.new_zeros(n, m), inputs.new_zeros(m)]
