"""The C code of layers with real inputs, written so that it is fast at -O2 without vector instructions.

Weights ±1 are looked up: eight inputs have 256 sums with signs, which are computed once for all units, and a byte of
weights picks one. That is one addition per eight weights, and weights stay one bit each. Convolutions with few
channels or real weights multiply, row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qpsbgd.deploy.operations import Array, Convolution, Dense, Weights

_MANY_LOOKUPS = 48
"""Uses of a table from which 256 sums of eight inputs pay, rather than 16 of four."""
_FEW_CHANNELS = 4
"""Channels of a group below which a convolution multiplies."""


@dataclass(frozen=True)
class Tables:
    """Sums with signs of the inputs that share a word of weights.

    Attributes:
        word: Bits of a word, and inputs of a block.
        share: Inputs of a table, 4 or 8.
    """

    word: int
    share: int

    @classmethod
    def best(cls, word: int, *, uses: int) -> Tables:
        """For tables that are used so often."""
        return cls(word, 8 if uses >= _MANY_LOOKUPS else 4)

    @property
    def entries(self) -> int:
        """Sums of one table."""
        return int(2**self.share)

    @property
    def numbers(self) -> int:
        """Sums of all tables."""
        return self.word // self.share * self.entries

    def helpers(self, inputs: int) -> dict[str, str]:
        """The functions that `calls` for so many inputs calls, by name, in the order in which they need each other."""
        found = {"signed_sums": _SIGNED_SUMS}
        if self.share == 8:
            found["fill_bytes"] = _FILL_BYTES
        else:
            found["fill_nibbles"] = _FILL_NIBBLES
        for count in self._counts(inputs):
            found[self._look_up(count)] = self._function(count)
        return found

    def _counts(self, inputs: int) -> list[int]:
        """Inputs of the blocks, one for all full ones."""
        return [self.word] * (inputs >= self.word) + [inputs % self.word] * (inputs % self.word > 0)

    def _look_up(self, count: int) -> str:
        return f"look_up_{-(-count // self.share)}_{'bytes' if self.share == 8 else 'nibbles'}"

    def _function(self, count: int) -> str:
        terms = []
        for table in range(-(-count // self.share)):
            bits = f"w >> {table * self.share} & {self.entries - 1}" if table else f"w & {self.entries - 1}"
            terms.append(f"t[{table * self.entries} + ({bits})]" if table else f"t[{bits}]")
        while len(terms) > 1:  # in pairs, which wait less for each other
            pairs = [terms[k : k + 2] for k in range(0, len(terms), 2)]
            terms = [f"({pair[0]} + {pair[1]})" if len(pair) == 2 else pair[0] for pair in pairs]
        return _LOOK_UP.format(name=self._look_up(count), sum=terms[0])

    def calls(self, inputs: int, *, source: str, stride: int, use: str) -> list[str]:
        """Statements that go through all inputs, block by block.

        Args:
            inputs: How many.
            source: The place of the first one.
            stride: From one to the next.
            use: Statements that use the tables of block `block`, with LOOK_UP for the function.
        """
        fill = "fill_bytes" if self.share == 8 else "fill_nibbles"
        full, rest = divmod(inputs, self.word)
        lines = []
        for count, begin, end in ((self.word, 0, full), (rest, full, full + 1)):
            if not count or begin == end:
                continue
            place = f"{source} + block * {self.word * stride}"
            lines += [
                f"for (int32_t block = {begin}; block < {end}; block++) {{",
                f"{fill}({place}, {stride}, {count}, scratch);",
                *use.replace("LOOK_UP", self._look_up(count)).split("\n"),
                "}",
            ]
        return lines


def blocks_of(signs: Array, word: int) -> Array:
    """Booleans (…, n, after) as (…, ⌈n / word⌉, after, word), False where there is nothing."""
    *before, count, after = signs.shape
    blocks = -(-count // word)
    padded = np.zeros((*before, blocks * word, after), bool)
    padded[..., :count, :] = signs
    return padded.reshape(*before, blocks, word, after).swapaxes(-1, -2)
