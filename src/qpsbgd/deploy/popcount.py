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
_LARGEST = np.float32(np.finfo(np.float32).max)


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


_popcount: Any = intrinsic(_ctpop)


# Slices below, because numba checks an index that it computes for being negative, and then does not vectorise the loop.


@compiled(nogil=True)
def _pack(row: Array, words: Array) -> bool:
    """Write the signs of a row as words; returns whether all its numbers are finite."""
    for word in range((len(row) + 63) // 64):
        part = row[word * 64 : word * 64 + 64]
        bits = np.uint64(0)
        for k in range(len(part)):
            bits |= np.uint64(part[k] >= 0) << np.uint64(k)
        words[word] = bits
    unsound = 0
    for k in range(len(row)):
        unsound += not (abs(row[k]) <= _LARGEST)
    return unsound == 0


@compiled(nogil=True)
def _differing(inputs: Array, weights: Array, counts: Array) -> None:
    """Write how many signs differ, for every unit; weights are words (words, units), one row after the other."""
    counts[:] = 0
    units = len(counts)
    for word in range(len(weights) // units):
        row, bits = weights[word * units : (word + 1) * units], inputs[word]
        for unit in range(units):
            counts[unit] += _popcount(row[unit] ^ bits)


@compiled(nogil=True)
def _layers(inputs: Array, counts: Array, sizes: Array, weights: Array, most: Array, flipped: Array) -> int:
    """Run one row of words through layers with thresholds, in place; returns where the weights behind them begin."""
    begin, first = 0, 0
    for layer in range(len(sizes) - 1):
        units = sizes[layer + 1]
        end = begin + (sizes[layer] + 63) // 64 * units
        _differing(inputs, weights[begin:end], counts[:units])
        for word in range((units + 63) // 64):
            unit, last = word * 64, min(word * 64 + 64, units)
            found, limits = counts[unit:last], most[first + unit : first + last]
            bits = np.uint64(0)
            for k in range(len(found)):
                bits |= np.uint64(found[k] <= limits[k]) << np.uint64(k)
            inputs[word] = bits ^ flipped[word, layer]
        begin, first = end, first + units
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
        _differing(inputs, weights[begin:], counts[: out.shape[1]])
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
                        for dx in range(wide):
                            y, x = rows[i, dy], columns[j, dx]
                            if y >= 0 and x >= 0:
                                products += per_group
                                for word in range(width):
                                    row, bits = weights[group, dy, dx, word], packed[y, x, group, word]
                                    for unit in range(units):
                                        counts[unit] += _popcount(row[unit] ^ bits)
                    for unit in range(units):
                        out[image, group * units + unit, i, j] = products - 2 * np.int64(counts[unit])
