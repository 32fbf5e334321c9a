"""Compiled loops over bits: 64 products ±1 · ±1 are one XOR, and their sum one population count.

Bits of a word: 1 for +1, 0 for −1. Words that are not full end in zeros, in inputs and weights alike, so that the XOR
of what is left over is zero. Of n products with d differing signs the sum is n − 2d.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import intrinsic

from qpsbgd.compiled import compiled
from qpsbgd.deploy.operations import Array

WORD = 64


def words_of(bits: Array) -> Array:
    """Booleans (…, n) as words (…, ⌈n / 64⌉)."""
    *rest, count = bits.shape
    padded = np.zeros((*rest, -(-count // WORD) * WORD), bool)
    padded[..., :count] = bits
    packed: Array = np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)
    return packed


def _ctpop(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return value(value), generate


_popcount = intrinsic(_ctpop)


@compiled(nogil=True)
def _pack(row: Array, words: Array) -> bool:
    """Write the signs of a row as words; returns whether all its numbers are finite."""
    sound = True
    for word in range((len(row) + 63) // 64):
        bits = np.uint64(0)
        for k in range(word * 64, min(word * 64 + 64, len(row))):
            bits |= np.uint64(row[k] >= 0) << np.uint64(k & 63)
            sound &= abs(row[k]) <= 3.4028234663852886e38
        words[word] = bits
    return sound


@compiled(nogil=True)
def _differing(inputs: Array, weights: Array, begin: int, width: int, units: int, counts: Array) -> int:
    """Write how many signs differ, for every unit; returns where the next layer's weights (words, units) begin."""
    counts[:units] = 0
    for word in range(width):
        bits = inputs[word]
        for unit in range(units):
            counts[unit] += _popcount(weights[begin + unit] ^ bits)
        begin += units
    return begin


@compiled(nogil=True)
def _layers(inputs: Array, counts: Array, sizes: Array, weights: Array, most: Array, flipped: Array) -> int:
    """Run one row of words through layers with thresholds, in place; returns where the weights behind them begin."""
    begin, first = 0, 0
    for layer in range(len(sizes) - 1):
        units = sizes[layer + 1]
        begin = _differing(inputs, weights, begin, (sizes[layer] + 63) // 64, units, counts)
        for word in range((units + 63) // 64):
            bits = np.uint64(0)
            for unit in range(word * 64, min(word * 64 + 64, units)):
                bits |= np.uint64(counts[unit] <= most[first + unit]) << np.uint64(unit & 63)
            inputs[word] = bits ^ flipped[word, layer]
        first += units
    return begin


@compiled(nogil=True)
def dense_signs(rows: Array, sizes: Array, weights: Array, most: Array, flipped: Array, out: Array) -> bool:
    """Write the signs ±1 (B, m) of a chain of layers with thresholds; returns whether all inputs are finite.

    Args:
        rows: Inputs (B, n), of which the signs count.
        sizes: n of the first layer, then the units of all layers.
        weights: Words (⌈n / 64⌉, m) of all layers, one after the other.
        most: Differing signs up to which a unit gives +1, of all layers, one after the other.
        flipped: Words (⌈m / 64⌉, layers) of the units that give −1 instead.
        out: int8.
    """
    inputs, counts = np.zeros(len(flipped), np.uint64), np.zeros(sizes.max(), np.uint64)
    sound = True
    for row in range(len(rows)):
        sound &= _pack(rows[row], inputs)
        _layers(inputs, counts, sizes, weights, most, flipped)
        for unit in range(out.shape[1]):
            bit = (inputs[unit >> 6] >> np.uint64(unit & 63)) & np.uint64(1)
            out[row, unit] = 1 if bit else -1
    return sound


@compiled(nogil=True)
def dense_sums(
    rows: Array, sizes: Array, weights: Array, most: Array, flipped: Array, factor: Array, offset: Array, out: Array
) -> bool:
    """Like `dense_signs`, with a last layer that gives factor · sum + offset (B, m) instead of signs, in float32."""
    inputs, counts = np.zeros(len(flipped), np.uint64), np.zeros(max(sizes.max(), out.shape[1]), np.uint64)
    sound, last = True, sizes[-1]
    for row in range(len(rows)):
        sound &= _pack(rows[row], inputs)
        begin = _layers(inputs, counts, sizes, weights, most, flipped)
        _differing(inputs, weights, begin, (last + 63) // 64, out.shape[1], counts)
        for unit in range(out.shape[1]):
            total = last - 2 * np.int64(counts[unit])
            out[row, unit] = factor[unit] * np.float32(total) + offset[unit]
    return sound


@compiled(nogil=True)
def convolution_sums(images: Array, weights: Array, rows: Array, columns: Array, out: Array) -> None:
    """Write the sums (N, m, …positions) of images of signs, as whole numbers.

    Args:
        images: Signs ±1 (N, C, height, width).
        weights: Words (groups, window height, window width, ⌈C / groups / 64⌉, m / groups).
        rows: Index (positions, window height) of the image's row, or −1 where zeros are added.
        columns: Likewise.
        out: int32.
    """
    groups, high, wide, width, units = weights.shape
    count, channels, height, length = images.shape
    per_group = channels // groups
    packed = np.zeros((height, length, groups, width), np.uint64)
    counts = np.zeros(units, np.uint64)
    for image in range(count):
        packed[:] = 0
        for channel in range(channels):
            group, place = channel // per_group, channel % per_group
            for y in range(height):
                for x in range(length):
                    bit = np.uint64(images[image, channel, y, x] > 0) << np.uint64(place & 63)
                    packed[y, x, group, place >> 6] |= bit
        for i in range(len(rows)):
            for j in range(len(columns)):
                for group in range(groups):
                    counts[:] = 0
                    products = 0
                    for dy in range(high):
                        y = rows[i, dy]
                        for dx in range(wide):
                            x = columns[j, dx]
                            if y < 0 or x < 0:
                                continue
                            products += per_group
                            for word in range(width):
                                bits = packed[y, x, group, word]
                                for unit in range(units):
                                    counts[unit] += _popcount(weights[group, dy, dx, word, unit] ^ bits)
                    for unit in range(units):
                        out[image, group * units + unit, i, j] = products - 2 * np.int64(counts[unit])
