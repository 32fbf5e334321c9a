"""Minor embeddings on an annealer's chip: how much of it they use, and where its qubits are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qpsbgd.solvers.annealer.chips import Chip
from qpsbgd.solvers.annealer.tiles import tiles_of

try:
    import dwave.graphs
except ImportError as error:
    raise ImportError("pictures of an annealer's chip need dwave-graphs: pip install 'qpsbgd[dwave]'") from error


@dataclass(frozen=True)
class Tiling:
    """How many cliques of one size a chip holds side by side, and at what cost.

    Attributes:
        tiles: Disjoint cliques, each for one column of a layer.
        mean_chain: Qubits per spin, on average.
        longest_chain: The most qubits that one spin takes.
        used: Share of the working qubits that the tiles take.
    """

    tiles: int
    mean_chain: float
    longest_chain: int
    used: float


def tiling(chip: Chip, spins: int) -> Tiling:
    """What `tiles_of` finds for columns of that many spins."""
    tiles = tiles_of(chip, spins)
    if not tiles:
        return Tiling(0, 0.0, 0, 0.0)
    lengths = np.concatenate([tile.lengths for tile in tiles])
    share = float(lengths.sum()) / len(chip.qubits)
    return Tiling(len(tiles), float(lengths.mean()), int(lengths.max()), share)


def places(chip: Chip) -> Mapping[int, tuple[float, float]]:
    """Where every working qubit is drawn in a picture of the chip whose longer side is 1.

    Raises:
        ValueError: The topology is neither Pegasus nor Zephyr.
    """
    if chip.topology not in ("pegasus", "zephyr"):
        raise ValueError(f'the topology must be "pegasus" or "zephyr", got {chip.topology!r}')
    make, layout = (getattr(dwave.graphs, f"{chip.topology}_{what}") for what in ("graph", "layout"))
    found = layout(make(*chip.shape))
    points = np.array([found[qubit] for qubit in chip.qubits])
    points -= points.min(0)
    points /= points.max()
    return {qubit: (float(x), float(y)) for qubit, (x, y) in zip(chip.qubits, points, strict=True)}
