"""Annealing schedules, the spectrum of an annealer's Hamiltonian on the way to a QUBO, and its smallest gap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import minimize_scalar

from qpsbgd_qubo.ising import Ising
from qpsbgd_qubo.kernels import Array

MOST_SPINS = 10  # 1024 states

_EQUAL = 1e-6  # of the problem's spread: families are often made in single precision


class Schedule(NamedTuple):
    """A(s) and B(s) of the annealing Hamiltonian, s = t/T from 0 to 1, linear between the given points.

    H(s) = −A(s)/2 Σ Xᵢ + B(s)/2 (Σ hᵢ Zᵢ + Σ_{i<j} Jᵢⱼ Zᵢ Zⱼ)
    """

    unit: str  # unit of A and B, and so of all energies: "GHz" for chips; empty for plain numbers
    s: Array  # where A and B are given, rising from 0 to 1, shape (p,)
    transverse: Array  # a there, never rising, shape (p,)
    problem: Array  # b there, never falling, shape (p,)

    def at(self, s: Array | float) -> tuple[Array, Array]:
        """A and B at every s, in the shape of s."""
        transverse, problem = np.interp(s, self.s, self.transverse), np.interp(s, self.s, self.problem)
        return np.asarray(transverse), np.asarray(problem)


LINEAR = Schedule("", np.array([0.0, 1.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0]))  # a = 1 − s, B = s

_SYSTEM_5_4 = """
0.00 9.713438 0.2596733   0.02 9.35662 0.2695687   0.04 8.990035 0.2805351   0.06 8.612759 0.2927849
0.08 8.224136 0.3065456   0.10 7.822686 0.3222207   0.12 7.408058 0.3401438   0.14 6.979965 0.3607238
0.16 6.535362 0.3850194   0.18 6.075155 0.4136392   0.20 5.59762 0.4481318   0.22 5.103004 0.4900805
0.24 4.590621 0.5422612   0.26 4.062626 0.6079502   0.28 3.521853 0.692478   0.30 2.97486 0.8021034
0.32 2.432283 0.9458632   0.34 1.909961 1.132612   0.36 1.426966 1.366727   0.38 1.011572 1.648296
0.40 0.6793317 1.963112   0.42 0.4313265 2.291903   0.44 0.2605095 2.617785   0.46 0.1512407 2.930829
0.48 0.08544068 3.228456   0.50 0.04753455 3.512174   0.52 0.02553131 3.785073   0.54 0.01345395 4.04806
0.56 0.00689643 4.302553   0.58 0.00359748 4.548295   0.60 0.00186667 4.787261   0.65 0.00032893 5.358845
0.70 0.00005697 5.895997   0.75 0.00000951 6.403575   0.80 0.00000159 6.884371   0.90 0.00000004 7.776389
1.00 0.0 8.586335
"""

ADVANTAGE = Schedule("GHz", *np.array(_SYSTEM_5_4.split(), dtype=np.float64).reshape(-1, 3).T)
"""The schedule of a real chip, Advantage_system5.4 (Pegasus): 37 of the 1001 points of D-Wave's published file
09-1265A-E_Advantage_system5_4_annealing_schedule.csv, read from its copies in the GitHub repositories
JakaVodebPhysics/MinimalExampleAnalysisOfDomainConfigurations (3cbd51a) and marekrams/bias (402eb9e). At eight
other points of the file, the line between ours was off by less than 0.6 % up to s = 0.36, for A by less than 4 % at
s = 0.45 and 0.55."""


@dataclass(frozen=True)
class SpectralGap:
    """The gap between the ground level and the lowest level that does not end in a ground state."""

    smallest: float  # its smallest value during the anneal
    position: float  # s = t/T where it is smallest
    final: float  # its value at the end
    degeneracy: int  # d, the number of ground states of the problem
    unit: str  # unit of the gaps: that of the schedule, times the problem's own


def levels(ising: Ising, *, schedule: Schedule = LINEAR, points: int | Array = 101, count: int = 8) -> Array:
    """The lowest eigenvalues along the anneal, each as often as it occurs, shape (points, count).

        H(s) = −A(s)/2 Σ Xᵢ + B(s)/2 (Σ hᵢ Zᵢ + Σ_{i<j} Jᵢⱼ Zᵢ Zⱼ)

    D-Wave's convention; at most `MOST_SPINS` spins. `points` is a number of s from 0 to 1, or their values.
    """
    spectrum = _Spectrum(ising)
    return np.array([spectrum.lowest(*at, count) for at in zip(*schedule.at(_grid(points)), strict=True)])


def spectral_gap(
    problem: Ising | Sequence[Ising], *, schedule: Schedule = LINEAR, points: int | Array = 101
) -> SpectralGap:
    """The smallest gap of the anneal, searched on a grid and refined between its points.

        min over s of  E_d(s) − E_0(s),   d the number of ground states of the problem

    The d lowest levels end in ground states if levels are followed in their order. Several problems, such as a layer's
    columns, do not act on each other: the gap is the smallest of theirs at every s. Narrow crossings can be missed.
    """
    parts = [problem] if isinstance(problem, Ising) else list(problem)
    spectra = [_Spectrum(part) for part in parts]
    if any(spectrum.degeneracy == len(spectrum.energies) for spectrum in spectra):
        raise ValueError("all spin vectors have the same energy, so there is no gap")
    grid = _grid(points)

    def gap(s: float) -> float:
        transverse, weight = (float(value) for value in schedule.at(s))
        return min(spectrum.gap(transverse, weight) for spectrum in spectra)

    values = [gap(s) for s in grid]
    at = int(np.argmin(values))
    refined = minimize_scalar(gap, bounds=(grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]), method="bounded")
    smallest, position = min((values[at], float(grid[at])), (float(refined.fun), float(refined.x)))
    final = gap(1.0)
    return SpectralGap(smallest, position, final, math.prod(spectrum.degeneracy for spectrum in spectra), schedule.unit)


class _Spectrum:
    """The levels of a problem at given A and B, in the basis of all 2ⁿ spin vectors."""

    def __init__(self, ising: Ising) -> None:
        n = len(ising.fields)
        if ising.couplings.shape != (n, n) or not n:
            raise ValueError(f"couplings must have shape (n, n) = ({n}, {n}), n ≥ 1, got {ising.couplings.shape}")
        if not (np.isfinite(ising.fields).all() and np.isfinite(ising.couplings).all()):
            raise ValueError("fields and couplings must be finite, but hold NaN or infinite values")
        if n > MOST_SPINS:
            raise ValueError(f"spectra have up to {MOST_SPINS} spins, got {n}; use fewer inputs or columns")
        # Spin i is bit n − 1 − i of a state's number: the first spin changes least often.
        states = np.arange(2**n)
        spins = 1 - 2 * ((states[:, None] >> np.arange(n)[::-1]) & 1).astype(np.float64)
        self.energies: Array = spins @ ising.fields + ((spins @ np.triu(ising.couplings, 1)) * spins).sum(1)
        # Σ Xᵢ: 1 where two states differ in one spin.
        self._flips: Array = np.isin(states[:, None] ^ states, 1 << np.arange(n)).astype(np.float64)
        self.degeneracy = int((self.energies - self.energies.min() <= _EQUAL * np.ptp(self.energies)).sum())

    def lowest(self, transverse: float, weight: float, count: int) -> Array:
        if transverse == 0:
            return np.sort(self.energies)[:count] * weight / 2
        return np.linalg.eigvalsh(np.diag(self.energies) * weight / 2 - transverse / 2 * self._flips)[:count]

    def gap(self, transverse: float, weight: float) -> float:
        lowest = self.lowest(transverse, weight, self.degeneracy + 1)
        return float(lowest[-1] - lowest[0])


def direct_sum(parts: Sequence[Ising]) -> Ising:
    """Problems side by side as one: a layer of N neurons with n inputs is one problem of n · N spins."""
    return Ising(np.concatenate([part.fields for part in parts]), block_diag(*(part.couplings for part in parts)))


def in_range(ising: Ising, *, h_range: float = 4.0, j_range: float = 1.0) -> Ising:
    """The problem scaled to fill a chip's ranges: |h| ≤ h_range and |J| ≤ j_range, one of them reached."""
    fullest = max(np.abs(ising.fields).max() / h_range, np.abs(ising.couplings).max() / j_range)
    factor = 1 / fullest if fullest > 0 else 1.0
    return Ising(ising.fields * factor, ising.couplings * factor)


def _grid(points: int | Array) -> Array:
    return np.linspace(0, 1, points) if isinstance(points, int) else points
