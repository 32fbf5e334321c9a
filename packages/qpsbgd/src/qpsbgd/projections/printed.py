"""The printed projection: Algorithm 1 of the paper as it stands, one QUBO per column of every batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qpsbgd.binary_map import Scale, check_scale
from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.projections.blocks import Blocks
from qpsbgd.projections.protocol import Capabilities, Direction, LayerInputs, LayerState, Projection, check_fits
from qpsbgd.projections.solving import TRAINING, compare_with_sign_vector, solutions_of
from qpsbgd.qubo import QuboFamily, Solution, binary_map
from qpsbgd.solvers import make_solver
from qpsbgd_qubo.solvers.protocol import WarmState

_FAMILY = ("quadratic", "linear", "offset")


@dataclass(eq=False)
class PrintedState(LayerState):
    """The mean families by block, with momentum, and the last spins where the solver is warm."""

    quadratic: Any = None
    linear: Any = None
    offset: Any = None
    spins: Any = None


@dataclass(frozen=True)
class Printed(Projection):
    """G = argmin over {−1, +1}ⁿ of Σᵢ (vᵢⱼ − gᵀzᵢ)², the `binary_map` of the rows that the layer saw (Def. 1, Alg. 1).

    With momentum, which the paper does not have, families are averaged: Q̄ ← β Q̄ + (1−β) Q, S̄ ← β S̄ + (1−β) S.

    Rows are recorded by `backward` calls that reach the layer's weight, and dropped by `zero_grad`. The weights of a
    column without gradient do not move, nor do those of an input that was zero in every row.

    Args:
        solver: The name of a solver or a solver object; see `qpsbgd.solvers`. The default is `TRAINING`.
        scale: "literal" for the equation as printed, or κ of `binary_map`.
    """

    name = "printed"
    capabilities = Capabilities(momentum=0.0, state=PrintedState)

    solver: Any = field(default=TRAINING, kw_only=True)
    scale: Scale = field(default="literal", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale(self.scale)
        if self.scale != "literal":
            object.__setattr__(self, "scale", float(self.scale))
        object.__setattr__(self, "solver", make_solver(self.solver))

    @property
    def absolute(self) -> bool:
        """Whether the equation is taken as printed."""
        return self.scale == "literal"

    def check(self, layer: BinaryLayer) -> None:
        """Raise ValueError for a layer with scales per output, which the printed map does not know."""
        if layer.scaling is not None:
            raise ValueError(f'"printed" needs layers without scales, got {layer}; take "ridge" or scale=None')

    def directions(self, inputs: Sequence[LayerInputs]) -> list[Direction]:
        """The spins of all layers, in one call of the solver."""
        fresh = [self._families(layer_inputs) for layer_inputs in inputs]
        means = [_mean_families(*pair) for pair in zip(inputs, fresh, strict=True)]
        if self.solver.warm:
            solutions = [self._warm_solutions(layer, families) for layer, families in zip(inputs, means, strict=True)]
        else:
            answers = iter(solutions_of(self.solver, [family for families in means for family in families]))
            solutions = [[next(answers) for _ in families] for families in means]
        return [self._direction(*parts) for parts in zip(inputs, fresh, means, solutions, strict=True)]

    def _warm_solutions(self, inputs: LayerInputs, families: list[QuboFamily]) -> list[Solution]:
        """The answers of a warm solver, which begins with the spins of the last step where momentum keeps them."""
        starts = inputs.state.spins if inputs.momentum else None
        if starts is None:
            return [self.solver.solve(family) for family in families]
        solutions = []
        for family, spins in zip(families, starts, strict=True):
            state = self.solver.init(family.quadratic, WarmState(family.quadratic, spins=spins.T[None]))
            solutions.append(self.solver.solve(state, family.linear).with_offset(family.offset))
        return solutions

    def _families(self, inputs: LayerInputs) -> list[QuboFamily]:
        """The family of every block of a layer, from the rows of this step."""
        assert isinstance(inputs.record, LayerRecord)
        blocks = Blocks.of(inputs.layer, self.block)
        parts = zip(blocks.rows(inputs.record.inputs), blocks.columns(inputs.record.output_grads), strict=True)
        try:
            return [binary_map(*part, gain=inputs.layer.gain, scale=self.scale) for part in parts]
        except ValueError as error:
            raise ValueError(f"{inputs.layer}: {error}") from error

    def _direction(
        self, inputs: LayerInputs, fresh: list[QuboFamily], means: list[QuboFamily], solutions: list[Solution]
    ) -> Direction:
        blocks, like = Blocks.of(inputs.layer, self.block), inputs.grad
        parts = []
        for new, mean, solution in zip(fresh, means, solutions, strict=True):
            # The rows say nothing about a column without a linear term, for which every g has a twin −g, nor about an
            # input without any term in them: what the mean remembers would move their weights one way for ever.
            seen = new.quadratic.diagonal()[:, None] + new.linear.abs() > 0
            parts.append((solution.spins * (seen & new.linear.any(0) & mean.linear.any(0))).T)
        state = PrintedState()
        if inputs.momentum:
            families = {name: torch.stack([getattr(family, name) for family in means]) for name in _FAMILY}
            state = PrintedState(inputs.state.step + 1, **families)
            if self.solver.warm:
                state.spins = torch.stack([solution.spins for solution in solutions])
        return Direction(
            blocks.rejoin(torch.stack(parts), like),
            state,
            solutions=lambda: solutions,
            figures=lambda: compare_with_sign_vector(means, solutions, blocks=blocks, like=like),
        )


def _mean_families(inputs: LayerInputs, fresh: list[QuboFamily]) -> list[QuboFamily]:
    """Q̄ and S̄ per block, corrected for their start: the families that a step solves."""
    if not (inputs.momentum and inputs.state.step):
        return fresh
    check_fits(inputs.layer, inputs.state.linear[0], fresh[0].linear)
    beta = inputs.momentum
    rate = (1 - beta) / (1 - beta ** (inputs.state.step + 1))
    kept = zip(fresh, *(getattr(inputs.state, name) for name in _FAMILY), strict=True)
    pairs = ((old, [getattr(family, name) for name in _FAMILY]) for family, *old in kept)
    return [QuboFamily.trusted(*torch._foreach_lerp(old, new, rate)) for old, new in pairs]
