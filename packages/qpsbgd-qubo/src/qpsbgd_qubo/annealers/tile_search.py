"""Searches a chip for disjoint cliques, in a process of its own: minorminer 0.2.22 can crash or fill the memory.

It does for 5 to 8 spins on Zephyr graphs, sizes that are never requested, and now and then elsewhere: `tiles` then runs
this file again without the step that killed it. It imports nothing of ours.

stdin: JSON with `topology`, `shape`, `qubits`, `couplers`, `spins` (n, or null for the largest clique) and `skip`.
stdout: the number of every step before it is tried, and at the end the tiles (or the largest n) as JSON.
"""

import contextlib
import faulthandler
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

_PATIENCE = 120.0  # seconds per step; one that works takes at most about 1, more on a busy machine
_MOST_MEMORY = 4 << 30  # bytes; a search that works takes a tenth of that

Tiles = list[list[list[int]]]


class Search:
    """Cliques of `spins` chains on the free qubits of a chip, window by window."""

    def __init__(self, request: dict[str, Any]) -> None:
        graphs: Any = import_module("dwave.graphs")
        self.topology: str = request["topology"]
        make: Any = getattr(graphs, f"{self.topology}_graph")
        self._maps: Any = getattr(graphs, f"{self.topology}_sublattice_mappings")
        self.size: int = request["shape"][0]
        rest = request["shape"][1:]  # Zephyr's t is the same for a window and the chip
        self._make: Any = lambda size: make(size, *rest)
        whole = self._make(self.size)
        self._places: Any = getattr(graphs, f"{self.topology}_layout")(whole)
        self.graph = whole.subgraph(request["qubits"]).copy()
        missing = {frozenset(edge) for edge in self.graph.edges} - {frozenset(edge) for edge in request["couplers"]}
        self.graph.remove_edges_from([tuple(edge) for edge in missing])
        self._find: Any = import_module("minorminer.busclique").find_clique_embedding
        self.least = 2 * sum(rest) + 1  # for 2t spins and fewer on Zephyr, minorminer may not return
        self._skip = set(request["skip"])
        self._step = 0

    def clique(self, spins: int, graph: Any) -> list[list[int]]:
        """Chains of a clique in `graph`, shortest first; empty where there is none."""
        self._step += 1
        if self._step in self._skip:
            return []
        print(self._step, flush=True)  # noqa: T201  # so the parent knows where it ended
        faulthandler.dump_traceback_later(_PATIENCE, exit=True)
        embedding = self._find(max(spins, self.least), graph, seed=0, use_cache=False)
        faulthandler.cancel_dump_traceback_later()
        chains = sorted((sorted(map(int, chain)) for chain in embedding.values()), key=len)
        return chains[:spins]

    def largest(self) -> int:
        """The most spins of which the whole chip holds a clique."""
        low, high = (1 if self.graph.number_of_nodes() else 0), max(2, self.least)
        while high <= len(self.graph) and self.clique(high, self.graph):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.clique(middle, self.graph) else (low, middle)
        return low

    def tiles(self, spins: int) -> Tiles:
        """Disjoint cliques: as many as a scan over the chip with windows of growing size finds."""
        free = set(self.graph)
        tiles: Tiles = []
        least = self._least_size(spins)
        if least is None:
            return []
        smallest, need = least
        for size in range(smallest, self.size + 1):
            before = len(tiles)
            for window, places in self._windows(size):
                tiles += self._of_window(spins, window, places, free, need)
            # Larger windows find what broken qubits hid from smaller ones, until they find nothing new.
            if tiles and (len(tiles) == before or size >= smallest + 3):
                break
        return tiles

    def _least_size(self, spins: int) -> tuple[int, int] | None:
        """The smallest perfect lattice that holds the clique, and the number of qubits that it takes there."""
        for size in range(2, self.size + 1):
            chains = self.clique(spins, self._make(size))
            if chains:
                return size, sum(map(len, chains))
        return None

    def _windows(self, size: int) -> Iterator[tuple[Any, dict[int, int]]]:
        """Every place for a lattice of that size on the chip: the lattice, and the chip's qubit for each node."""
        window = self._make(size)
        nodes = list(window)
        places = [dict(zip(nodes, map(int, map(at, nodes)), strict=True)) for at in self._maps(window, self.graph)]
        if self.topology == "zephyr":
            # Row by row gives 90 tiles of 16 spins on a Z12, dwave-graphs' own order 82; on a P16 it is 88 against 93.
            places.sort(key=self._row)
        return ((window, place) for place in places)

    def _row(self, place: dict[int, int]) -> tuple[float, float]:
        spots = [self._places[qubit] for qubit in place.values()]
        return round(sum(y for _, y in spots) / len(spots), 6), sum(x for x, _ in spots) / len(spots)

    def _of_window(self, spins: int, window: Any, place: dict[int, int], free: set[int], need: int) -> Tiles:
        tiles: Tiles = []
        while True:
            kept = [node for node, qubit in place.items() if qubit in free]
            if len(kept) < need:
                return tiles
            part = window.subgraph(kept).copy()
            has = self.graph.has_edge
            part.remove_edges_from([(a, b) for a, b in part.edges if not has(place[a], place[b])])
            chains = [[place[node] for node in chain] for chain in self.clique(spins, part)]
            if not chains:
                return tiles
            tiles.append(chains)
            free.difference_update(qubit for chain in chains for qubit in chain)


def main() -> None:
    """Answer the request on stdin."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has such a limit
        resource = import_module("resource")
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    request = json.load(sys.stdin)
    search = Search(request)
    spins = request["spins"]
    print(json.dumps(search.largest() if spins is None else search.tiles(spins)))  # noqa: T201


if __name__ == "__main__":
    main()
