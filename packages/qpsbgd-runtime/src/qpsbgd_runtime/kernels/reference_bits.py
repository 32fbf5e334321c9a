"""Inference over bits and whole numbers in plain numpy.

Bits of a word: 1 for +1, 0 for −1. Words that are not full end in zeros, in inputs and weights alike. Of n products
with d differing signs the sum is n − 2d.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _packed(bits: Array) -> Array:
    """Booleans (…, n) as words (…, ⌈n / 64⌉)."""
    padded = np.zeros((*bits.shape[:-1], -(-bits.shape[-1] // 64) * 64), bool)
    padded[..., : bits.shape[-1]] = bits
    return np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)


def _differing(inputs: Array, weights: Array) -> Array:
    """Differing bits (…, units) of words (…, words) and weights (words, units)."""
    pairs = (inputs[..., None] ^ weights)[..., None].view(np.uint8)
    counts: Array = np.unpackbits(pairs, axis=-1).sum((-3, -1), dtype=np.int64)
    return counts


def _layers(rows: Array, sizes: Array, weights: Array, most: Array, flipped: Array) -> tuple[Array, Array]:
    """Words (B, …) after all layers, and the weights of the last."""
    words = _packed(rows >= 0)
    for layer, units in enumerate(sizes[1:]):
        size = words.shape[1] * units
        counts = _differing(words, weights[:size].reshape(-1, units))
        words = _packed(counts.astype(np.uint64) <= most[:units])
        words ^= flipped[: words.shape[1], layer]
        weights, most = weights[size:], most[units:]
    return words, weights


def dense_signs(rows: Array, sizes: Array, weights: Array, most: Array, flipped: Array, out: Array) -> bool:
    """Write the signs ±1 (B, m) of a chain of layers with thresholds; whether all inputs are finite.

    Args:
        rows: Inputs (B, n), float32, of which the signs count.
        sizes: n of the first layer, then the units of all layers, int64.
        weights: Words (⌈n / 64⌉, m) of all layers, one after the other, uint64.
        most: Differing signs up to which a unit gives +1, of all layers, one after the other, uint64.
        flipped: Words (⌈m / 64⌉, layers) of the units that give −1 instead, uint64.
        out: int8.
    """
    words, _ = _layers(rows, sizes, weights, most, flipped)
    bits = words[:, :, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    out[:] = 2 * bits.reshape(len(rows), 64 * words.shape[1])[:, : out.shape[1]].astype(np.int8) - 1
    return bool(np.isfinite(rows).all())


def dense_sums(
    rows: Array, sizes: Array, weights: Array, most: Array, flipped: Array, factor: Array, offset: Array, out: Array
) -> bool:
    """Like `dense_signs`, with a last layer that gives factor · sum + offset (B, m) instead of signs, in float32."""
    words, last = _layers(rows, sizes, weights, most, flipped)
    sums = sizes[-1] - 2 * _differing(words, last.reshape(words.shape[1], -1))
    out[:] = factor * sums.astype(np.float32) + offset
    return bool(np.isfinite(rows).all())


def bit_layer(
    images: Array,
    weights: Array,
    ones: Array,
    rows: Array,
    columns: Array,
    pool_rows: Array,
    pool_columns: Array,
    *rest: Any,
) -> None:
    """Write what a layer over images of signs gives: sums (N, …positions, m), pooled, or what lines make of them.

    Args:
        images: Signs ±1 (N, height, width, C), int8.
        weights: Words (groups, ⌈n / 64⌉, m / groups) for the n = window · C / groups inputs of a group, uint64.
        ones: How many weights of every pixel of the window are +1, (groups, window height, window width, m / groups),
            int32.
        rows: Index (positions, window height) of the image's row, or −1 where zeros are added, int64.
        columns: Likewise.
        pool_rows: Likewise, of the windows of sums whose largest is taken; without positions for no pool.
        pool_columns: Likewise.
        rest: As in `_finish`.
    """
    groups, per_group = weights.shape[0], images.shape[-1] // weights.shape[0]
    patches, inside = _patches(images, rows, columns, -1)
    sums = []
    for group in range(groups):
        part = patches[..., group * per_group : (group + 1) * per_group] >= 0
        counts = _differing(_packed(part.reshape(*part.shape[:3], -1)), weights[group])
        missing = np.einsum("ijyx,yxu->iju", (~inside).astype(np.int64), ones[group].astype(np.int64))
        sums.append(inside.sum((2, 3))[..., None] * per_group - 2 * (counts - missing))
    _finish(np.concatenate(sums, -1), pool_rows, pool_columns, *rest)


def byte_layer(
    images: Array,
    weights: Array,
    starts: Array,
    zero_point: int,
    rows: Array,
    columns: Array,
    pool_rows: Array,
    pool_columns: Array,
    *rest: Any,
) -> None:
    """The same for images of whole numbers of 8 bits.

    Args:
        images: (N, height, width, C), uint8.
        weights: Panels (⌈m / 16⌉, ⌈n / 4⌉, 16, 4) of ±1 for n = window · C inputs, 0 where there are none, int8.
        starts: What is added to the sums, (⌈m / 16⌉ · 16,), int32.
        zero_point: What stands for zeros that are added to images.
        rows: As in `bit_layer`, like all that follow.
        columns: Likewise.
        pool_rows: Likewise.
        pool_columns: Likewise.
        rest: Likewise.
    """
    patches, _ = _patches(images, rows, columns, zero_point)
    flat = patches.reshape(*patches.shape[:3], -1).astype(np.int64)
    matrix = weights.transpose(0, 2, 1, 3).reshape(len(starts), -1)[:, : flat.shape[-1]].astype(np.int64)
    _finish((flat @ matrix.T + starts)[..., : rest[-1].shape[-1]], pool_rows, pool_columns, *rest)


def _patches(images: Array, rows: Array, columns: Array, empty: int) -> tuple[Array, Array]:
    """Windows (N, …positions, …window, C) of images (N, …, C), and which pixels (…positions, …window) are inside."""
    down, across = rows[:, None, :, None], columns[None, :, None, :]
    inside = (down >= 0) & (across >= 0)
    return np.where(inside[None, ..., None], images[:, down, across], images.dtype.type(empty)), inside


def _finish(
    sums: Array,
    pool_rows: Array,
    pool_columns: Array,
    factors: Array,
    offsets: Array,
    shift: int,
    lows: Array,
    highs: Array,
    exceptions: Array,
    out: Array,
) -> None:
    """Write the sums, or ⌊(factor · sum + offset) / 2^shift⌋ within bounds, and other results for a few sums.

    Args:
        sums: (N, …positions, m).
        pool_rows: Of the pool.
        pool_columns: Of the pool.
        factors: (m,), int64, like offsets.
        offsets: Per unit.
        shift: 0 to 62.
        lows: The least result of every unit, (m,), int32.
        highs: The largest.
        exceptions: (E, 3) units, sums and results, int64.
        out: int32 for sums, or uint8, in which negative results stand as those of int8 do.
    """
    if pool_rows.size and pool_columns.size:
        sums = _patches(sums, pool_rows, pool_columns, np.iinfo(np.int32).min)[0].max((3, 4))
    if out.dtype == np.int32:
        out[:] = sums
        return
    out[:] = (factors * sums + offsets >> shift).clip(lows, highs).astype(np.uint8)
    for unit, at, result in exceptions:
        out[sums[..., unit] == at, unit] = result & 255
