"""The spins projection, the paper's: projects onto ±1 by solving one QUBO per column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from qpsbgd.projections.polar import polar_factors
from qpsbgd.projections.protocol import (
    DERIVED,
    Capabilities,
    Direction,
    LayerInputs,
    Projection,
    zero_idle_units,
)
from qpsbgd.projections.solving import TRAINING, compare_with_sign_vector, solutions_of
from qpsbgd.projections.system import System, SystemProjection, SystemState, binary_size, invert, largest, unit_rms
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver, make_solver
from qpsbgd_qubo.options import AT_LEAST_ONE, POSITIVE, check_options
from qpsbgd_qubo.solvers.protocol import WarmState
from qpsbgd_qubo.solvers.search.warm_start import use_cold_start

_PREPARED = ("couplings", "reach")
"""What follows from the system alone in the state of a warm solver: computed again after a restart."""
_WARM = ("spins", "signs", "coupling_fields")  # where its search ended: saved

_BRANCHES = 8  # searches of layers that a GPU makes at a time; each branch has memory of its own


@dataclass(eq=False)
class SpinsState(SystemState):
    """With r of every vector, and a warm solver's state: where its search ended, and what it made of A."""

    shrinkage: Tensor | None = None
    spins: Tensor | None = None
    signs: Tensor | None = None
    coupling_fields: Tensor | None = None
    couplings: Tensor | None = field(default=None, metadata=DERIVED)
    reach: Tensor | None = field(default=None, metadata=DERIVED)


@dataclass(frozen=True)
class Spins(SystemProjection):
    """Projects onto ±1: the vectors closest to the ridge's solution in the metric A; with several bits, sums of them.

        gⱼ = argmin over {−1, +1}ⁿ of (g − κ Gⱼ/ρⱼ)ᵀ A (g − κ Gⱼ/ρⱼ),   G = A⁻¹ S̄

    This is Def. 1's least squares over ±1 (Prop. 2: a QUBO) for the system (A, S̄): a family with quadratic A and linear
    −2κ S̄ⱼ/ρⱼ. ρⱼ, the size of Gⱼ, is r times the root mean square of S̄ⱼ, with r = rms(G)/rms(S̄) of the layer when Q̄
    was last renewed. As κ → ∞ the answer is sign(S̄): BinaryConnect's signSGD with momentum.

    With target "polar", G is the polar factor of the mean gradient instead, and A G takes the place of S̄.

    With b bits the direction is Σₖ αₖ sₖ, divided by its root mean square: s₁ is solved for S̄, each further vector for
    the residual R = S̄ − A Σ α s, a family of the same size, with αₖ = sₖᵀR/(sₖᵀA sₖ) per column.

    Columns whose gradient is exactly zero in a step do not move in it, nor do the weights of an input that was zero in
    all of its rows.

    Args:
        solver: The name of a solver or a solver object; see `qpsbgd.solvers`. The default is `TRAINING`.
        kappa: κ.
        bits: Binary vectors per step.
        target: The direction that spins approximate, "ridge" or "polar"; "auto" is the network's default.
        delta: δ of A; with target "ridge" it acts through ρ alone, since a diagonal is constant over ±1.
        memory: Share of Q̄ that is kept at a renewal.
        refresh: Steps between renewals of Q̄.
    """

    name = "spins"
    capabilities = Capabilities(state=SpinsState, sharded={"gradient": 0, **dict.fromkeys(_WARM, 2)})

    solver: Any = field(default=TRAINING, kw_only=True)
    kappa: float = field(default=1.0, kw_only=True)
    bits: int = field(default=1, kw_only=True)
    target: Literal["auto", "ridge", "polar"] = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, kappa=POSITIVE, bits=AT_LEAST_ONE)
        if self.target not in ("auto", "ridge", "polar"):
            raise ValueError(f'target must be "auto", "ridge" or "polar", got {self.target!r}')
        object.__setattr__(self, "solver", make_solver(self.solver))

    @property
    def vectors(self) -> int:
        """`bits`."""
        return self.bits

    def capturable(self, inputs: LayerInputs) -> bool:
        """With a solver that never waits for the GPU, as for `Ridge` where there are new moments."""
        matrix = inputs.state.matrix
        if matrix is None or not (inputs.record is None or self.sure):
            return False
        return self.solver.asynchronous(inputs.grad, matrix.shape[-1])

    def with_network_default(self, default: Projection) -> Projection:
        """With the target that is the default of its network."""
        target: Literal["ridge", "polar"] = "polar" if default.name == "polar" else "ridge"
        return replace(self, target=target) if self.target == "auto" else self

    def solve(self, systems: Sequence[System]) -> list[Direction]:
        """The spins, or sums of `bits` of them; unless they are warm, all layers in one call of the solver per bit."""
        invert([system for system in systems if system.renewed or system.state.shrinkage is None])
        means = [zero_idle_units(system.state.gradient, system.grad) for system in systems]
        if self.target == "polar":
            places = zip(systems, means, strict=True)
            means = polar_factors([(system.layer, mean, system.shards) for system, mean in places])
        expansions = []
        for system, mean in zip(systems, means, strict=True):
            size = binary_size(mean)
            target = system.blocks.weights(mean / size)
            target = target @ system.matrix if self.target == "polar" else target
            expansions.append(_Expansion(system, target, size, kappa=self.kappa, bits=self.bits))
        if self.solver.warm:
            return _side_by_side([partial(expansion.warm_direction, self.solver) for expansion in expansions])
        for bit in range(self.bits):
            self._add_vectors(expansions, bit)
        return [expansion.direction() for expansion in expansions]

    def _add_vectors(self, expansions: Sequence[_Expansion], bit: int) -> None:
        """One more vector for every layer, by one call of the solver."""
        linears = [expansion.linear(bit) for expansion in expansions]
        pairs = list(zip(expansions, linears, strict=True))
        families = [family for expansion, linear in pairs for family in _families(expansion.system, linear)]
        answers = iter(solutions_of(self.solver, families))
        for expansion, linear in pairs:
            solutions = [next(answers) for _ in linear]  # by block
            expansion.add(linear, torch.stack([solution.spins.T for solution in solutions]), solutions=solutions)


