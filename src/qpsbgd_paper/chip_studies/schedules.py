"""Annealing schedules: how the transverse field falls and the problem rises while an annealer works."""

from typing import NamedTuple

import numpy as np

from qpsbgd_qubo.kernels import Array


class Schedule(NamedTuple):
    """A(s) and B(s) of the annealing Hamiltonian, s = t/T from 0 to 1, linear between the given points.

        H(s) = −A(s)/2 Σ Xᵢ + B(s)/2 (Σ hᵢ Zᵢ + Σ_{i<j} Jᵢⱼ Zᵢ Zⱼ)

    Attributes:
        unit: Unit of A and B, and so of all energies: "GHz" for chips; empty for plain numbers.
        s: Where A and B are given, rising from 0 to 1, shape (p,).
        transverse: A there, never rising, shape (p,).
        problem: B there, never falling, shape (p,).
    """

    unit: str
    s: Array
    transverse: Array
    problem: Array

    def at(self, s: Array | float) -> tuple[Array, Array]:
        """A and B at every s, in the shape of s."""
        transverse, problem = np.interp(s, self.s, self.transverse), np.interp(s, self.s, self.problem)
        return np.asarray(transverse), np.asarray(problem)


LINEAR = Schedule("", np.array([0.0, 1.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0]))
"""A = 1 − s, B = s."""

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
