"""The weights projection: chooses the binary weights themselves, as solutions of QUBOs, and keeps no latent ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

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
    check_fits,
    has_gradient,
)
from qpsbgd.projections.solving import solutions_of
from qpsbgd.projections.system import MomentProjection, system_matrix
from qpsbgd.projections.whitening import WhiteningState, lerp, maximum, whiten
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import make_solver
from qpsbgd_qubo.options import (
    AT_LEAST_ONE_OR_NONE,
    NOT_NEGATIVE,
    POSITIVE_OR_NONE,
    check_options,
)
from qpsbgd_qubo.solvers.search import tensor_descent
from qpsbgd_qubo.solvers.search.descent import Descent
from qpsbgd_qubo.solvers.search.landscape import thresholds
from qpsbgd_qubo.solvers.search.single_flips import lower_columns

WEIGHT_DESCENT = Descent(max_flips=24, warm=True)
"""The solver of weights: from where they stand, the flips that lower the energy most."""
STEERING = 0.05
"""c ← c · (flips / wanted)^STEERING in every step."""
FARTHEST = 20.0
"""The largest factor between flips and wanted ones that counts."""
FIRST_FLIPS = 4.0
"""Flips for every wanted one in the first step, by the gradient of one batch: more undo what a trained network knows,
fewer are worse on ten layers."""
REACHABLE = 1.5
"""Flips that are possible per column for every wanted one: c cannot raise the share above what is possible."""


@dataclass(eq=False)
class WeightsState(WhiteningState):
    """With c, and the largest field that couplings can make."""

    curvature: Any = None
    reach: Any = field(default=None, metadata=DERIVED)


@dataclass(eq=False)
class Step:
    """A layer's step; tensors come by block, (count, m, n) or (count, n, n). Energies are divided by c.

    Attributes:
        weight: The latent weights, of which only the signs mean anything.
        start: Their signs w₀; `spins` are those after the step, and `slopes` F / c.
        wanted: The share of the weights that is to flip; in a CUDA graph a tensor.
        moves: Whether any weight may flip: at a rate of zero and without a gradient none does.
        after: F / c after the flips, where the search knows it.
        at: The weights in the windows.
    """

    inputs: LayerInputs
    weight: Tensor
    blocks: Blocks
    state: WeightsState
    start: Tensor
    spins: Tensor
    slopes: Tensor
    wanted: Any
    moves: bool
    steered: bool
    after: Tensor | None = None
    solutions: list[Solution] = field(default_factory=list)
    at: Tensor | None = None

    @classmethod
    def of(cls, projection: Weights, inputs: LayerInputs) -> Step:
        """The step before any weight has flipped."""
        blocks = Blocks.of(inputs.layer, projection.block, len(inputs.grad))
        state: WeightsState = replace(inputs.state, step=inputs.state.step + 1)
        if state.gradient is not None:  # one of another shape is refused before it is whitened
            state.gradient = _unrounded(inputs.layer, state.gradient, inputs.grad)
        rate: Any = inputs.rate
        graphed = isinstance(rate, Tensor)  # graphs are replayed where all layers have a rate and a gradient
        moving = graphed or bool(has_gradient(inputs))
        steered = projection.curvature is None
        grad = whiten(inputs, state) if moving and projection.outputs and steered else inputs.grad
        limit = projection.most_flips(blocks.width) / (REACHABLE * blocks.width)
        wanted = rate.clamp(max=limit) if graphed else min(rate, limit)
        new = 1 - inputs.momentum
        if projection.turnover is not None and steered:
            new = projection.turnover * wanted
            new = new.clamp(max=1) if graphed else min(new, 1.0)
        state.gradient = _mean(inputs.layer, state.gradient, grad, maximum(new, 1 / state.step))
        if inputs.record is not None:
            assert isinstance(inputs.record, LayerMoments)
            state.forget_derived()
            state.refreshes += 1
            moments = inputs.record.sums / inputs.record.rows
            state.gram = _mean(inputs.layer, state.gram, moments, max(1 - projection.memory, 1 / state.refreshes))
        if state.matrix is None:
            state.matrix = projection.matrix(state.gram, blocks)
        weight: Any = inputs.layer.weight.detach()
        weight = weight if inputs.shards is None else weight.to_local()
        start = blocks.weights(torch.where(weight >= 0, 1.0, -1.0).to(inputs.grad)).contiguous()
        moves = graphed or (moving and wanted > 0)
        gradient = blocks.weights(state.gradient)
        if projection.curvature is not None:
            size = state.gram.diagonal(dim1=-2, dim2=-1).sum() / (blocks.groups * blocks.inputs)
            state.curvature = projection.curvature * inputs.layer.gain**2 * size * (1 + projection.delta)
        elif state.curvature is None and moves:
            state.curvature = _first_curvature(inputs, start * gradient, state.matrix, wanted)
        slopes = (gradient / state.curvature if moves else gradient).contiguous()
        return cls(inputs, weight, blocks, state, start, start.clone(), slopes, wanted, moves, steered)

    @property
    def matrix(self) -> Tensor:
        """A."""
        assert self.state.matrix is not None
        return self.state.matrix

    @property
    def linear(self) -> Tensor:
        """The linear part of the family ½ wᵀ A w + sᵀ w."""
        return torch.baddbmm(self.slopes, self.start, self.matrix, alpha=-1)

    def descend(self, solver: Descent) -> None:
        """Flip what lowers the energy most, from where the weights stand."""
        limits = solver.limits(self.spins.shape[-1])
        if triton := tensor_descent.triton_kernels(self.slopes, self.spins.shape[-1]):
            if self.state.reach is None:
                self.state.reach = triton.reaches_of(self.matrix)
            linear = torch.baddbmm(self.slopes, self.start, self.matrix, beta=2, alpha=-2)  # twice the energy
            self.spins, *_ = triton.search(self.matrix, linear, self.spins, reaches=self.state.reach, **limits)
            return
        if not self.spins.is_cpu:
            pairs = zip(self.families(), self.start, strict=True)
            ends = [tensor_descent.local_search(family, start.T.contiguous(), **limits) for family, start in pairs]
            self.spins = torch.stack([end.spins.T for end in ends])
            return
        matrix, diagonal = self.matrix, self.matrix.diagonal(dim1=-2, dim2=-1)
        kept = diagonal.clone()[:, None]
        fields = self.slopes - self.start * kept
        largest = torch.linalg.vector_norm(self.slopes, torch.inf, dim=-1)
        diagonal.zero_()  # the search takes couplings; a copy of A without its diagonal would double the memory
        try:
            if self.state.reach is None:
                self.state.reach = matrix.abs().sum(-1).amax(-1)
            gains = thresholds(self.state.reach[:, None], largest)
            for parts in zip(matrix, fields, self.spins, gains, strict=True):
                lower_columns(*(part.numpy() for part in parts), **limits)
        finally:
            diagonal.copy_(kept[:, 0])
        self.after = fields + self.spins * kept

    def families(self) -> list[QuboFamily]:
        """One per block."""
        pairs = zip(self.matrix / 2, self.linear, strict=True)
        return [QuboFamily.trusted(q, s.T.contiguous(), s.new_zeros(len(s))) for q, s in pairs]

    def windows(self, width: int) -> list[QuboFamily]:
        """One per column, of the `width` weights that gain most by flipping alone."""
        gains = self.start * self.slopes - self.matrix.diagonal(dim1=-2, dim2=-1)[:, None]
        self.at = gains.topk(min(width, gains.shape[-1]), -1).indices
        block = torch.arange(len(gains), device=gains.device)[:, None, None, None]
        matrix = self.matrix[block, self.at[..., :, None], self.at[..., None, :]]  # (count, m, k, k)
        start, slopes = (part.gather(-1, self.at) for part in (self.start, self.slopes))
        linear = slopes - (matrix @ start[..., None])[..., 0]
        pairs = zip(matrix.flatten(0, 1) / 2, linear.flatten(0, 1), strict=True)
        return [QuboFamily.trusted(q, s[:, None], s.new_zeros(1)) for q, s in pairs]

    def take(self, families: Sequence[QuboFamily], solutions: list[Solution]) -> None:
        """The answers, in those columns where they have a lower energy than the weights."""
        self.solutions = solutions
        before = self.start if self.at is None else self.start.gather(-1, self.at).flatten(0, 1)[:, None]
        taken = []
        for family, solution, old in zip(families, solutions, before, strict=True):
            new, old = solution.spins, old.T
            # E(g) − E(h) = (g − h)ᵀ (Q (g + h) + s): more exact than two large energies
            change = ((new - old) * (family.quadratic @ (new + old) + family.linear)).sum(0)
            taken.append(torch.where(change < 0, new, old).T)
        ends = torch.stack(taken)
        self.spins = ends if self.at is None else self.start.scatter(-1, self.at, ends.reshape(self.at.shape))

    def direction(self) -> Direction:
        """The direction, and what to keep: F as the model predicts it after the flips, and c for the next step."""
        flipped = self.blocks.rejoin(self.spins != self.start, self.weight)
        state = self.state
        gradient: Any = state.gradient
        if self.moves:
            after = self.after
            if after is None:
                after = torch.baddbmm(self.slopes, self.spins - self.start, self.matrix)
            gradient = self.blocks.rejoin(state.curvature * after, self.inputs.grad)
        state.gradient = self.stored(gradient)
        if self.moves and self.steered:
            count, total = flipped.sum(dtype=torch.float64), flipped.numel()
            if self.inputs.shards is not None:
                count, total = self.inputs.shards.all_gather(torch.stack([count, count.new_tensor(total)])).sum(0)
            ratio = (count / (self.wanted * total)).to(state.curvature)
            state.curvature = state.curvature * ratio.clamp(1 / FARTHEST, FARTHEST) ** STEERING
        away = torch.where(self.weight == 0, torch.finfo(self.weight.dtype).tiny, 2 * self.weight)  # sign(0) is +1
        figures = partial(self._figures, flipped)
        return Direction(torch.where(flipped, away, 0), state, lambda: self.solutions, figures)

    def stored(self, gradient: Tensor) -> Tensor:
        """What is kept of F."""
        return _rounded(gradient, self.state.step)

    def _figures(self, flipped: Tensor) -> dict[str, float]:
        return {"share": flipped.float().mean().item(), "curvature": float(self.state.curvature or 0.0)}


@dataclass(frozen=True)
class Weights(MomentProjection):
    """The weights that lower a layer's model of the loss, from where they stand.

        w ← argmin over {−1, +1}ⁿ of ⟨F, w − w₀⟩ + (c/2) (w − w₀)ᵀ A (w − w₀),   A = (Q̄/d + δI) / (1 + δ)

    per column, with its present weights w₀ and d = mean(diag Q̄). F is the mean gradient as the model predicts it at w₀:
    the running mean of the gradients, to each of which c A Δw is added for every flip made since. c is adjusted so that
    the rate of the parameter group is the share of the weights that flip in a step. All columns of a layer have the
    same c A: a family. F is kept in bfloat16, rounded at random: 2 bytes per weight.

    Output units have curvatures and couplings too. They are taken out of the gradients G (m, n) before they enter F:
    (L + δ'I)^(−1/2) G with the running mean L (m, m) of G Gᵀ, as Shampoo does on the output side, so that one c fits
    all units and layers keep one A.

    Args:
        solver: A solver of families. The default descends from w₀, at most 24 flips per column. Answers of others that
            have no lower energy than w₀ are not taken.
        window: Solve for this many weights of each column, those whose flips alone gain most, all others fixed; None
            for all of them.
        outputs: Whether gradients are whitened on the output side; not done where `curvature` is given.
        turnover: The share of a new gradient in the mean gradient, for every flip of a weight: at 0.25 and a share of
            flips of 2 %, the mean covers 200 steps, and more as the share falls; at first it covers all steps. The
            share is 1 − β where this is None or `curvature` is given.
        delta: δ of A: it weakens the couplings.
        curvature: Instead of adjusting c, a bound on the second derivative of the mean loss by a row's outputs, times
            the rows: 1 for half the squared error, 1/4 for logistic loss, 1/2 for cross entropy. With c from it, full
            batches, β = 0 and `refresh` and `memory` of 1 and 0, every answer of lower energy lowers the loss of a
            network's only trained layer, so that training ends, after finitely many steps, at weights that the solver
            does not improve.
        memory: Share of Q̄ that is kept at a renewal.
        refresh: Steps between renewals of Q̄.
    """

    name = "weights"
    capabilities = Capabilities(takes_rate=True, state=WeightsState, sharded={"gradient": 0})

    step: ClassVar[type[Step]] = Step

    solver: Any = field(default=WEIGHT_DESCENT, kw_only=True)
    window: int | None = field(default=None, kw_only=True)
    outputs: bool = field(default=True, kw_only=True)
    turnover: float | None = field(default=0.25, kw_only=True)
    delta: float = field(default=0.3, kw_only=True)
    curvature: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, window=AT_LEAST_ONE_OR_NONE, curvature=POSITIVE_OR_NONE, turnover=POSITIVE_OR_NONE)
        check_options(self, delta=NOT_NEGATIVE)
        object.__setattr__(self, "solver", make_solver(self.solver))

    def check(self, layer: BinaryLayer) -> None:
        """A given curvature applies to layers without scales only."""
        if self.curvature is not None and layer.scaling is not None:
            raise ValueError(f"a curvature bounds the loss of layers without scales, got {layer}")

    def matrix(self, gram: Tensor, blocks: Blocks) -> Tensor:
        """A by block."""
        return system_matrix(gram, self.delta, blocks) / (1 + self.delta)

    def family_shapes(self, layer: BinaryLayer) -> list[tuple[int, int]]:
        """Windows, if there are any, are families of one column each."""
        shapes = super().family_shapes(layer)
        return shapes if self.window is None else [(min(self.window, n), m) for n, m in shapes]

    def capturable(self, inputs: LayerInputs) -> bool:
        """Steps by the default descent, once c is known, that renew no moments."""
        state: WeightsState = inputs.state
        known = (state.gram, state.matrix, state.curvature, state.root)
        if inputs.record is not None or not self.descends or not all(isinstance(part, Tensor) for part in known):
            return False
        return tensor_descent.triton_kernels(inputs.grad, state.gram.shape[-1]) is not None

    def directions(self, inputs: Sequence[LayerInputs]) -> list[Direction]:
        """2 Ω where a weight flips, and zero elsewhere."""
        steps = [self.step.of(self, layer) for layer in inputs]
        self.solve([step for step in steps if step.moves and step.spins.numel()])
        return [step.direction() for step in steps]

    @property
    def descends(self) -> bool:
        """Whether all weights are searched from where they stand."""
        return self.window is None and isinstance(self.solver, Descent) and self.solver.warm

    def solve(self, moving: Sequence[Step]) -> None:
        """Set the spins of these steps."""
        if self.descends:
            for step in moving:
                step.descend(self.solver)
        else:
            parts = [step.windows(self.window) if self.window else step.families() for step in moving]
            answers = iter(solutions_of(self.solver, [family for part in parts for family in part]))
            for step, part in zip(moving, parts, strict=True):
                step.take(part, [next(answers) for _ in part])

    def most_flips(self, width: int) -> int:
        """Weights of a column that can flip in a step."""
        limit = self.solver.max_flips if isinstance(self.solver, Descent) else None
        return min(width if most is None else most for most in (width, self.window, limit))


def _first_curvature(inputs: LayerInputs, gains: Tensor, matrix: Tensor, wanted: float) -> Tensor:
    """The mean over columns of the c at which the `wanted` share of their spins gains by flipping alone.

    Where that is less than a spin per column, only `FIRST_FLIPS` times as many columns as are wanted gain.
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)[:, None]
    ratios = torch.where(diagonal > 0, gains / torch.where(diagonal > 0, diagonal, 1), 0)
    width = ratios.shape[-1]
    limits = ratios.kthvalue(min(width, max(1, round((1 - wanted) * width))), -1).values.clamp(min=0)
    if inputs.shards is not None:
        limits = inputs.shards.gather_units(limits.mT.contiguous(), len(inputs.layer.weight))[0]
    first = limits.mean()
    if (share := FIRST_FLIPS * wanted * width) < 1:
        first = torch.maximum(first, limits.flatten().quantile(1 - share))
    return torch.where(first > 0, first, 1)


