"""A layer's system, built in one place for every projection that needs one.

    A = Q̄/d + δI,   d = mean(diag Q̄),   A G = S̄

Q̄ is the mean of x xᵀ over rows of the layer's inputs, from the moments that layers record in the forward pass, and is
renewed every `refresh` steps; S̄ is the mean of the weight's gradient, the sum of v x over rows with output gradients v.
So A G = S̄ is the least-squares problem of the paper's map (Def. 1, Prop. 2) with plain rows and a ridge: over ℝⁿ it has
one factorisation for all columns of the layer (`Ridge`), over {−1, +1}ⁿ it is a family of QUBOs (`Spins`). The size of
S̄ does not matter, so nothing has to be scaled.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerMoments
from qpsbgd.projections.blocks import Blocks
from qpsbgd.projections.protocol import (
    DERIVED,
    Capabilities,
    Direction,
    LayerInputs,
    LayerShards,
    LayerState,
    Projection,
    mean_gradient,
)
from qpsbgd_qubo.files.memory import check_memory
from qpsbgd_qubo.options import AT_LEAST_ONE, BELOW_ONE, POSITIVE, check_options

Delta = float | Literal["auto"]

SMALL = 2**19
"""Numbers in a matrix up to which those of one shape are factorised together; larger ones keep a GPU busy alone."""

MANY_ROWS, PENALTY_OF_MANY = 1024, 3.0
"""δ from so many rows on: 10 and 1 are worse or level on CIFAR-10 and a GPT (reproduction/results/rates.json)."""

SURE_PENALTY = 1.0
"""δ from which on a factorisation in single precision succeeds: the condition of A is at most 1 + n/δ."""

UNIT_RANK, LARGEST_PENALTY = 4.0, 10.0
"""With fewer rows δ is (r/4)³, at least 1 and at most 10, for inputs of effective rank r. Trained with fixed values
(reproduction/results/penalties.json), networks whose inputs have ranks of 2 to 5, Adult's, do best with 1, those with
ranks above 8, MNIST's, with 10 to 30, whatever the batch; digits and Letter are between."""


@dataclass(eq=False)
class SystemState(LayerState):
    """What makes a layer's next system, and what follows from Q̄ and δ.

    Attributes:
        gram: Q̄ by block.
        refreshes: How many steps have renewed it; in a CUDA graph a tensor.
        penalty: δ.
        matrix: A by block.
        inverse: A⁻¹ by block.
    """

    gram: Any = None  # a tensor
    refreshes: Any = 0
    penalty: Any = None  # a tensor or a number
    matrix: Tensor | None = field(default=None, metadata=DERIVED)
    inverse: Tensor | None = field(default=None, metadata=DERIVED)


@dataclass(frozen=True, eq=False)
class System:
    """A layer's system at a step; tensors come by block, (count, m, width) or (count, width, width).

    Attributes:
        layer: The layer.
        blocks: How the layer is cut.
        grad: This step's gradient, in the shape of the weight.
        renewed: Whether Q̄ is new in this step.
        state: The state after this step; what follows from Q̄ and δ is computed on first use, and kept while Q̄ stands.
        shards: The ranks that hold a sharded layer; the tensors are those of this rank's output units.
    """

    layer: BinaryLayer
    blocks: Blocks
    grad: Tensor
    renewed: bool
    state: Any  # a `SystemState`
    shards: LayerShards | None = None

    @cached_property
    def size(self) -> Tensor:
        """The size of S̄, a power of two."""
        return binary_size(self.state.gradient)

    @property
    def gradient(self) -> Tensor:
        """S̄ by block, divided by `size`: whatever the loss is multiplied by, nothing overflows or vanishes."""
        return self.blocks.weights(self.state.gradient / self.size)

    @property
    def matrix(self) -> Tensor:
        """A by block."""
        if self.state.matrix is None:
            self.state.matrix = system_matrix(self.state.gram, self.state.penalty, self.blocks)
        return self.state.matrix

    @property
    def inverse(self) -> Tensor:
        """A⁻¹ by block."""
        if self.state.inverse is None:
            try:
                self.state.inverse = inverse(self.state.gram, self.state.penalty, self.blocks, sure=self.sure)
            except ValueError as error:
                raise ValueError(f"{self.layer}: {error}") from error
        return self.state.inverse

    @property
    def sure(self) -> bool:
        """Whether A is known to be positive definite in single precision, so that a GPU need not be waited for.

        Its condition is at most 1 + n/δ, and the step has asked whether Q̄ is finite.
        """
        penalty = self.state.penalty  # a tensor is `penalty_of`'s
        return self.grad.is_cuda and (isinstance(penalty, Tensor) or penalty >= SURE_PENALTY)

    def solution(self) -> Tensor:
        """G = A⁻¹ S̄, divided by `size`, in the shape of the weight."""
        return self.blocks.rejoin(self.gradient @ self.inverse, self.grad)

    def direction(self, values: Tensor, **more: Any) -> Direction:
        """A direction with what is to be kept of this system."""
        return Direction(values, self.state, **more)


