"""Disjoint cliques on a chip, one per column of a layer: searched once per chip and size, kept on disk."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qpsbgd_qubo.annealers.chips import Chip
from qpsbgd_qubo.files.atomic import writing
from qpsbgd_qubo.files.cache import cache_folder
from qpsbgd_qubo.kernels import Array

_FORMAT = 1  # raise it when the search finds other tiles
_MOST_RESTARTS = 40
_NATIVE = 4  # Pegasus and Zephyr have cliques of up to 4 single qubits
_SCRIPT = Path(__file__).with_name("tile_search.py")
# By path, so that the child does not load our package.
_LAUNCH = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


@dataclass(frozen=True, eq=False)
class CliqueEmbedding:
    """A clique of n chains: every spin is a chain of coupled qubits, and every two chains are coupled.

    Positions count the tile's qubits, chain after chain.
    """

    qubits: Array  # the tile's qubits, shape (q,)
    spin: Array  # the spin of every qubit, shape (q,)
    starts: Array  # position of every chain's first qubit, shape (n,)
    lengths: Array  # qubits of every chain, shape (n,)
    chain_edges: Array  # positions of the couplers inside chains, shape (c, 2)
    cross_edges: Array  # positions of the couplers between chains, shape (k, 2)
    share: Array  # the part of its two spins' coupling that each of those carries, shape (k,)

    @classmethod
    def of(cls, chains: Sequence[Sequence[int]], chip: Chip) -> CliqueEmbedding:
        """The tile of these chains, shortest first."""
        chains = sorted(chains, key=len)
        qubits = [qubit for chain in chains for qubit in chain]
        at = {qubit: position for position, qubit in enumerate(qubits)}
        if len(at) < len(qubits) or not at.keys() <= chip.neighbours.keys() or not all(chains):
            raise ValueError("a tile's qubits must be distinct, on the chip, and at least one per chain")
        spin = np.repeat(np.arange(len(chains)), [len(chain) for chain in chains])
        edges = [(at[a], at[b]) for a in qubits for b in sorted(chip.neighbours[a] & at.keys()) if at[a] < at[b]]
        inner = [(a, b) for a, b in edges if spin[a] == spin[b]]
        cross = [(a, b) for a, b in edges if spin[a] != spin[b]]
        counts = Counter((spin[a], spin[b]) for a, b in cross)
        if len(counts) < len(chains) * (len(chains) - 1) // 2 or not _in_one_piece(chains, chip):
            raise ValueError("a tile's chains must be connected, and every two of them coupled")
        lengths = np.bincount(spin)
        return cls(
            qubits=np.array(qubits),
            spin=spin,
            starts=np.concatenate([[0], lengths.cumsum()[:-1]]),
            lengths=lengths,
            chain_edges=np.array(inner, dtype=np.int64).reshape(-1, 2),
            cross_edges=np.array(cross, dtype=np.int64).reshape(-1, 2),
            share=np.array([1 / counts[spin[a], spin[b]] for a, b in cross]),
        )

    def first(self, spins: int) -> CliqueEmbedding:
        """The clique of the first, shortest chains."""
        if spins == len(self.lengths):
            return self
        end = int(self.starts[spins])
        inner, cross = ((edges < end).all(1) for edges in (self.chain_edges, self.cross_edges))
        return CliqueEmbedding(
            qubits=self.qubits[:end],
            spin=self.spin[:end],
            starts=self.starts[:spins],
            lengths=self.lengths[:spins],
            chain_edges=self.chain_edges[inner],
            cross_edges=self.cross_edges[cross],
            share=self.share[cross],
        )

    def chains(self) -> list[list[int]]:
        """The qubits of every chain."""
        return [chain.tolist() for chain in np.split(self.qubits, self.starts[1:])]

    @functools.cached_property
    def members(self) -> frozenset[int]:
        """The tile's qubits as a set."""
        return frozenset(self.qubits.tolist())


def tiles_of(chip: Chip, spins: int, *, folder: Path | None = None) -> tuple[CliqueEmbedding, ...]:
    """Disjoint tiles of `spins` chains on the chip, in the order of a scan over it; empty where none fits.

    Found once per chip and size, which takes seconds, and kept in `folder`, by default in the cache.
    """
    if spins not in chip.tilings:
        path = (cache_folder() / "tiles" if folder is None else folder) / f"{chip.key}-v{_FORMAT}-n{spins}.json"
        chip.tilings[spins] = _load_or_search(chip, spins, path)
    return chip.tilings[spins]