def _rounded(mean: Tensor, step: Any) -> Tensor:
    """F in bfloat16, up or down at random, or small changes would get lost; in double precision as it is.

    The same numbers in every run, on every device, and for all output units, so that shards do as a whole layer does.
    """
    if mean.dtype != torch.float32:
        return mean
    place = torch.arange(1, mean[0].numel() + 1, device=mean.device).reshape(mean.shape[1:])
    mixed = place * 0x9E3779B1 + (step.long() if isinstance(step, Tensor) else step) * 0x85EBCA77
    mixed = ((mixed ^ (mixed >> 16)) & 0xFFFFFFFF) * 0x7FEB352D
    below = ((mixed >> 24) & 0xFFFF).int()  # the part of a float that bfloat16 does not have
    return ((mean.view(torch.int32) + below) & ~0xFFFF).view(torch.float32).bfloat16()


def _mean(layer: BinaryLayer, last: Tensor | None, new: Tensor, share: Any) -> Tensor:
    """The running mean with this share of the new value."""
    return new.clone() if last is None else lerp(_unrounded(layer, last, new), new, share)


def _unrounded(layer: BinaryLayer, kept: Tensor, new: Tensor) -> Tensor:
    """What is kept, in the precision of what it is to fit."""
    if kept.dtype == torch.bfloat16 and new.dtype == torch.float32:
        kept = kept.float()
    check_fits(layer, kept, new)
    return kept