@dataclass(frozen=True)
class MomentProjection(Projection):
    """A projection for which layers record the moments of their inputs in some of the steps.

    Args:
        memory: Share of Q̄ that is kept at a renewal.
        refresh: Steps between renewals of Q̄ and of what follows from it.
    """

    memory: float = field(default=0.9, kw_only=True)
    refresh: int = field(default=20, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, memory=BELOW_ONE, refresh=AT_LEAST_ONE)

    def records_at(self, step: int) -> bool:
        """Whether Q̄ is renewed: every `refresh` steps, and more often at the start."""
        return step % self.refresh == 0 or (step < self.refresh and step & (step + 1) == 0)

    def moments(self, layer: BinaryLayer) -> Callable[..., Tensor]:
        """The sums of x xᵀ by block; MemoryError if there is not enough memory for Q̄ and what follows from it."""
        blocks, dtype = Blocks.of(layer, self.block), torch.promote_types(layer.weight.dtype, torch.float32)
        if layer.weight.device.type == "cpu":
            needed = 3 * blocks.count * blocks.width**2 * dtype.itemsize
            what = f"{layer}: the system of {blocks.groups * blocks.inputs} inputs (Q̄, A and what follows from them)"
            check_memory(needed, what, f"cut it into smaller blocks: `block` is {self.block}")
        return partial(block_moments, blocks, dtype)


@dataclass(frozen=True)
class SystemProjection(MomentProjection):
    """A projection that solves the layer's system A G = S̄; subclasses have a name and `solve`.

    Args:
        delta: δ. The larger, the closer G is to the gradient; "auto" is 3, or with few rows 1 to 10, depending on their
            rank.
        memory: Share of Q̄ that is kept at a renewal.
        refresh: Steps between renewals of Q̄ and its factorisation.
    """

    capabilities = Capabilities(state=SystemState)

    delta: Delta = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta != "auto":
            check_options(self, delta=POSITIVE)

    @property
    def sure(self) -> bool:
        """Whether δ makes every factorisation succeed, so that a GPU need not be waited for."""
        return self.delta == "auto" or self.delta >= SURE_PENALTY

    def directions(self, inputs: Sequence[LayerInputs]) -> list[Direction]:
        """The directions of all layers."""
        return self.solve([self.system(layer_inputs) for layer_inputs in inputs])

    @abstractmethod
    def solve(self, systems: Sequence[System]) -> list[Direction]:
        """`system.direction(values)` for every system."""

    def system(self, inputs: LayerInputs) -> System:
        """The layer's system after one more step.

            S̄ ← β S̄ + (1−β) ∂E/∂W,   Q̄ ← Q̄ + (1−μ)/(1−μᵏ) · (mean x xᵀ − Q̄) at the k-th renewal

        Raises:
            RuntimeError: The state does not fit the gradient.
        """
        state: SystemState = replace(inputs.state, step=inputs.state.step + 1, gradient=mean_gradient(inputs))
        if inputs.record is not None:
            assert isinstance(inputs.record, LayerMoments)
            self._renew(state, inputs.record)
        blocks, renewed = Blocks.of(inputs.layer, self.block, len(inputs.grad)), inputs.record is not None
        return System(inputs.layer, blocks, inputs.grad, renewed, state, inputs.shards)

    def _renew(self, state: SystemState, record: LayerMoments) -> None:
        """Bring Q̄ and δ forward."""
        state.forget_derived()
        state.refreshes = state.refreshes + 1
        moments = record.sums / record.rows
        # So weighted, the first rows are not damped. In a CUDA graph the count is a tensor.
        rate = (1 - self.memory) / (1 - self.memory**state.refreshes)
        rate = rate.to(moments) if isinstance(rate, Tensor) else rate
        state.gram = moments if state.gram is None else torch.lerp(state.gram, moments, rate)
        if self.delta != "auto":
            state.penalty = self.delta
            return
        penalty = penalty_of(state.gram, record.rows)
        if isinstance(state.penalty, Tensor) and not isinstance(penalty, Tensor):
            # In batches of changing size: CUDA graphs bring tensors alone forward.
            penalty = torch.full_like(state.penalty, penalty)
        state.penalty = penalty


def block_moments(blocks: Blocks, dtype: torch.dtype, rows: Tensor, sums: Tensor | None = None) -> Tensor:
    """The sums of x xᵀ over rows (B, n) by block, (count, width, width), in this precision; added to `sums`, if any."""
    kind = "cpu" if rows.is_meta else rows.device.type  # torch has no autocast for the meta device
    with torch.autocast(kind, enabled=False):
        cut = blocks.rows(rows).to(dtype)
        if sums is None:
            return torch.bmm(cut.transpose(1, 2), cut)
        return sums.baddbmm_(cut.transpose(1, 2), cut)


