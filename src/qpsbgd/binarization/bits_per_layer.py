"""Numbers of bits per layer that lose least for a given mean number of bits per weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from qpsbgd.binarization.binarizing import binarize


def mixed_bits(
    model: nn.Module, batches: Iterable[Any], *, average: float = 2.0, most: int = 4, **options: Any
) -> dict[str, int]:
    """Bits per layer for `binarize(bits=…)`, with at most `average` bits per weight in the mean over all weights.

    All layers begin with one bit. The next bit goes where it saves most per weight, measured by the sum over layers of
    the share of output energy that is lost, as long as it fits; what error feedback loses stands for what the search
    will lose. The model is binarised `most` times by feedback, which is quick.

    Args:
        model: The trained model.
        batches: Calibration data, as for `binarize`.
        average: Bits per weight, at least 1.
        most: Bits of a layer, 1 to 8.
        **options: Those of `binarize` that say which layers and data count: `layers`, `first`, `last`, `rows`, …

    Raises:
        ValueError: `average` or `most` is out of range, or `binarize` refuses the model or data.
    """
    if not (isinstance(most, int) and not isinstance(most, bool) and 1 <= most <= 8):
        raise ValueError(f"most must be a whole number from 1 to 8, got {most!r}")
    if not 1 <= average <= most:
        raise ValueError(f"average must be from 1 to most={most} bits per weight, got {average!r}")
    data = list(batches)
    options = {**options, "solver": "feedback", "copy": True}
    tables = [binarize(model, data, bits=bits, **options).report.rows for bits in range(1, most + 1)]
    lost = {rows[0].name: [row.lost for row in rows] for rows in zip(*tables, strict=True)}
    sizes = {row.name: row.shape[0] * row.shape[1] for row in tables[0]}
    bits, left = dict.fromkeys(lost, 1), (average - 1) * sum(sizes.values())
    while open_ones := [name for name in bits if bits[name] < most and sizes[name] <= left]:
        best = max(open_ones, key=lambda name: (lost[name][bits[name] - 1] - lost[name][bits[name]]) / sizes[name])
        left -= sizes[best]
        bits[best] += 1
    return bits
