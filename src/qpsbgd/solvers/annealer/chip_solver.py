"""Families on an annealer's chip: every column on a clique of its own, all columns of all layers at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers import Solver
from qpsbgd.solvers.annealer.budget import BudgetSpent, of_sheets, reads_each, too_wide
from qpsbgd.solvers.annealer.chips import Chip
from qpsbgd.solvers.annealer.packing import Ising, Sheet, embedded, pack, votes
from qpsbgd.solvers.annealer.reads import Reads
from qpsbgd.solvers.annealer.recordings import Recording
from qpsbgd.solvers.annealer.submissions import Answer, Link, Live, Problem
from qpsbgd.solvers.annealer.tiles import Tile, tiles_of
from qpsbgd.solvers.descent import improved, sign_start

Array = np.ndarray[Any, Any]

DECIDING = (
    "num_reads",
    "annealing_time",
    "chain_strength",
    "copies",
    "spin_reversals",
    "repair",
    "descent",
    "block",
    "seed",
)
"""The options that decide what is sent and what is made of the answer; a replay takes them from the recording."""


@dataclass(kw_only=True, eq=False)
class ChipSolver(Solver):
    """Solves families on a chip; what the solvers 'dwave', 'virtual-qpu' and 'replay' share.

    The chip is opened at the first family and kept open until `close`, or the end of a `with` block. A copied or
    unpickled solver opens it anew.

    Args:
        num_reads: Anneals of a column on each of its tiles.
        annealing_time: Microseconds of an anneal; None leaves it to the chip.
        chain_strength: Coupling inside chains in units of the field that a spin feels: see `packing.Ising.strength`.
            On a virtual Pegasus chip (layers of 16 and 32 inputs, 30 reads, no descent) the best read was optimal in
            88 to 100 % of the columns with 0.5, in 69 to 100 % with 0.25, where up to 16 % of the chains broke, and in
            75 to 94 % with 1, where the mean read was two to three times as far above the optimum.
        copies: Most tiles of a column. Tiles that the step leaves free serve its columns again, each with a spin
            reversal of its own: more reads at no more time of the chip, but more to work through afterwards.
        spin_reversals: Submissions among which the reads are shared out, each with new random spin reversals, which
            average out a chip's constant errors. Every one costs its programming time. 0 for no reversal at all.
        repair: What broken chains become: "majority" of their qubits, or what lowers the "energy" most.
        descent: Flip single spins after that, until no flip lowers the energy.
        block: Solve layers too wide for the chip in blocks of this many spins, see `solve_all`; None refuses them.
        max_qpu_seconds: Raise `BudgetSpent` before submissions that would take more of the chip's time than this,
            counted from the solver's making, or from that of the run which it resumes.
        retries: Of a submission that met a passing fault.
        record: File to write all problems and answers to; see `recordings.Recording`.
        cache: Folder for the chip's tiles; see `tiles.tiles_of`.
        seed: Of the spin reversals and the blocks. Reversals depend on the problem too, so that every step has others
            and yet the same problem is always sent in the same way.

    Attributes:
        submissions: Problems sent so far.
        qpu_seconds: Time of the chip that they took.
    """

    num_reads: int = 50
    annealing_time: float | None = None
    chain_strength: float = 0.5
    copies: int = 16
    spin_reversals: int = 1
    repair: str = "majority"
    descent: bool = True
    block: int | None = None
    max_qpu_seconds: float | None = None
    retries: int = 3
    record: str | Path | None = None
    cache: str | Path | None = None
    seed: int = 0
    submissions: int = field(default=0, init=False, repr=False)
    qpu_seconds: float = field(default=0.0, init=False, repr=False)
    _opened: _Opened | None = field(default=None, init=False, repr=False)
    _position: dict[str, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("num_reads", 1), ("copies", 1), ("spin_reversals", 0), ("retries", 0), ("block", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name in ("annealing_time", "chain_strength", "max_qpu_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if self.repair not in ("majority", "energy"):
            raise ValueError(f'repair must be "majority" or "energy", got {self.repair!r}')

    @property
    @abstractmethod
    def _name(self) -> str:
        """The solver's name in `SOLVERS`."""

    @abstractmethod
    def _connect(self) -> tuple[Any, bool]:
        """A structured sampler, and whether it is ours to close."""

    def solve(self, family: QuboFamily) -> Solution:
        """The best read of every column."""
        return self.solve_all([family])[0]

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
        opened = self._open()
        wide = [index for index, family in enumerate(families) if not self._tiles(family.num_spins)]
        if wide and self.block is None:
            raise too_wide(max(families[index].num_spins for index in wide), opened.chip)
        found = {index: self._in_blocks(families[index]) for index in wide}
        fitting = [index for index in range(len(families)) if index not in found]
        if fitting:
            found |= zip(fitting, self._together([families[index] for index in fitting]), strict=True)
        return [found[index] for index in range(len(families))]

    def close(self) -> None:
        """Close the connection; the next family opens it again."""
        if self._opened is not None:
            self._position = self._opened.link.state_dict()
            self._opened.link.close()
            self._opened = None

    def __enter__(self) -> ChipSolver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """What was sent so far, and the place in the recording."""
        link = self._position if self._opened is None else self._opened.link.state_dict()
        return {"submissions": self.submissions, "qpu_seconds": self.qpu_seconds, "link": link or {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        if state and set(state) != {"submissions", "qpu_seconds", "link"}:
            raise ValueError(f"{type(self).__name__} cannot go on from {sorted(state)}; was the solver changed?")
        self.submissions = int(state.get("submissions", 0))
        self.qpu_seconds = float(state.get("qpu_seconds", 0.0))
        self._position = dict(state.get("link", {}))
        if self._opened is not None:
            self._opened.link.load_state_dict(self._position)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._opened is not None:
            state["_position"] = self._opened.link.state_dict()
        state["_opened"] = None
        return state

    def _open(self) -> _Opened:
        if self._opened is None:
            sampler, owned = self._connect()
            self._opened = _Opened(sampler, Chip.of(sampler), self._link(sampler, owned))
            if self._position:
                self._opened.link.load_state_dict(self._position)
        return self._opened

    def _link(self, sampler: Any, owned: bool) -> Link:
        live = Live(sampler, retries=self.retries, owned=owned)
        if self.record is None:
            return live
        chip = Chip.of(sampler)
        header = {name: getattr(self, name) for name in DECIDING} | {"solver": self._name, "chip": chip.described()}
        return Recording(self.record, live, header=header)

    def _tiles(self, spins: int) -> tuple[Tile, ...]:
        opened = self._open()
        if spins not in opened.tilings:
            link = opened.link
            kept = link.tiles.get(spins) if isinstance(link, Recording) else None
            if kept is not None:
                tiles = tuple(Tile.of(chains, opened.chip) for chains in kept)
            else:
                tiles = tiles_of(opened.chip, spins, folder=None if self.cache is None else Path(self.cache))
            if isinstance(link, Recording):
                link.keep_tiles(spins, [tile.chains() for tile in tiles])
            opened.tilings[spins] = tiles
        return opened.tilings[spins]

    def _sheets(self, sizes: tuple[int, ...]) -> list[Sheet]:
        """The plan for columns of these sizes, which are the same in every step of a run."""
        opened = self._open()
        if opened.plan is None or opened.plan[0] != sizes:
            tilings = {size: self._tiles(size) for size in set(sizes)}
            opened.plan = sizes, pack(sizes, tilings, copies=self.copies)
        return opened.plan[1]

    def _together(self, families: Sequence[QuboFamily]) -> list[Solution]:
        reads = [Reads(family) for family in families]
        owners = [(each, column) for each in reads for column in range(each.family.num_columns)]
        sheets = self._sheets(tuple(each.family.num_spins for each, _ in owners))
        self._check_budget(sheets)
        before = self.submissions, self.qpu_seconds
        content = reads[0].digest
        sent: list[tuple[Sheet, list[Array], Problem]] = []
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
            "solver": self._name,
            "chip": self._open().chip.name,
            "submissions": self.submissions - before[0],
            "qpu_seconds": self.qpu_seconds - before[1],
        }
        solutions = [each.best(repair=self.repair, descent=self.descent) for each in reads]
        return [Solution(found.spins, found.energies, found.proven_optimal, used | found.stats) for found in solutions]

    def _gauge(self, generator: np.random.Generator, spins: int) -> Array:
        if not self.spin_reversals:
            return np.ones(spins, dtype=np.int64)
        return 2 * generator.integers(0, 2, size=spins) - 1

    def _problem(self, sheet: Sheet, columns: Sequence[Ising], gauges: Sequence[Array]) -> Problem:
        chip = self._open().chip
        parts = [
            embedded(ising.turned(gauge), tile, chip, chain_strength=self.chain_strength)
            for ising, tile, gauge in zip(columns, sheet.tiles, gauges, strict=True)
        ]
        parameters: dict[str, Any] = {"num_reads": reads_each(self.num_reads, self.spin_reversals)}
        if self.annealing_time is not None:
            parameters["annealing_time"] = self.annealing_time
        fields, couplings = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Problem(sheet.qubits, fields, sheet.edges, couplings, parameters)

    def _ask(self, problems: Sequence[Problem]) -> Iterator[Answer]:
        for answer in self._open().link.ask(problems):
            self.submissions += 1
            self.qpu_seconds += answer.seconds
            yield answer

    def _check_budget(self, sheets: Sequence[Sheet]) -> None:
        if self.max_qpu_seconds is None:
            return
        cost = of_sheets(
            sheets,
            sampler=self._open().sampler,
            num_reads=self.num_reads,
            annealing_time=self.annealing_time,
            spin_reversals=self.spin_reversals,
        )
        if self.qpu_seconds + cost.qpu_seconds > self.max_qpu_seconds:
            raise BudgetSpent(
                f"{cost.submissions} submissions of about {cost.qpu_seconds:.3g} s would pass max_qpu_seconds = "
                f"{self.max_qpu_seconds:g}, of which {self.qpu_seconds:.3g} are spent; nothing was sent or changed: "
                "save the run, and resume it with a larger max_qpu_seconds"
            )

    def _in_blocks(self, family: QuboFamily) -> Solution:
        assert self.block is not None
        exact = family.without_offset().to("cpu", torch.float64)
        spins = improved(exact, sign_start(exact)).spins
        n = family.num_spins
        order = torch.from_numpy(np.random.default_rng([self.seed, n]).permutation(n))
        parts = order.tensor_split(-(-n // self.block))
        used = {"submissions": 0, "qpu_seconds": 0.0}
        for part in parts:
            rows = exact.quadratic[part]
            others = rows @ spins - rows[:, part] @ spins[part]
            block = QuboFamily.trusted(rows[:, part].contiguous(), exact.linear[part] + 2 * others, exact.offset)
            if not self._tiles(len(part)):
                raise too_wide(len(part), self._open().chip)
            found = self._together([block])[0]
            better = found.energies < block.energies(spins[part])
            spins[part] = torch.where(better, found.spins, spins[part])
            used = {name: used[name] + found.stats[name] for name in used}
        stats: dict[str, Any] = {"solver": self._name, "chip": self._open().chip.name, "blocks": len(parts)}
        found = Solution.of(family, spins)
        return Solution(found.spins, found.energies, found.proven_optimal, stats | used)


@dataclass(eq=False)
class _Opened:
    """What is there as long as the connection is."""

    sampler: Any
    chip: Chip
    link: Link
    tilings: dict[int, tuple[Tile, ...]] = field(default_factory=dict)
    plan: tuple[tuple[int, ...], list[Sheet]] | None = None
