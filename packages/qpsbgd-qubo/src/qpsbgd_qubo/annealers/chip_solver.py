"""Families on an annealer's chip: every column on a clique of its own, all columns of all layers at once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qpsbgd_qubo.annealers.budget import Estimate, RecordingError, Shape
from qpsbgd_qubo.annealers.chips import Chip, access_seconds
from qpsbgd_qubo.annealers.packing import Job, pack
from qpsbgd_qubo.annealers.reads import Reads, Samples
from qpsbgd_qubo.annealers.recordings import Recording
from qpsbgd_qubo.annealers.service_solver import Owners, ServiceSolver
from qpsbgd_qubo.annealers.submissions import Answer
from qpsbgd_qubo.annealers.tiles import CliqueEmbedding, check_tiles, largest_clique, tiles_of
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.options import AT_LEAST_ONE, COUNT, FLAG, POSITIVE, POSITIVE_OR_NONE, SEED, check_options

Self = TypeVar("Self", bound="ChipSolver")


@dataclass(frozen=True, kw_only=True, eq=False)
class ChipSolver(ServiceSolver):
    """Solves families on a chip; what the solvers 'dwave', 'virtual-qpu' and 'replay' share.

    Takes the options of `ServiceSolver` and these.

    Args:
        num_reads: Anneals per column on each of its tiles.
        annealing_time: Microseconds per anneal; None leaves it to the chip.
        chain_strength: Coupling inside chains in units of the largest eigenvalue of a column's couplings: see
            `Ising.strength`. On the virtual chip 0.2 to 0.4 are about equally good; more squeezes the problem into a
            part of the chip's ranges, less leaves the answer to the repair: `benchmarks/solvers/virtual_qpu.py`.
        copies: Most tiles per column. Columns are repeated on spare tiles, each with its own spin
            reversal: more reads in the same QPU time, but more postprocessing.
        share_reads: Distribute a column's reads over its tiles instead: as many reads as without spare tiles, in less
            QPU time.
        spin_reversals: Submissions over which the reads are distributed, each with new random spin reversals, which
            average out a chip's constant errors. Each costs its programming time. 0 for no reversal at all.
        repair: How to repair broken chains: by the "majority" of their qubits, or by the lowest "energy".
        descent: Whether to flip single spins afterwards, until no flip lowers the energy.
        cache: Folder for the chip's tiles; see `tiles.tiles_of`.
        seed: Seed of the spin reversals. They also depend on the problem, so they differ from step to step, but the
            same problem is always sent in the same way.
    """

    num_reads: int = 50
    annealing_time: float | None = None
    chain_strength: float = 0.3
    copies: int = 16
    share_reads: bool = False
    spin_reversals: int = 1
    repair: str = "energy"
    descent: bool = True
    cache: str | Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, num_reads=AT_LEAST_ONE, annealing_time=POSITIVE_OR_NONE, chain_strength=POSITIVE)
        check_options(self, copies=AT_LEAST_ONE, share_reads=FLAG, spin_reversals=COUNT, descent=FLAG, seed=SEED)
        if self.share_reads and self.copies == 1:
            raise ValueError("share_reads distributes a column's reads over its tiles: set copies, such as 16, too")
        if self.repair not in ("majority", "energy"):
            raise ValueError(f'repair must be "majority" or "energy", got {self.repair!r}')

    def sample(self, family: QuboFamily) -> Samples:
        """All reads of every column, repaired as the options say, in the order of the submissions.

        Raises:
            BudgetSpent: The submissions would exceed `max_qpu_seconds`; nothing was sent.
            ValueError: The family is wider than the chip's largest clique.
        """
        return self.sample_all([family])[0]

    def sample_all(self, families: Sequence[QuboFamily]) -> list[Samples]:
        """The same of several families, which share submissions."""
        if not families:
            return []
        with self._session.exclusive():
            reads, used = self._read(families)
        samples = [each.all(repair=self.repair, descent=self.descent) for each in reads]
        return [replace(each, stats=used | each.stats) for each in samples]

    def with_parameters(self: Self, **changes: Any) -> Self:
        """The same solver with other options of its submissions, on the same connection and within the same budget."""
        return self._in_session(self._session, **changes)

    def estimate(self, shapes: Sequence[Shape], *, one_by_one: bool = False) -> Estimate:
        """What a step with layers of these shapes (inputs, columns) costs; `one_by_one` as in the paper."""
        columns = [n for n, m in shapes for _ in range(m)]
        groups = [[n] for n in columns] if one_by_one else [columns]
        jobs = [job for sizes in groups for job in self._jobs(tuple(sizes), copies=1 if one_by_one else self.copies)]
        times = max(1, self.spin_reversals)
        return Estimate(times * len(jobs), times * sum(job.seconds for job in jobs))

    def _header(self, sampler: Any) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in DECIDING}, "chip": Chip.of(sampler).description()}

    def _chip_in_use(self) -> Chip:
        sampler = self.connect()
        return self._session.once("chip", lambda: Chip.of(sampler))

    def _tiles(self, spins: int) -> tuple[CliqueEmbedding, ...]:
        """The chip's tiles for columns of this many spins, at least one."""
        tiles = self._session.once(("tiles", spins), lambda: self._find_tiles(spins))
        if not tiles:
            chip = self._chip_in_use()
            raise ValueError(
                f"a layer of {spins} inputs needs a clique of {spins} chains, but the largest on {chip} has "
                f"{largest_clique(chip)}; use a classical solver, or train with Spins(solver=…, block=32) or "
                "QuboDescent(…, window=16)"
            )
        return tiles

    def _find_tiles(self, spins: int) -> tuple[CliqueEmbedding, ...]:
        link, chip = self._link(), self._chip_in_use()
        kept = link.tiles.get(spins) if isinstance(link, Recording) else None
        if kept is not None:
            try:
                return check_tiles(kept, chip, spins)
            except (TypeError, ValueError) as error:
                raise RecordingError(f"{self.record} has tiles that do not fit its chip: {error}") from error
        tiles = tiles_of(chip, spins, folder=None if self.cache is None else Path(self.cache).expanduser())
        if isinstance(link, Recording):
            link.keep_tiles(spins, [tile.chains() for tile in tiles])
        return tiles

    def _tilings(self, sizes: set[int]) -> dict[int, tuple[CliqueEmbedding, ...]]:
        """The tiles for columns of every size; of many sizes, several share those of a larger one."""
        if len(sizes) <= OWN_TILES:
            return {size: self._tiles(size) for size in sizes}
        tilings = {}
        for size in sorted(sizes):
            larger = next((step for step in SHARED_TILES if step >= size), size)
            shared = self._session.once(("tiles", larger), partial(self._find_tiles, larger))
            tilings[size] = tuple(tile.first(size) for tile in shared) or self._tiles(size)
        return tilings

    def _jobs(self, sizes: tuple[int, ...], *, copies: int) -> list[Job]:
        """What to send for columns of these sizes, which are the same in every step of a run."""
        key = "jobs", sizes, copies, self.num_reads, self.annealing_time
        return self._session.once(key, lambda: self._new_jobs(sizes, copies))

    def _new_jobs(self, sizes: tuple[int, ...], copies: int) -> list[Job]:
        sampler = self.connect()
        jobs = []
        for sheet in pack(sizes, self._tilings(set(sizes)), copies=copies):
            # Every column has `num_reads` in all, or on each of its tiles.
            tiles = min(Counter(sheet.columns).values()) if self.share_reads else 1
            parameters: dict[str, Any] = {"num_reads": -(-self.num_reads // (max(1, self.spin_reversals) * tiles))}
            self._check_range("num_reads_range", parameters["num_reads"], "reads per submission")
            if self.annealing_time is not None:
                parameters["annealing_time"] = self.annealing_time
                self._check_range("annealing_time_range", self.annealing_time, "microseconds per anneal")
            jobs.append(Job(sheet, parameters, access_seconds(sampler, num_qubits=len(sheet.qubits), **parameters)))
        return jobs

    def _check_range(self, name: str, value: float, what: str) -> None:
        """Raise before the chip would, where its range is known."""
        bounds = self.connect().properties.get(name)
        if bounds and not bounds[0] <= value <= bounds[1]:
            raise ValueError(f"the chip takes {bounds[0]:g} to {bounds[1]:g} {what}, got {value:g}")

    def _fill(self, owners: Owners) -> list[Answer]:
        jobs = self._jobs(tuple(each.family.num_spins for each, _ in owners), copies=self.copies)
        jobs = [job for job in jobs for _ in range(max(1, self.spin_reversals))]
        seed = self.seed, owners[0][0].digest
        gauges = [
            job.gauges(np.random.default_rng([*seed, place]) if self.spin_reversals else None)
            for place, job in enumerate(jobs)
        ]
        columns = [each.columns[column] for each, column in owners]
        given: dict[str, Any] = {"chip": self._chip_in_use(), "chain_strength": self.chain_strength}
        answers = self._send([job.submission(columns, gauge, **given) for job, gauge in zip(jobs, gauges, strict=True)])
        for job, gauge, answer in zip(jobs, gauges, answers, strict=True):
            for number, votes, lengths in job.votes(answer, gauge):
                each, column = owners[number]
                each.add(column, votes, lengths)
        return answers

    def _best(self, reads: Reads) -> Solution:
        return reads.best(repair=self.repair, descent=self.descent)

    def _used(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return {**super()._used(answers), "chip": self._chip_in_use().name}


OWN_TILES = 8  # most sizes of columns in a step that have tiles of their own: the first search for each takes seconds
SHARED_TILES = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160)
"""Sizes of the tiles that columns of more sizes share."""

DECIDING = tuple(name for name in ChipSolver.__annotations__ if name != "cache")
"""The options that decide what is sent and what is made of the answer; a replay takes them from the recording."""
