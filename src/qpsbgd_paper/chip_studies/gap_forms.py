"""Forms of a layer's QUBOs that differ in their spectral gap, and reads of each on a virtual chip."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.binary_map import binary_map
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.qubo import QuboFamily
from qpsbgd_qubo.annealers.packing import decided, embedded, pack, votes
from qpsbgd_qubo.annealers.tiles import tiles_of
from qpsbgd_qubo.ising import Ising, ising_columns

Array = np.ndarray[Any, Any]

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
BASE = "scale 1"
COLUMNS = 4
"""Of a layer, so that all fit on a small chip at once."""


@dataclass(frozen=True, eq=False)
class Sent:
    """A family in one of its forms, and how it is sent to the chip.

    Attributes:
        family: What is to be minimised.
        shrink: What a column is multiplied with after it was fitted into the chip's ranges, shape (m,).
        chain_strength: As in `ChipSolver`.
    """

    family: QuboFamily
    shrink: Array = field(default_factory=lambda: np.ones(COLUMNS))
    chain_strength: float = 0.3


def forms_of(records: Sequence[LayerRecord], gain: float, *, seed: int) -> dict[str, Sent]:
    """The last update's QUBOs in all forms, by name; `BASE` is what `QPSBGD` without momentum sends."""

    def mapped(record: LayerRecord, scale: Any = 1.0) -> QuboFamily:
        return binary_map(record.inputs.double(), record.output_grads.double(), gain=gain, scale=scale)

    last = records[-1]
    base = mapped(last)
    generator = torch.Generator().manual_seed(seed)
    found = {f"scale {scale:g}": Sent(mapped(last, scale)) for scale in SCALES}
    found["as printed"] = Sent(mapped(last, "literal"))
    weights = [0.1 * 0.9**age for age in range(len(records))][::-1]
    mean = sum((mapped(r) * w for r, w in zip(records[1:], weights[1:], strict=True)), mapped(records[0]) * weights[0])
    found["momentum 0.9"] = Sent(mean)
    diagonal = torch.rand(base.num_spins, generator=generator).double() * base.quadratic.abs().max() * 4
    found["with another diagonal"] = Sent(_changed(base, quadratic=base.quadratic + diagonal.diag()))
    for name in (BASE, "with another diagonal"):
        family = found[name].family
        linear = (family.linear + family.quadratic.sum(1, keepdim=True)) / 2
        bits = _changed(family, quadratic=family.quadratic / 4, linear=linear)
        found[f"{'' if name == BASE else name + ', '}taken over bits by mistake"] = Sent(bits)
    found["diagonal counted in the ranges"] = Sent(base, shrink=_diagonal_counted(base))
    found["one factor for all columns"] = Sent(base, shrink=_common_factor(base))
    literal = found["as printed"].family
    found["as printed, one factor for all columns"] = Sent(literal, shrink=_common_factor(literal))
    for strength in (0.1, 1.0):
        found[f"chain strength {strength:g}"] = Sent(base, chain_strength=strength)
    off = base.quadratic - base.quadratic.diag().diag()
    for share in (0.1, 0.5):
        kept = torch.where(off.abs() >= share * off.abs().max(), off, 0.0)
        found[f"couplings below {share:g} of the largest dropped"] = Sent(_changed(base, quadratic=kept))
    for share in (0.25, 1.0):
        pull = share * base.linear.abs().amax(0) * base.linear.sign()
        found[f"pulled {share:g} towards the sign vector"] = Sent(_changed(base, linear=base.linear + pull))
    return found


def sampled(sent: Sent, *, errors: tuple[float, float], reads: int, seed: int) -> Tensor:
    """Reads of every column on its own tile of a virtual chip, chains by majority, shape (reads, n, m)."""
    from qpsbgd_qubo.annealers.submissions import Submission

    sampler, chip = virtual_chip(errors, seed)
    columns, n = ising_columns(sent.family), sent.family.num_spins
    (sheet,) = pack([n] * len(columns), {n: tiles_of(chip, n)})
    generator = np.random.default_rng(seed)
    gauges = [2 * generator.integers(0, 2, size=n) - 1 for _ in columns]
    parts = [
        embedded(columns[at].spin_reversed(gauge), tile, chip, chain_strength=sent.chain_strength)
        for at, tile, gauge in zip(sheet.columns, sheet.tiles, gauges, strict=True)
    ]
    fields = np.concatenate([part[0] * sent.shrink[at] for part, at in zip(parts, sheet.columns, strict=True)])
    couplings = np.concatenate([part[1] * sent.shrink[at] for part, at in zip(parts, sheet.columns, strict=True)])
    problem = Submission(sheet.qubits, fields, sheet.edges, couplings, {})
    answer = sampler.sample(problem.bqm(), num_reads=reads, auto_scale=False)
    order = [list(answer.variables).index(qubit) for qubit in sheet.qubits.tolist()]
    spins = np.asarray(answer.record.sample)[:, order]
    found, at = np.empty((reads, n, len(columns))), 0
    for number, tile, gauge in zip(sheet.columns, sheet.tiles, gauges, strict=True):
        counted = votes(spins[:, at : at + len(tile.qubits)], tile) * gauge
        at += len(tile.qubits)
        linear = np.broadcast_to(columns[number].fields, counted.shape)
        found[:, :, number] = decided(
            counted, tile.lengths, quadratic=columns[number].couplings / 2, linear=linear, repair="majority"
        )
    return torch.from_numpy(found)


@cache
def virtual_chip(errors: tuple[float, float], seed: int) -> tuple[Any, Any]:
    """A small Pegasus chip with these errors of fields and couplings: the sampler, and what the solvers know of it."""
    from qpsbgd_qubo.annealers.chips import Chip
    from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip

    sampler = VirtualChip(size=4, h_error=errors[0], j_error=errors[1], seed=seed)
    return sampler, Chip.of(sampler)


def minima(family: QuboFamily) -> Tensor:
    """Every column's least energy, and a little more for rounding, shape (m,)."""
    n = family.num_spins
    bits = (torch.arange(2**n)[:, None] >> torch.arange(n)) & 1
    states = (1.0 - 2.0 * bits).to(family.linear)
    energies = ((states @ family.quadratic) * states).sum(1)[:, None] + states @ family.linear + family.offset
    least = energies.amin(0)
    return least + 1e-9 * (energies.amax(0) - least)


def _changed(family: QuboFamily, **parts: Tensor) -> QuboFamily:
    given = {"quadratic": family.quadratic, "linear": family.linear, "offset": family.offset, **parts}
    return QuboFamily(**given)


def shrunk(ising: Ising, factor: float) -> Ising:
    """The problem with all coefficients multiplied."""
    return Ising(ising.fields * factor, ising.couplings * factor)


def _fill(family: QuboFamily) -> Array:
    """What every column has to be divided by to fill the ranges, (m,)."""
    columns = ising_columns(family)
    return np.array([max(np.abs(c.fields).max() / 4, np.abs(c.couplings).max()) for c in columns])


def _common_factor(family: QuboFamily) -> Array:
    """Every column divided by what the largest needs, relative to what itself needs."""
    fill = _fill(family)
    return np.asarray(fill / fill.max())


def _diagonal_counted(family: QuboFamily) -> Array:
    """The diagonal taken for couplings when the ranges are looked at."""
    fill = _fill(family)
    return np.asarray(fill / np.maximum(fill, 2 * family.quadratic.diag().abs().max().item()))
