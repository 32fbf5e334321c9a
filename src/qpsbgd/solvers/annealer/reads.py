"""A chip's reads of one family: collected tile by tile, repaired, and the best of every column picked."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.qubo import QuboFamily, Solution
from qpsbgd.solvers.annealer.packing import Ising, decided
from qpsbgd.solvers.descent import improved

Array = np.ndarray[Any, Any]


class Reads:
    """The reads of a family's columns.

    Args:
        family: Any device and type; the work is done on the CPU in double precision.
    """

    def __init__(self, family: QuboFamily) -> None:
        self.family = family
        self._exact = family.without_offset().to("cpu", torch.float64)
        self._quadratic: Array = self._exact.quadratic.numpy()
        self._linear: Array = self._exact.linear.numpy()
        couplings = 2 * self._quadratic
        np.fill_diagonal(couplings, 0)
        self.columns = [Ising(fields, couplings) for fields in np.ascontiguousarray(self._linear.T)]
        self._column: list[Array] = []
        self._votes: list[Array] = []
        self._lengths: list[Array] = []

    @property
    def digest(self) -> int:
        """A number that another family has not."""
        return zlib.crc32(self._linear.astype(np.float32).tobytes())

    def add(self, column: int, votes: Array, lengths: Array) -> None:
        """Add reads of a column: the votes of its chains (reads, n) and the chains' lengths (n,)."""
        self._column.append(np.full(len(votes), column))
        self._votes.append(votes)
        self._lengths.append(np.broadcast_to(lengths, votes.shape))

    def best(self, *, repair: str, descent: bool) -> Solution:
        """The read of least energy of every column, with what the chip did in `stats`."""
        column, votes, lengths = (np.concatenate(part) for part in (self._column, self._votes, self._lengths))
        linear = self._linear.T[column]
        spins = decided(votes, lengths, quadratic=self._quadratic, linear=linear, repair=repair)
        wide = QuboFamily.trusted(
            self._exact.quadratic, torch.from_numpy(linear.T.copy()), torch.zeros(len(column), dtype=torch.float64)
        )
        every = torch.from_numpy(spins.T.copy())
        energies = wide.energies(every)
        chip_best, chip_mean = energies[self._first(energies, column)].mean(), energies.mean()
        flips = 0
        if descent:
            lowered = improved(wide, every)
            every, energies, flips = lowered.spins, lowered.energies, lowered.stats["flips"]
        pick = self._first(energies, column)
        shift = float(self.family.offset.double().mean())
        stats: dict[str, Any] = {
            "reads": int(np.bincount(column).min()),
            "chain_break_fraction": float((np.abs(votes) < lengths).mean()),
            "chain_length": float(lengths.mean()),
            "longest_chain": int(lengths.max()),
            "chip_energy": float(chip_best) + shift,
            "read_energy": float(chip_mean) + shift,
        }
        if descent:
            stats["flips"] = flips
        return Solution.of(self.family, every[:, pick], **stats)

    def _first(self, energies: Tensor, column: Array) -> Tensor:
        """Which read of every column has the least energy."""
        order = np.lexsort((energies.numpy(), column))
        return torch.from_numpy(order[np.unique(column[order], return_index=True)[1]])