def _load_or_search(chip: Chip, spins: int, path: Path) -> tuple[CliqueEmbedding, ...]:
    # Without such a file, or with a damaged one: search, and write a new one.
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        if kept := check_tiles(json.loads(path.read_text(encoding="utf-8")), chip, spins):
            return kept
    chains, whole = _single_qubits(chip, spins) if spins <= _NATIVE else [], True
    if not chains:
        chains, whole = _search_in_process(chip, spins)
    tiles = check_tiles(chains, chip, spins)
    if not (tiles and whole):
        return tiles  # a search that skipped steps may find more another time
    with contextlib.suppress(OSError):  # a read-only home folder only costs a search per process
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            file.write(json.dumps(chains, separators=(",", ":")).encode())
    return tiles


def largest_clique(chip: Chip) -> int:
    """The spins of the largest clique on the chip."""
    if "largest" not in chip.tilings:
        chip.tilings["largest"] = int(_search_in_process(chip, None)[0])
    return chip.tilings["largest"]


def _single_qubits(chip: Chip, spins: int) -> list[list[list[int]]]:
    """Disjoint cliques whose chains are single qubits: for every qubit in turn the first that is still free."""
    free = set(chip.qubits)

    def grow(clique: list[int]) -> list[int]:
        if len(clique) == spins:
            return clique
        common = frozenset.intersection(*(chip.neighbours[qubit] for qubit in clique)) & free
        candidates = sorted(qubit for qubit in common if qubit > clique[-1])
        return next(filter(None, (grow([*clique, qubit]) for qubit in candidates)), [])

    cliques = []
    for qubit in chip.qubits:
        clique = grow([qubit]) if qubit in free else []
        if clique:
            cliques.append([[member] for member in clique])
            free.difference_update(clique)
    return cliques


def _search_in_process(chip: Chip, spins: int | None) -> tuple[Any, bool]:
    """What `tile_search` finds in a separate process, without the steps that crash it; and whether none did."""
    if importlib.util.find_spec("minorminer") is None:
        raise ImportError("cliques on an annealer's chip need minorminer: pip install 'qpsbgd-qubo[dwave]'")
    skip: list[int] = []
    request = {
        "topology": chip.topology,
        "shape": chip.shape,
        "qubits": chip.qubits,
        "couplers": chip.couplers,
        "spins": spins,
        "skip": skip,
    }
    command = [sys.executable, "-c", _LAUNCH, str(_SCRIPT)]
    while True:
        done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        if done.returncode == 0:
            return json.loads(lines[-1]), not skip
        last = int(lines[-1]) if lines else None
        if last is None or last in skip or len(skip) == _MOST_RESTARTS:
            raise RuntimeError(
                f"the search for cliques of {spins or 'most'} spins on {chip} ended with status {done.returncode} "
                f"after {len(skip)} restarts; it wrote: {done.stderr[-500:].strip() or 'nothing'}"
            )
        skip.append(last)


def check_tiles(tilings: Any, chip: Chip, spins: int) -> tuple[CliqueEmbedding, ...]:
    """The tiles of these chains, which must be of that size and disjoint."""
    if not isinstance(tilings, list):
        raise ValueError("tiles must be a list")
    tiles = tuple(CliqueEmbedding.of(chains, chip) for chains in tilings)
    if any(len(tile.lengths) != spins for tile in tiles):
        raise ValueError(f"every tile must have {spins} chains for layers of {spins} inputs")
    if len(frozenset().union(*(tile.members for tile in tiles))) < sum(len(tile.qubits) for tile in tiles):
        raise ValueError("tiles must not share qubits")
    return tiles


def _in_one_piece(chains: Sequence[Sequence[int]], chip: Chip) -> bool:
    for chain in chains:
        left, border = set(chain[1:]), {chain[0]}
        while border:
            border = {qubit for a in border for qubit in chip.neighbours[a]} & left
            left -= border
        if left:
            return False
    return True
