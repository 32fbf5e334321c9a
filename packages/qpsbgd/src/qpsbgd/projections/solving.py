"""Families handed to a solver, and its answers checked."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qpsbgd.projections.blocks import Blocks
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd_qubo.solvers.search.descent import Descent
from qpsbgd_qubo.solvers.search.landscape import sign_start

TRAINING = Descent(warm=True)
"""The solver of training: a local minimum near the sign vector is enough, and cheap."""


def solutions_of(solver: Solver, families: Sequence[QuboFamily]) -> list[Solution]:
    """The answers to all families, in one call; ValueError for those of other shapes or with other numbers than ±1."""
    asked = [family for family in families if family.num_columns]  # a shard may have no output units
    answers = iter(solver.solve_all(asked))
    solutions = [
        next(answers) if family.num_columns else Solution(family.linear, family.offset, family.offset > 0)
        for family in families
    ]
    shapes, returned = [tuple(f.linear.shape) for f in families], [tuple(s.spins.shape) for s in solutions]
    if returned != shapes:
        raise ValueError(f"{solver} must return spins of shapes {shapes}, got {returned}; see qpsbgd.testing")
    if not all(bool((solution.spins.abs() == 1).all()) for solution in solutions):
        raise ValueError(f"{solver} returned spins other than −1 and +1; see qpsbgd.testing")
    return solutions


def compare_with_sign_vector(
    families: Sequence[QuboFamily], solutions: Sequence[Solution], *, blocks: Blocks, like: Tensor
) -> dict[str, float]:
    """The solutions of blocks, compared with their sign vectors: energies and spins that differ; see `Monitor`."""
    gains, differ = [], []
    for family, solution in zip(families, solutions, strict=True):
        spins, signs = solution.spins, sign_start(family)
        # E(g) − E(h) = (g − h)ᵀ (Q (g + h) + s): more exact than two large energies, and zero for equal spins
        gain = (spins - signs) * (family.quadratic @ (spins + signs) + family.linear)
        gains.append(gain.sum(0).mean())
        differ.append((spins != signs).float().T)
    return {
        "energy": torch.stack([solution.energies.mean() for solution in solutions]).mean().item(),
        "energy_minus_sign": torch.stack(gains).mean().item(),
        "spins_off_sign": blocks.rejoin(torch.stack(differ), like).mean().item(),  # without what blocks are padded with
    }