class _Expansion:
    """The sum of `bits` binary vectors for a layer and the right-hand side size · `target`, by block."""

    def __init__(self, system: System, target: Tensor, size: Tensor, *, kappa: float, bits: int) -> None:
        self.system, self.kappa, self.bits, self.size = system, kappa, bits, size
        self.rest = target
        width = system.state.gram.shape[-1]
        self.keeps_spins = not use_cold_start(width, len(system.layer.weight) // system.layer.groups)
        self.total: Tensor | float = 0.0
        self.moving: Tensor  # (count, m, 1): whether a column has a gradient at all
        self.spins: list[Tensor] = []
        self.states: list[WarmState] = []
        self.linears: list[Tensor] = []
        self.solutions: list[list[Solution] | None] = []
        self.shrinkages: list[Tensor] = []

    def linear(self, bit: int) -> Tensor:
        """−2κ Rⱼ/ρⱼ; zero for columns of zero."""
        blocks, rest = self.system.blocks, self.rest
        scaled = rest / largest(rest)  # squares of small numbers would vanish
        # A column's size is that of the whole layer's column, which may be cut into several blocks.
        columns = scaled.reshape(blocks.groups, blocks.parts, blocks.outputs, blocks.width)
        sizes = torch.linalg.vector_norm(columns, dim=(1, 3), keepdim=True)
        moving = sizes > 0
        if bit == 0:
            self.moving = moving.expand(-1, blocks.parts, -1, -1).reshape(blocks.count, blocks.outputs, 1)
        shrinkage = self.system.state.shrinkage
        known = () if shrinkage is None else shrinkage
        if self.system.renewed or bit >= len(known):
            ratio = self._shrinkage(scaled, sizes, known[bit] if bit < len(known) else 1)
        else:
            ratio = known[bit]
        self.shrinkages.append(ratio)
        factors = -2 * self.kappa * blocks.inputs**0.5 / (ratio * torch.where(moving, sizes, 1))
        return columns.mul_(torch.where(moving, factors, 0)).reshape(rest.shape)

    def _shrinkage(self, scaled: Tensor, sizes: Tensor, otherwise: Tensor | float) -> Tensor:
        """The ratio r = rms(A⁻¹R)/rms(R) of the layer; `otherwise` for a batch without gradient."""
        solution = torch.linalg.vector_norm(scaled @ self.system.inverse)
        right, shards = torch.linalg.vector_norm(sizes), self.system.shards
        if shards is not None:
            norms = self.size.double() * largest(self.rest).double() * torch.stack([solution, right]).double()
            solution, right = shards.all_gather(norms).square().sum(0).sqrt().unbind()
        return torch.where(solution > 0, solution / right, otherwise).to(self.rest)

    def warm_direction(self, solver: Solver) -> Direction:
        """The direction, with all vectors by a solver that goes on from the last step's."""
        for bit in range(self.bits):
            linear = self.linear(bit)
            if linear.numel():
                state = solver.solve(self._state(solver, bit), linear.mT).state
            else:  # a shard without output units
                fields = linear if linear.is_cpu else None
                state = WarmState(self.system.matrix, spins=linear, signs=linear <= 0, coupling_fields=fields)
            self.states.append(state)
            self.add(linear, state.spins, coupling_fields=state.coupling_fields)
        return self.direction()

    def _state(self, solver: Solver, bit: int) -> WarmState:
        """What the solver knows of the system, and where the last step's search for this vector ended."""
        system, state, last = self.system, self.system.state, {}
        if self.keeps_spins and state.spins is not None and bit < len(state.spins):
            parts = {name: getattr(state, name) for name in _WARM}
            last = {name: part[bit] for name, part in parts.items() if part is not None}
        if system.renewed:
            last.pop("coupling_fields", None)
        if state.reach is None:
            prepared = solver.init(system.matrix)
            for name in _PREPARED:
                setattr(state, name, getattr(prepared, name))
        return WarmState(system.matrix, **{name: getattr(state, name) for name in _PREPARED}, **last)

    def add(
        self,
        linear: Tensor,
        spins: Tensor,
        *,
        solutions: list[Solution] | None = None,
        coupling_fields: Tensor | None = None,
    ) -> None:
        """One more vector, with the solver's answers and the spins' coupling fields where they are known."""
        self.linears.append(linear)
        self.spins.append(spins)
        self.solutions.append(solutions)
        if self.bits > 1:
            matrix = self.system.matrix
            diagonal = matrix.diagonal(dim1=-2, dim2=-1)[:, None]
            products = spins @ matrix if coupling_fields is None else coupling_fields / 2 + diagonal * spins
            sizes = (spins * products).sum(-1, keepdim=True)
            factors = (spins * self.rest).sum(-1, keepdim=True) / sizes
            self.total = self.total + factors * spins
            if len(self.spins) < self.bits:
                self.rest = self.rest - factors * products

    def direction(self) -> Direction:
        """The direction, and what to keep."""
        system, blocks = self.system, self.system.blocks
        sums = self.spins[0] if isinstance(self.total, float) else unit_rms(self.total, system.shards, self.size)
        # An input was zero in all rows of this step where the gradients of all its weights are.
        seen = blocks.weights(system.grad).any(1, keepdim=True)
        if system.shards is not None:
            seen = system.shards.all_gather(seen).any(0)
        if not (seen.is_cpu and bool(seen.all()) and bool(self.moving.all())):
            sums = sums * (seen & self.moving)
        system.state.shrinkage = torch.stack(self.shrinkages)
        system.state.inverse = None  # only needed while Q̄ is new
        for name in _WARM:
            parts = [getattr(state, name) for state in self.states] if self.keeps_spins else []
            kept = None  # of another solver's steps they would be out of date
            if parts and parts[0] is not None:
                kept = parts[0][None] if len(parts) == 1 else torch.stack(parts)  # one is not copied
            setattr(system.state, name, kept)
        return system.direction(blocks.rejoin(sums, system.grad), solutions=self.all_solutions, figures=self.figures)

    def all_solutions(self) -> list[Solution]:
        """The solver's answers, vector by vector and block by block."""
        return [solution for bit in range(self.bits) for solution in self._solutions_of(bit)]

    def figures(self) -> dict[str, float]:
        """The numbers for a `Monitor`, of the first vector."""
        families = list(_families(self.system, self.linears[0]))
        system = self.system
        return compare_with_sign_vector(families, self._solutions_of(0), blocks=system.blocks, like=system.grad)

    def _solutions_of(self, bit: int) -> list[Solution]:
        if (solutions := self.solutions[bit]) is not None:
            return solutions
        pairs = zip(_families(self.system, self.linears[bit]), self.spins[bit], strict=True)
        return [Solution.of(family, spins.T.clone(), solver="descent") for family, spins in pairs]


def _side_by_side(calls: Sequence[Callable[[], Direction]]) -> list[Direction]:
    """The results; a CUDA graph has parallel branches for the calls, since one search leaves most of a GPU idle."""
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return [call() for call in calls]
    current, answers = torch.cuda.current_stream(), []
    # There are few streams, given in turns: what one call leaves free must not be another's that runs beside it.
    streams = [torch.cuda.Stream() for _ in range(_BRANCHES + 1)]  # type: ignore[no-untyped-call]
    branches = [stream for stream in streams if stream != current][: min(_BRANCHES, len(calls))]
    for branch in branches:
        branch.wait_stream(current)
    for place, call in enumerate(calls):
        with torch.cuda.stream(branches[place % len(branches)]):
            answers.append(call())
    for branch in branches:
        current.wait_stream(branch)
    return answers


def _families(system: System, linear: Tensor) -> Iterator[QuboFamily]:
    """The family of every block; the constant of the square is left out."""
    for matrix, rows in zip(system.matrix, linear, strict=True):
        yield QuboFamily.trusted(matrix, rows.T.contiguous(), rows.new_zeros(len(rows)))
