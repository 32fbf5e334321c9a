"""A chip's reads of one family: collected tile by tile, repaired, and the best of every column chosen."""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_qubo.annealers.packing import chain_spins
from qpsbgd_qubo.arrays import cast
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.ising import ising_columns
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.solvers.search.single_flips import local_search


@dataclass(frozen=True, eq=False)
class Samples:
    """All reads of a family, not only the best; a read's columns come from one anneal where they were sent together."""

    spins: Any  # −1 or +1, shape (reads, n, m), in the family's floating type
    energies: Any  # shape (reads, m)
    stats: dict[str, Any]  # what the chip did, as in a solution


class Reads:
    """The reads of a family's columns; the work is done in double precision."""

    def __init__(self, family: QuboFamily) -> None:
        self.family = family
        self._exact = family.without_offset().numpy().double()
        self._quadratic: Array = self._exact.quadratic
        self._linear: Array = self._exact.linear
        self.columns = ising_columns(self._exact)
        self._added: list[tuple[Array, Array, Array]] = []

    @property
    def digest(self) -> int:
        """A number that differs from family to family."""
        return zlib.crc32(self._linear.astype(np.float32).tobytes())

    def add(self, column: int, votes: Array, lengths: Array) -> None:
        """Add reads of a column: the votes of its chains (reads, n) and the chains' lengths (n,)."""
        self._added.append((np.full(len(votes), column), votes, np.broadcast_to(lengths, votes.shape)))

    def best(self, *, repair: str, descent: bool) -> Solution:
        """The read of lowest energy of every column, with what the chip did in `stats`."""
        column, wide, every, stats = self._repair(repair)
        energies = wide.energies(every)
        shift = float(self.family.numpy().double().offset.mean())
        stats["chip_energy"] = float(energies[self._first(energies, column)].mean()) + shift
        stats["read_energy"] = float(energies.mean()) + shift
        if descent:
            lowered = local_search(wide, every)
            every, energies, stats["flips"] = lowered.spins, lowered.energies, lowered.stats["flips"]
        return Solution.of(self.family, every[:, self._first(energies, column)], **stats)

    def all(self, *, repair: str, descent: bool) -> Samples:
        """Every read, in the order of the submissions; per column as many as the column with the fewest has."""
        column, wide, every, stats = self._repair(repair)
        if descent:
            every = local_search(wide, every).spins
        rows = np.stack([np.flatnonzero(column == number)[: stats["reads"]] for number in range(column.max() + 1)])
        spins = cast(np.ascontiguousarray(every[:, rows].transpose(2, 0, 1)), self.family.linear)
        return Samples(spins, self.family.energies(spins), stats)

    def _repair(self, repair: str) -> tuple[Array, QuboFamily, Array, dict[str, Any]]:
        """The column of every read, all reads as columns of one family, their spins (n, reads), and stats of chains."""
        column, votes, lengths = (np.concatenate(part) for part in zip(*self._added, strict=True))
        linear = self._linear.T[column]
        spins = chain_spins(votes, lengths, quadratic=self._quadratic, linear=linear, repair=repair)
        wide = QuboFamily.trusted(self._quadratic, linear.T.copy(), np.zeros(len(column)))
        stats: dict[str, Any] = {
            "reads": int(np.bincount(column).min()),
            "chain_break_fraction": float((np.abs(votes) < lengths).mean()),
            "chain_length": float(lengths.mean()),
            "longest_chain": int(lengths.max()),
        }
        return column, wide, spins.T.copy(), stats

    def _first(self, energies: Array, column: Array) -> Array:
        """Which read of every column has the lowest energy."""
        order = np.lexsort((energies, column))
        return order[np.unique(column[order], return_index=True)[1]]
