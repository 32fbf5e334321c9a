"""How many submissions a step takes on a chip and how long the chip is busy with them, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers.annealer.chips import Chip, access_seconds
from qpsbgd.solvers.annealer.packing import Sheet, pack
from qpsbgd.solvers.annealer.tiles import largest_clique, tiles_of


class BudgetSpent(RuntimeError):
    """The next submissions would take more of the chip's time than is allowed; nothing was sent."""


@dataclass(frozen=True)
class Estimate:
    """What a step costs.

    Attributes:
        submissions: Problems sent to the chip.
        qpu_seconds: Time of the chip, as it is charged: programming, anneals and read-outs.
    """

    submissions: int
    qpu_seconds: float


def estimate(
    families: Iterable[QuboFamily | tuple[int, int]],
    *,
    sampler: Any,
    num_reads: int = 50,
    annealing_time: float | None = None,
    copies: int = 16,
    spin_reversals: int = 1,
    one_by_one: bool = False,
    cache: str | Path | None = None,
) -> Estimate:
    """What a step with these families costs on a chip, by the chip's own account of its times.

    Args:
        families: The layers of a step: families, or their shapes (n, m).
        sampler: The chip, as for the solver 'dwave'; nothing is sent to it.
        num_reads: As for the solver.
        annealing_time: As for the solver.
        copies: As for the solver.
        spin_reversals: As for the solver.
        one_by_one: The paper's way, for comparison: every column is a submission of its own.
        cache: As for the solver.
    """
    shapes = [
        (each.num_spins, each.num_columns) if isinstance(each, QuboFamily) else (int(each[0]), int(each[1]))
        for each in families
    ]
    chip = Chip.of(sampler)
    sizes = [n for n, m in shapes for _ in range(m)]
    tilings = {n: tiles_of(chip, n, folder=None if cache is None else Path(cache)) for n in set(sizes)}
    for n, tiles in tilings.items():
        if not tiles:
            raise too_wide(n, chip)
    sheets = [pack([n], tilings)[0] for n in sizes] if one_by_one else pack(sizes, tilings, copies=copies)
    return of_sheets(
        sheets, sampler=sampler, num_reads=num_reads, annealing_time=annealing_time, spin_reversals=spin_reversals
    )


def of_sheets(
    sheets: Sequence[Sheet], *, sampler: Any, num_reads: int, annealing_time: float | None, spin_reversals: int
) -> Estimate:
    """What these sheets cost."""
    times = max(1, spin_reversals)
    seconds = sum(
        access_seconds(
            sampler,
            num_qubits=len(sheet.qubits),
            num_reads=reads_each(num_reads, spin_reversals),
            annealing_time=annealing_time,
        )
        for sheet in sheets
    )
    return Estimate(times * len(sheets), times * seconds)


def reads_each(num_reads: int, spin_reversals: int) -> int:
    """Reads of a submission, when `num_reads` are shared out among the spin reversals."""
    return -(-num_reads // max(1, spin_reversals))


def too_wide(spins: int, chip: Chip) -> ValueError:
    """The error for a layer that no clique of the chip can hold."""
    return ValueError(
        f"a layer of {spins} inputs needs a clique of {spins} chains, but the largest on {chip} has "
        f"{largest_clique(chip)}; give `block` to solve wide layers block by block, or use a classical solver"
    )