def effective_rank(gram: Tensor) -> Tensor:
    """(Σλ)²/Σλ² for the eigenvalues λ of every matrix (count, n, n): n if all are alike, 1 if there is but one."""
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=torch.float64)
    norm = torch.linalg.vector_norm(gram, dim=(-2, -1), dtype=torch.float64)  # squares may be tiny or huge
    return torch.where(norm > 0, trace / norm, 1).square().to(gram.dtype)


def penalty_of(gram: Tensor, rows: int) -> float | Tensor:
    """δ by default, for a layer's Q̄ (count, n, n) from this many rows; a tensor, so that a GPU need not wait."""
    if rows >= MANY_ROWS:
        return PENALTY_OF_MANY
    return (effective_rank(gram).mean() / UNIT_RANK).pow(3).clamp(1.0, LARGEST_PENALTY)


def system_matrix(gram: Tensor, penalty: float | Tensor, blocks: Blocks) -> Tensor:
    """A = Q̄/d + δI for Q̄ (count, width, width); δI where all inputs are zero."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1).sum() / (blocks.groups * blocks.inputs)
    system = gram / torch.where(diagonal > 0, diagonal, 1)
    system.diagonal(dim1=-2, dim2=-1).add_(penalty)
    return system


def inverse(gram: Tensor, penalty: float | Tensor, blocks: Blocks, *, sure: bool = False) -> Tensor:
    """A⁻¹ for Q̄ (count, width, width); in double precision where a tiny δ makes single fail, unless it is `sure`."""
    # Some builds of LAPACK report no failure of a matrix that holds NaN.
    if not sure and not bool(gram.isfinite().all()):
        raise ValueError(
            "the inputs hold NaN or infinite values, or some whose squares overflow; the forward pass has diverged"
        )
    for dtype in (gram.dtype, torch.float64):
        factor, failed = torch.linalg.cholesky_ex(system_matrix(gram.to(dtype), penalty, blocks))
        if sure or not bool(failed.any()):
            return _inverse_of(factor).to(gram.dtype)
    raise ValueError(f"the inputs are too similar for δ = {float(penalty):g}; use a larger one")


def invert(systems: Sequence[System]) -> None:
    """Find all A⁻¹ that are not known, small ones of one shape together: a network has many, and each call its cost."""
    alike: dict[object, list[System]] = {}
    for system in systems:
        gram = system.state.gram
        if system.state.inverse is None and gram[0].numel() <= SMALL:
            alike.setdefault((gram.shape[-1], gram.dtype, gram.device, system.sure), []).append(system)
    for group in alike.values():
        pairs = [(system.state, system.blocks) for system in group]
        matrices = torch.cat([system_matrix(state.gram, state.penalty, blocks) for state, blocks in pairs])
        factors, failed = torch.linalg.cholesky_ex(matrices)
        if not group[0].sure and bool(failed.any() | ~matrices.isfinite().all()):
            continue  # one by one, `System.inverse` says which
        inverses = torch.split(_inverse_of(factors), [system.blocks.count for system in group])
        for system, part in zip(group, inverses, strict=True):
            system.state.inverse = part


def _inverse_of(factor: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ for L by block."""
    if not factor.is_cuda:
        return torch.cholesky_inverse(factor)
    # cuSOLVER's routine for the inverse is slower.
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    half: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return half.mT @ half


def unit_rms(step: Tensor, shards: LayerShards | None = None, size: Tensor | None = None) -> Tensor:
    """`step` divided by its root mean square, that of size · step over all shards; zero stays zero."""
    if size is None:
        size = binary_size(step)
        step = step / size
    norm: Tensor = torch.linalg.vector_norm(step, dtype=torch.float64)
    rms = norm / math.sqrt(max(1, step.numel()))
    if shards is not None:  # each has a size of its own
        squares = (norm * size).square()
        squares, count = shards.all_gather(torch.stack([squares, norm.new_tensor(step.numel())])).sum(0)
        rms = (squares / count).sqrt() / size
    rms = rms.to(step.dtype)
    return step / torch.where(rms > 0, rms, 1)


def binary_size(tensor: Tensor, dim: tuple[int, ...] | None = None) -> Tensor:
    """The power of two at or below the largest magnitude, of all or along `dim`, which stays; 1 where all is zero.

    Divided by it, a tensor keeps all of its bits, and its squares and sums neither overflow nor vanish.
    """
    if dim is None:
        size = largest(tensor)
    else:
        size = tensor.abs().amax(dim, keepdim=True)
        size = torch.where(size > 0, size, 1)
    return size / (2 * torch.frexp(size).mantissa)


def largest(tensor: Tensor) -> Tensor:
    """The largest magnitude in a tensor, or 1 if all is zero; five times as fast as a norm."""
    if not tensor.numel():  # a shard without output units
        return tensor.new_ones(())
    ends = torch.aminmax(tensor)
    size = torch.maximum(ends.max, -ends.min)
    return torch.where(size > 0, size, 1)
