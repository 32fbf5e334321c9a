"""Columns on tiles: which column goes where in which submission, what the chip is sent, and the votes of its answer."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_qubo.annealers.chips import Chip
from qpsbgd_qubo.annealers.submissions import Answer, Submission
from qpsbgd_qubo.annealers.tiles import CliqueEmbedding
from qpsbgd_qubo.ising import Ising
from qpsbgd_qubo.kernels import Array


@dataclass(frozen=True, eq=False)
class ChipLayout:
    """What goes to the chip together: columns, each on a tile of its own."""

    columns: tuple[int, ...]  # the columns' numbers, one per tile; a column with several tiles comes several times
    tiles: tuple[CliqueEmbedding, ...]  # their tiles, which share no qubits

    @functools.cached_property
    def qubits(self) -> Array:
        """All qubits in use, tile after tile, shape (q,)."""
        return np.concatenate([tile.qubits for tile in self.tiles])

    @functools.cached_property
    def edges(self) -> Array:
        """All couplers in use as positions in `qubits`: of every tile first those inside chains, shape (e, 2)."""
        parts, at = [], 0
        for tile in self.tiles:
            parts += [tile.chain_edges + at, tile.cross_edges + at]
            at += len(tile.qubits)
        return np.concatenate(parts)


def pack(
    sizes: Sequence[int], tilings: Mapping[int, Sequence[CliqueEmbedding]], *, copies: int = 1
) -> list[ChipLayout]:
    """As few sheets as a greedy filling needs for columns of these sizes; every column is on exactly one of them.

    `tilings` holds disjoint tiles for every size, at least one each. Wide columns come first: they leave room for
    narrow ones, not the other way round. Tiles of different sizes come from different tilings of the chip and are used
    where they do not overlap. Tiles that are then still free serve the sheet's columns again, in turn, up to `copies`
    tiles per column.
    """
    waiting = sorted(range(len(sizes)), key=lambda column: -sizes[column])
    sheets = []
    while waiting:
        left = {size: list(reversed(tilings[size])) for size in set(sizes)}
        used: set[int] = set()
        placed: list[tuple[int, CliqueEmbedding]] = []
        later = []
        for column in waiting:
            tile = _take(left[sizes[column]], used)
            if tile is None:
                later.append(column)
            else:
                placed.append((column, tile))
        here = [column for column, _ in placed]
        for _ in range(copies - 1):
            again = [(column, _take(left[sizes[column]], used)) for column in here]
            placed += [(column, tile) for column, tile in again if tile is not None]
        columns, tiles = zip(*placed, strict=True)
        sheets.append(ChipLayout(columns, tiles))
        waiting = later
    return sheets


def _take(tiles: list[CliqueEmbedding], used: set[int]) -> CliqueEmbedding | None:
    """The next tile that is still free, removed from the list; its qubits are then in use."""
    while tiles:
        tile = tiles.pop()
        if used.isdisjoint(tile.members):
            used |= tile.members
            return tile
    return None


def embed(ising: Ising, tile: CliqueEmbedding, chip: Chip, *, chain_strength: float) -> tuple[Array, Array]:
    """Fields (q,) and couplings (c + k,) of a tile, as large as the chip's ranges allow.

    A spin's field is shared evenly by its chain, a coupling by all couplers between two chains. One factor scales the
    tile; of a group of couplers, all of a qubit's couplings of one sign count.
    """
    fields = (ising.fields / tile.lengths)[tile.spin]
    ends = tile.spin[tile.cross_edges]
    cross = ising.couplings[ends[:, 0], ends[:, 1]] * tile.share
    inner = np.full(len(tile.chain_edges), -ising.strength(chain_strength))
    couplings = np.concatenate([inner, cross])
    edges = np.concatenate([tile.chain_edges, tile.cross_edges])
    negative, positive = (
        np.bincount(edges.ravel(), weights=np.repeat(signed, 2), minlength=len(fields))
        for signed in (np.minimum(couplings, 0), np.maximum(couplings, 0))
    )
    factor = min(
        fit(fields, chip.h_range),
        fit(cross, chip.j_range),
        fit(inner, chip.chain_range),
        fit(negative + positive, chip.qubit_range),
        fit(negative, chip.group_range),
        fit(positive, chip.group_range),
    )
    # Slightly less than the full range: a value that rounds up past its end would be refused.
    factor = factor * (1 - 5e-7) if np.isfinite(factor) else 1.0
    return fields * factor, couplings * factor


def fit(values: Array, bounds: tuple[float, float]) -> float:
    """The largest factor that keeps the values in bounds; infinite if all are zero."""
    low, high = values.min(initial=0.0), values.max(initial=0.0)
    return min(bounds[0] / low if low < 0 else np.inf, bounds[1] / high if high > 0 else np.inf)


def chain_spins(votes: Array, lengths: Array, *, quadratic: Array, linear: Array, repair: str) -> Array:
    """Spins of every read from the votes of its chains, both (reads, n), and the chains' lengths, (n,) or (reads, n).

    With repair "majority" broken chains follow most of their qubits, and only ties are decided by the energy; with
    "energy" all broken chains are: one after the other, strongest field first.
    """
    spins = np.sign(votes).astype(np.float64)
    if repair == "energy":
        spins[np.abs(votes) < lengths] = 0
    couplings = 2 * quadratic
    np.fill_diagonal(couplings, 0)
    rows = np.flatnonzero((spins == 0).any(1))
    while len(rows):
        fields = linear[rows] + spins[rows] @ couplings
        strongest = np.where(spins[rows] == 0, np.abs(fields), -1.0).argmax(1)
        ours = fields[np.arange(len(rows)), strongest]
        spins[rows, strongest] = np.where(ours > 0, -1.0, 1.0)
        rows = rows[(spins[rows] == 0).any(1)]
    return spins


@dataclass(frozen=True, eq=False)
class Job:
    """A sheet, and how it is to be sent."""

    sheet: ChipLayout  # the columns and their tiles
    parameters: Mapping[str, Any]  # of a submission, such as `num_reads`
    seconds: float  # estimated QPU time of a submission

    def gauges(self, generator: np.random.Generator | None) -> list[Array]:
        """The spin reversal of every tile, ±1, each of shape (n,): a random one, or none without a generator."""
        sizes = [len(tile.lengths) for tile in self.sheet.tiles]
        if generator is None:
            return [np.ones(n, int) for n in sizes]
        return [2 * generator.integers(0, 2, size=n) - 1 for n in sizes]

    def submission(
        self, columns: Sequence[Ising], gauges: Sequence[Array], *, chip: Chip, chain_strength: float
    ) -> Submission:
        """What is sent for the columns that are on the sheet, after these spin reversals."""
        parts = [
            embed(columns[number].spin_reversed(gauge), tile, chip, chain_strength=chain_strength)
            for number, tile, gauge in zip(self.sheet.columns, self.sheet.tiles, gauges, strict=True)
        ]
        fields, couplings = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Submission(self.sheet.qubits, fields, self.sheet.edges, couplings, self.parameters, self.seconds)

    def votes(self, answer: Answer, gauges: Sequence[Array]) -> Iterator[tuple[int, Array, Array]]:
        """For every tile: its column's number, the votes of its chains (reads, n), and the chains' lengths (n,).

        A vote is the sum of a chain's qubits; a chain is unbroken where that is ± its length.
        """
        at = 0
        for number, tile, gauge in zip(self.sheet.columns, self.sheet.tiles, gauges, strict=True):
            spins = answer.spins[:, at : at + len(tile.qubits)].astype(np.int64)
            at += len(tile.qubits)
            yield number, np.add.reduceat(spins, tile.starts, axis=1) * gauge, tile.lengths
