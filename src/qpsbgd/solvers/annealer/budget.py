"""How many submissions a step takes on a chip and how long the chip is busy with them, before anything is sent."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qpsbgd.solvers.annealer.chips import Chip, access_seconds
from qpsbgd.solvers.annealer.packing import Sheet
from qpsbgd.solvers.annealer.tiles import largest_clique

Shape = tuple[int, int]
"""Inputs and columns of a layer."""


class BudgetSpent(RuntimeError):
    """The next submissions would take more of the chip's time than is allowed; nothing was sent."""


@dataclass(frozen=True)
class Estimate:
    """What steps cost on a chip.

    Attributes:
        submissions: Problems sent to the chip.
        qpu_seconds: Time of the chip, as it is charged: programming, anneals and read-outs.
    """

    submissions: int
    qpu_seconds: float

    def __mul__(self, steps: int) -> Estimate:
        """What that many such steps cost."""
        if operator.index(steps) < 0:
            raise ValueError(f"steps must be at least 0, got {steps}")
        return Estimate(self.submissions * steps, self.qpu_seconds * steps)


def of_sheets(
    sheets: Sequence[Sheet], *, sampler: Any, reads: Sequence[int], annealing_time: float | None, spin_reversals: int
) -> Estimate:
    """What these sheets cost, with that many reads of each; every spin reversal is a submission of its own."""
    times = max(1, spin_reversals)
    seconds = sum(
        access_seconds(sampler, num_qubits=len(sheet.qubits), num_reads=count, annealing_time=annealing_time)
        for sheet, count in zip(sheets, reads, strict=True)
    )
    return Estimate(times * len(sheets), times * seconds)


def too_wide(spins: int, chip: Chip, *, what: str = "layer", advice: str = "") -> ValueError:
    """The error for a layer that no clique of the chip can hold."""
    advice = advice or "give `block` to solve wide layers block by block, or use a classical solver"
    return ValueError(
        f"a {what} of {spins} inputs needs a clique of {spins} chains, but the largest on {chip} has "
        f"{largest_clique(chip)}; {advice}"
    )
