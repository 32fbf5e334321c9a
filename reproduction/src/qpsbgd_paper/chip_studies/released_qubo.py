"""The QUBO of the released (D) path: a column's weights, and for every row of the batch the bits of its sign.

Written from a description of github.com/mk2510/QPSBGD at commit 0889d1b, not from its code. There, thresholds of 8 to
15 inputs are at 8 instead of at half of them, and wider layers are refused.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np

from qpsbgd_paper.framework.runs import Result
from qpsbgd_qubo.annealers.chips import Chip

Qubo = dict[tuple[int, int], float]  # coefficients over bits, by pairs i ≤ j; those with i = j are linear

PENALTY = 50.0  # energy of every broken constraint

READS, PROGRAMMING, PER_READ = 100, 8.5e-3, 82e-6
"""Reads per submission, and seconds of QPU time: of programming, and per read; D-Wave's mock has these times."""

LAYERS: Mapping[str, tuple[int, int]] = {
    "MNIST, third layer": (4, 10),
    "MNIST, first layer": (16, 10),
    "Adult, 3 features, first layer": (3, 20),
    "Adult, 3 features, second layer": (5, 20),
    "Karate": (6, 20),
    "Cora, rows of the batch": (10, 9),
    "Cora, all nodes": (10, 2708),
}
"""Inputs and rows per batch of the paper's layers; in a graph convolution, rows are nodes."""


def size(inputs: int, rows: int) -> tuple[int, int]:
    """How many bits and couplings: n + B (n + a + 1), with a slack bits per row, and B (n + (n+a+1)(n+a)/2)."""
    row = inputs + inputs.bit_length()  # products, slack bits and the output
    return inputs + rows * row, rows * (inputs + row * (row - 1) // 2)


def released_qubo(rows: Sequence[Sequence[int]], targets: Sequence[float]) -> Qubo:
    """The QUBO over bits whose minimum has the weights w for which Σ (targetᵢ − yᵢ)² is smallest, yᵢ = [xᵢ·w ≥ 0].

    Args:
        rows: Inputs as bits 0 or 1, which stand for −1 and +1, (B, n).
        targets: Between 0 and 1, (B,).

    Bits are the weights, then per row its n products (equal to the weight where the input is 1, its opposite where it
    is 0), the slack bits 1, 2, 4, … and the output y, which together write the number of products that are 1, shifted
    so that the highest bit is y.
    """
    coefficients: Qubo = {}
    count, slack = len(rows[0]), len(rows[0]).bit_length() - 1
    shift = 2**slack - (count + 1) // 2
    for number, (row, target) in enumerate(zip(rows, targets, strict=True)):
        first = count + number * (count + slack + 1)
        bits = [*range(first, first + count + slack + 1)]
        for weight, (product, value) in enumerate(zip(bits, row, strict=False)):
            _square(coefficients, {weight: 1.0, product: -1.0 if value else 1.0}, 0.0 if value else -1.0)
        powers = [-(2.0**power) for power in range(slack + 1)]
        _square(coefficients, dict(zip(bits, [1.0] * count + powers, strict=True)), shift)
        _add(coefficients, bits[-1], bits[-1], 1 - 2 * target)
    return coefficients


def _square(coefficients: Qubo, factors: Mapping[int, float], constant: float) -> None:
    """Add the penalty of Σ factor · bit + constant = 0, without its constant part."""
    for bit, factor in factors.items():
        _add(coefficients, bit, bit, PENALTY * factor * (factor + 2 * constant))
    for (a, first), (b, second) in combinations(factors.items(), 2):
        _add(coefficients, a, b, PENALTY * 2 * first * second)


def _add(coefficients: Qubo, a: int, b: int, value: float) -> None:
    key = min(a, b), max(a, b)
    coefficients[key] = coefficients.get(key, 0.0) + value


def embedded(chip: Chip, *, inputs: int, rows: int, seconds: float) -> Result:
    """Bits and couplings of a column; qubits and longest chain of its minor embedding, None where none was found."""
    bits, couplings = size(inputs, rows)
    result: Result = {"bits": bits, "couplings": couplings, "qubits": None, "longest": None}
    if bits > len(chip.qubits):
        return result
    search: Any = import_module("minorminer").find_embedding
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, 2, (rows, inputs)).tolist()
    pairs = [key for key in released_qubo(drawn, [0.5] * rows) if key[0] != key[1]]
    chains = search(pairs, chip.couplers, random_seed=0, timeout=seconds, threads=1)
    if chains:
        lengths = [len(chain) for chain in chains.values()]
        result |= {"qubits": sum(lengths), "longest": max(lengths)}
    return result
