"""Families on an annealer's chip: every column on a clique of its own, all columns of all layers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.qubo.ising import Ising
from qpsbgd.solvers.annealer.budget import Estimate, Shape, of_sheets, too_wide
from qpsbgd.solvers.annealer.chips import Chip, access_seconds
from qpsbgd.solvers.annealer.connected import ConnectedSolver, checked_flag, checked_number, shapes_of
from qpsbgd.solvers.annealer.packing import Sheet, embedded, pack, votes
from qpsbgd.solvers.annealer.reads import Reads, Samples
from qpsbgd.solvers.annealer.recordings import Recording
from qpsbgd.solvers.annealer.submissions import Submission
from qpsbgd.solvers.annealer.tiles import Tile, tiles_of
from qpsbgd.solvers.search.descent import improved, sign_start

Array = np.ndarray[Any, Any]

DECIDING = (
    "num_reads",
    "annealing_time",
    "chain_strength",
    "copies",
    "share_reads",
    "spin_reversals",
    "repair",
    "descent",
    "block",
    "seed",
)
"""The options that decide what is sent and what is made of the answer; a replay takes them from the recording."""


@dataclass(kw_only=True, eq=False)
class ChipSolver(ConnectedSolver):
    """Solves families on a chip; what the solvers 'dwave', 'virtual-qpu' and 'replay' share.

    Takes the options of `ConnectedSolver` and these.

    Args:
        num_reads: Anneals of a column on each of its tiles.
        annealing_time: Microseconds of an anneal; None leaves it to the chip.
        chain_strength: Coupling inside chains in units of the largest eigenvalue of a column's couplings: see
            `packing.Ising.strength`. On the virtual chip 0.2 to 0.4 are about equally good; more squeezes the problem
            into a part of the chip's ranges, less leaves the answer to the repair: `benchmarks/virtual_qpu.py`.
        copies: Most tiles of a column. Tiles that the step leaves free serve its columns again, each with a spin
            reversal of its own: more reads at no more time of the chip, but more to work through afterwards.
        share_reads: Share a column's reads out among its tiles instead: as many reads as without spare tiles, in less
            time of the chip.
        spin_reversals: Submissions among which the reads are shared out, each with new random spin reversals, which
            average out a chip's constant errors. Every one costs its programming time. 0 for no reversal at all.
        repair: What broken chains become: "majority" of their qubits, or what lowers the "energy" most.
        descent: Flip single spins after that, until no flip lowers the energy.
        block: Solve layers too wide for the chip in blocks of this many spins, see `solve_all`; None refuses them.
        cache: Folder for the chip's tiles; see `tiles.tiles_of`.
        seed: Of the spin reversals and the blocks. Reversals depend on the problem too, so that every step has others
            and yet the same problem is always sent in the same way.
    """

    num_reads: int = 50
    annealing_time: float | None = None
    chain_strength: float = 0.3
    copies: int = 16
    share_reads: bool = False
    spin_reversals: int = 1
    repair: str = "energy"
    descent: bool = True
    block: int | None = None
    cache: str | Path | None = None
    seed: int = 0
    _chip: Chip | None = field(default=None, init=False, repr=False)
    _tilings: dict[int, tuple[Tile, ...]] = field(default_factory=dict, init=False, repr=False)
    _plan: tuple[tuple[int, ...], list[Sheet]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_reads", 1), ("copies", 1), ("spin_reversals", 0), ("block", 2), ("seed", 0)):
            checked_number(self, name, least=least, whole=True, optional=name == "block")
        for name in ("annealing_time", "chain_strength"):
            checked_number(self, name, least=0, optional=name == "annealing_time")
        for name in ("share_reads", "descent"):
            checked_flag(self, name)
        if self.share_reads and self.copies == 1:
            raise ValueError("share_reads shares a column's reads out among its tiles: set copies, such as 16, too")
        if self.repair not in ("majority", "energy"):
            raise ValueError(f'repair must be "majority" or "energy", got {self.repair!r}')

    def solve_all(self, families: Sequence[QuboFamily]) -> list[Solution]:
        """The best read of every column of every family, from as few submissions as hold them all.

        A family that is too wide for the chip is solved in blocks, if `block` is given: from where descent leads,
        blocks of random spins are solved in turn, the others fixed, and changes that lower the energy are kept.

        Raises:
            BudgetSpent: The submissions would pass `max_qpu_seconds`; nothing was sent.
            ValueError: A family is wider than the chip's largest clique, and no `block` is given.
        """
        if not families:
            return []
        self._check_budget(shapes_of(families))
        wide = [index for index, family in enumerate(families) if not self._fits(family.num_spins)]
        with self._repeatable():
            found = {index: self._in_blocks(families[index]) for index in wide}
            fitting = [index for index in range(len(families)) if index not in found]
            if fitting:
                found |= zip(fitting, self._together([families[index] for index in fitting]), strict=True)
        return [found[index] for index in range(len(families))]

    def sample(self, family: QuboFamily) -> Samples:
        """All reads of every column, repaired as the options say, in the order of the submissions.

        Raises:
            BudgetSpent: The submissions would pass `max_qpu_seconds`; nothing was sent.
            ValueError: The family is wider than the chip's largest clique.
        """
        if not self._tiles(family.num_spins):
            raise too_wide(family.num_spins, self._on(), advice="only whole columns can be sampled")
        self._check_budget(shapes_of([family]))
        with self._repeatable():
            (reads,), used = self._read([family])
        found = reads.all(repair=self.repair, descent=self.descent)
        return Samples(found.spins, found.energies, used | found.stats)

    def estimate(self, shapes: Sequence[Shape], *, one_by_one: bool = False) -> Estimate:
        """What a step with layers of these shapes (inputs, columns) costs on the chip, by its own account of its times.

        Args:
            shapes: (n, m) of every layer.
            one_by_one: The paper's way, for comparison: every column is a submission of its own.
        """
        fitting = [n for n, m in shapes if self._fits(n) for _ in range(m)]
        sheets = self._cost_sheets(fitting, one_by_one=one_by_one)
        for n, m in shapes:
            if not self._fits(n):
                sheets += [
                    sheet
                    for part in self._parts(n)
                    for sheet in self._cost_sheets([len(part)] * m, one_by_one=one_by_one)
                ]
        return self._cost(sheets)

    def _cost_sheets(self, sizes: Sequence[int], *, one_by_one: bool) -> list[Sheet]:
        tilings = {n: self._tiles(n) for n in set(sizes)}
        if one_by_one:
            return [pack([n], tilings)[0] for n in sizes]
        return pack(sizes, tilings, copies=self.copies)

    def _cost(self, sheets: Sequence[Sheet]) -> Estimate:
        return of_sheets(
            sheets,
            sampler=self.sampler_in_use,
            reads=[self._reads_of(sheet) for sheet in sheets],
            annealing_time=self.annealing_time,
            spin_reversals=self.spin_reversals,
        )

    def _header(self, sampler: Any) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in DECIDING}, "chip": Chip.of(sampler).described()}

    def _forget(self) -> None:
        super()._forget()
        self._chip, self._tilings, self._plan = None, {}, None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_chip": None, "_tilings": {}, "_plan": None}

    def _on(self) -> Chip:
        """The chip; opens the connection."""
        if self._chip is None:
            self._chip = Chip.of(self.sampler_in_use)
        return self._chip

    def _fits(self, spins: int) -> bool:
        """Whether a column is on one tile; raises where it can be solved neither so nor in blocks."""
        if self._tiles(spins):
            return True
        if self.block is None:
            raise too_wide(spins, self._on())
        for size in {len(part) for part in self._parts(spins)}:
            if not self._tiles(size):
                raise too_wide(size, self._on(), what="block", advice="take a smaller `block`")
        return False

    def _parts(self, spins: int) -> tuple[torch.Tensor, ...]:
        """The blocks of a column that is too wide: random spins, as many in each, at most `block`."""
        assert self.block is not None
        order = torch.from_numpy(np.random.default_rng([self.seed, spins]).permutation(spins))
        return order.tensor_split(-(-spins // self.block))

    def _tiles(self, spins: int) -> tuple[Tile, ...]:
        if spins not in self._tilings:
            link, chip = self._link(), self._on()
            kept = link.tiles.get(spins) if isinstance(link, Recording) else None
            if kept is not None:
                tiles = tuple(Tile.of(chains, chip) for chains in kept)
            else:
                tiles = tiles_of(chip, spins, folder=None if self.cache is None else Path(self.cache).expanduser())
            if isinstance(link, Recording):
                link.keep_tiles(spins, [tile.chains() for tile in tiles])
            self._tilings[spins] = tiles
        return self._tilings[spins]

    def _sheets(self, sizes: tuple[int, ...]) -> list[Sheet]:
        """The plan for columns of these sizes, which are the same in every step of a run."""
        if self._plan is None or self._plan[0] != sizes:
            tilings = {size: self._tiles(size) for size in set(sizes)}
            self._plan = sizes, pack(sizes, tilings, copies=self.copies)
        return self._plan[1]

    def _together(self, families: Sequence[QuboFamily]) -> list[Solution]:
        reads, used = self._read(families)
        solutions = [each.best(repair=self.repair, descent=self.descent) for each in reads]
        return [Solution(found.spins, found.energies, found.proven_optimal, used | found.stats) for found in solutions]

    def _read(self, families: Sequence[QuboFamily]) -> tuple[list[Reads], dict[str, Any]]:
        """The reads of all families, and what they took of the chip."""
        reads = [Reads(family) for family in families]
        owners = [(each, column) for each in reads for column in range(each.family.num_columns)]
        sheets = self._sheets(tuple(each.family.num_spins for each, _ in owners))
        before = self.submissions, self.qpu_seconds
        content = reads[0].digest
        sent: list[tuple[Sheet, list[Array], Submission]] = []
        for sheet in sheets:
            columns = [owners[number][0].columns[owners[number][1]] for number in sheet.columns]
            for _ in range(max(1, self.spin_reversals)):
                generator = np.random.default_rng([self.seed, content, len(sent)])
                gauges = [self._gauge(generator, len(tile.lengths)) for tile in sheet.tiles]
                sent.append((sheet, gauges, self._problem(sheet, columns, gauges)))
        for (sheet, gauges, _), answer in zip(sent, self._ask([problem for *_, problem in sent]), strict=True):
            at = 0
            for number, tile, gauge in zip(sheet.columns, sheet.tiles, gauges, strict=True):
                part = answer.spins[:, at : at + len(tile.qubits)]
                at += len(tile.qubits)
                each, column = owners[number]
                each.add(column, votes(part, tile) * gauge, tile.lengths)
        used = {
            "solver": self.name,
            "chip": self._on().name,
            "submissions": self.submissions - before[0],
            "qpu_seconds": self.qpu_seconds - before[1],
        }
        return reads, used

    def _reads_of(self, sheet: Sheet) -> int:
        """Reads of each of a sheet's submissions: every column has `num_reads` in all, or on each of its tiles."""
        tiles = sheet.fewest_tiles if self.share_reads else 1
        reads = -(-self.num_reads // (max(1, self.spin_reversals) * tiles))
        self._check_range("num_reads_range", reads, "reads of a submission")
        if self.annealing_time is not None:
            self._check_range("annealing_time_range", self.annealing_time, "microseconds of an anneal")
        return reads

    def _check_range(self, name: str, value: float, what: str) -> None:
        """Raise before the chip would, where it tells a range."""
        bounds = self.sampler_in_use.properties.get(name)
        if bounds and not bounds[0] <= value <= bounds[1]:
            raise ValueError(f"the chip takes {bounds[0]:g} to {bounds[1]:g} {what}, but {value:g} were asked for")

    def _seconds_of(self, problem: Submission) -> float:
        return access_seconds(
            self.sampler_in_use,
            num_qubits=len(problem.qubits),
            num_reads=problem.parameters["num_reads"],
            annealing_time=self.annealing_time,
        )

    def _gauge(self, generator: np.random.Generator, spins: int) -> Array:
        if not self.spin_reversals:
            return np.ones(spins, dtype=np.int64)
        return 2 * generator.integers(0, 2, size=spins) - 1

    def _problem(self, sheet: Sheet, columns: Sequence[Ising], gauges: Sequence[Array]) -> Submission:
        chip = self._on()
        parts = [
            embedded(ising.turned(gauge), tile, chip, chain_strength=self.chain_strength)
            for ising, tile, gauge in zip(columns, sheet.tiles, gauges, strict=True)
        ]
        parameters: dict[str, Any] = {"num_reads": self._reads_of(sheet)}
        if self.annealing_time is not None:
            parameters["annealing_time"] = self.annealing_time
        fields, couplings = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Submission(sheet.qubits, fields, sheet.edges, couplings, parameters)

    def _in_blocks(self, family: QuboFamily) -> Solution:
        exact = family.without_offset().to("cpu", torch.float64)
        spins = improved(exact, sign_start(exact)).spins
        parts = self._parts(family.num_spins)
        sums = dict.fromkeys(("submissions", "qpu_seconds", "chain_break_fraction", "chain_length"), 0.0)
        longest, reads = 0, []
        for part in parts:
            rows = exact.quadratic[part]
            others = rows @ spins - rows[:, part] @ spins[part]
            block = QuboFamily.trusted(rows[:, part].contiguous(), exact.linear[part] + 2 * others, exact.offset)
            found = self._together([block])[0]
            better = found.energies < block.energies(spins[part])
            spins[part] = torch.where(better, found.spins, spins[part])
            sums = {name: total + found.stats[name] for name, total in sums.items()}
            longest = max(longest, found.stats["longest_chain"])
            reads.append(found.stats["reads"])
        stats: dict[str, Any] = {
            "solver": self.name,
            "chip": self._on().name,
            "blocks": len(parts),
            "submissions": int(sums["submissions"]),
            "qpu_seconds": sums["qpu_seconds"],
            "reads": min(reads),
            "chain_break_fraction": sums["chain_break_fraction"] / len(parts),
            "chain_length": sums["chain_length"] / len(parts),
            "longest_chain": longest,
        }
        return Solution.of(family, spins, **stats)
