"""The random numbers of all kernels, in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np

PLACES, LANES = 4096, 16  # entries of the table of draws, and chains that share one
HOPELESS = 9.02  # above the largest draw, log 8192


class Random:
    """xorshift64*; a state is never 0."""

    def __init__(self, state: int) -> None:
        self._state = state or 1

    def next(self, bits: int) -> int:
        """The upper `bits` of the next 64."""
        state = self._state
        state ^= state >> 12
        state ^= state << 25 & 2**64 - 1
        self._state = state = state ^ state >> 27
        return (state * 2685821657736338717 & 2**64 - 1) >> 64 - bits


def _draws() -> np.ndarray[Any, Any]:
    table = -np.log((np.arange(PLACES) + 0.5) / PLACES).astype(np.float32)
    random = Random(1)
    for place in range(PLACES - 1, 0, -1):
        other = random.next(31) % (place + 1)
        table[place], table[other] = table[other], table[place]
    return np.concatenate([table, table[:LANES]])


DRAWS = _draws()
"""Exponential variates −log u in random order; sixteen in a row from a random place on are the draws of one step."""


def accepts(gain: Any, temperature: Any, random: Random) -> bool:
    """Whether Metropolis makes a move that lowers the energy by `gain`; draws nothing where no draw is large enough."""
    return bool(gain > -temperature * HOPELESS) and bool(gain + temperature * DRAWS[random.next(12)] > 0)
