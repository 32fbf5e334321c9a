"""A solver that several ranks use together: each solves a part of the columns, and all get all answers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from qpsbgd.nn import BinaryLayer
from qpsbgd.parallel.ranks import Ranks
from qpsbgd.projections import Projection
from qpsbgd.projections.solving import solutions_of
from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver

_Answers = list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]]
"""Spins as bits, energies and proofs of every family."""


class DistributedSolver(Solver):
    """Answers like `solver`, of which every rank asks its own for a part of the columns; all ranks get all answers.

    A solver that keeps state, such as a paid one, is called by rank 0 only. Where layers are `sharded`, families hold
    the columns of this rank's shards already, which it answers alone.
    """

    def __init__(self, solver: Solver, ranks: Ranks, *, sharded: bool = False) -> None:
        self._solver, self._ranks, self._sharded = solver, ranks, sharded
        self._size = 1 if _has_state(solver) else ranks.size

    def _solve(self, family: QuboFamily) -> Solution:
        return self.solve_all([family])[0]

    def solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """The answers to all columns, the same on all ranks; or to those of this rank's shards, if there are any."""
        if self._sharded:
            return self._ranks.synchronize(partial(self._solver.solve_all, families))
        part_families, rank = [], self._ranks.rank
        for family in families:  # parts as equal as can be; nothing on ranks that are not asked
            begin, end = (family.num_columns * number // self._size for number in (rank, rank + 1))
            linear, offset = family.linear[:, begin:end].contiguous(), family.offset[begin:end]
            part_families.append(QuboFamily.trusted(family.quadratic, linear, offset))
        stats, packed = self._ranks.synchronize(partial(self._answers, part_families))
        everyone: list[_Answers] = self._ranks.all_gather_object(packed)
        return [_merge_columns(family, parts, stats) for family, *parts in zip(families, *everyone, strict=True)]

    def _answers(self, families: Sequence[QuboFamily]) -> tuple[dict[str, Any], _Answers]:
        """This rank's solver's statistics, and its answers to families of which some may have no columns."""
        solutions = solutions_of(self._solver, families)
        packed = []
        for solution in solutions:
            tensors = solution.spins, solution.energies, solution.proven_optimal
            spins, energies, proven = (tensor.cpu().numpy() for tensor in tensors)
            packed.append((np.packbits(spins > 0, axis=0), energies, proven))
        return dict(solutions[0].stats), packed


def with_distributed_solver(projection: Projection, ranks: Ranks, *, sharded: bool) -> Projection:
    """The projection with a solver for several ranks; a warm one stays, because its last answers are known locally."""
    solver = projection.solver
    if solver is None or solver.warm:
        return projection
    return projection.with_solver(DistributedSolver(solver, ranks, sharded=sharded))


def check_serves_shards(projection: Projection, layer: BinaryLayer) -> None:
    """Raise ValueError if a projection needs more of a layer that FSDP has sharded than one rank has."""
    if not projection.capabilities.sharded:
        raise ValueError(
            f'projection "{projection.name}" needs whole layers, but FSDP has sharded {layer}; take "ridge", '
            '"polar" or "spins", or DistributedDataParallel'
        )
    if projection.solver is not None and _has_state(projection.solver):
        raise ValueError(
            f"{projection.solver} keeps a state, so that one rank alone may ask it, but FSDP has sharded {layer}; "
            "take another solver, or DistributedDataParallel"
        )


def _has_state(solver: Solver) -> bool:
    return type(solver).state_dict is not Solver.state_dict


def _merge_columns(family: QuboFamily, parts: _Answers, stats: dict[str, Any]) -> Solution:
    bits, energies, proven = (np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True))
    spins = torch.from_numpy(np.unpackbits(bits, axis=0, count=family.num_spins)).to(family.linear) * 2 - 1
    device = family.linear.device
    return Solution(spins, torch.from_numpy(energies).to(device), torch.from_numpy(proven).to(device), dict(stats))
