"""From columns to submissions and from answers to reads; nothing here talks to a service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_qubo.annealers.chips import Chip
from qpsbgd_qubo.annealers.packing import Sheet, embedded, votes
from qpsbgd_qubo.annealers.submissions import Answer, Submission
from qpsbgd_qubo.ising import Ising
from qpsbgd_qubo.kernels import Array


@dataclass(frozen=True, eq=False)
class Job:
    """A sheet, and how it is to be sent."""

    sheet: Sheet  # the columns and their tiles
    parameters: Mapping[str, Any]  # of a submission, such as `num_reads`
    seconds: float  # estimated QPU time of a submission


@dataclass(frozen=True, eq=False)
class Planned:
    """A submission, and what is needed to read its answer."""

    sheet: Sheet  # the columns and their tiles
    gauges: tuple[Array, ...]  # the spin reversal of every tile, ±1, each of shape (n,)
    submission: Submission  # what is sent


def plan(
    columns: Sequence[Ising],
    jobs: Sequence[Job],
    *,
    chip: Chip,
    chain_strength: float,
    spin_reversals: int,
    seed: tuple[int, ...],
) -> list[Planned]:
    """The submissions of all jobs: of each as many as there are spin reversals, or one without reversal."""
    planned: list[Planned] = []
    for job in jobs:
        sheet = job.sheet
        for _ in range(max(1, spin_reversals)):
            generator = np.random.default_rng([*seed, len(planned)])
            gauges = tuple(_gauge(len(tile.lengths), generator if spin_reversals else None) for tile in sheet.tiles)
            parts = [
                embedded(columns[number].spin_reversed(gauge), tile, chip, chain_strength=chain_strength)
                for number, tile, gauge in zip(sheet.columns, sheet.tiles, gauges, strict=True)
            ]
            fields, couplings = (np.concatenate(part) for part in zip(*parts, strict=True))
            submission = Submission(sheet.qubits, fields, sheet.edges, couplings, job.parameters, job.seconds)
            planned.append(Planned(sheet, gauges, submission))
    return planned


def decode(planned: Sequence[Planned], answers: Sequence[Answer]) -> Iterator[tuple[int, Array, Array]]:
    """Of every tile: its column's number, the votes of its chains (reads, n), and the chains' lengths (n,)."""
    for part, answer in zip(planned, answers, strict=True):
        at = 0
        for number, tile, gauge in zip(part.sheet.columns, part.sheet.tiles, part.gauges, strict=True):
            spins = answer.spins[:, at : at + len(tile.qubits)]
            at += len(tile.qubits)
            yield number, votes(spins, tile) * gauge, tile.lengths


def _gauge(spins: int, generator: np.random.Generator | None) -> Array:
    """Random signs, or none."""
    return np.ones(spins, dtype=np.int64) if generator is None else 2 * generator.integers(0, 2, size=spins) - 1
