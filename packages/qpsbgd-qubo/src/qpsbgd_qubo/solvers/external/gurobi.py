"""Gurobi as a solver: proven optima by branch and bound, one column after the other."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import thread_count
from qpsbgd_qubo.options import NOT_NEGATIVE, SECONDS, Number, check_options
from qpsbgd_qubo.solvers import Solver
from qpsbgd_qubo.solvers.deadline import deadline
from qpsbgd_qubo.solvers.exact.sphere_decoder import least_shift
from qpsbgd_qubo.solvers.search.landscape import sign_start

try:
    import gurobipy
    from gurobipy import GRB
except ImportError as error:
    raise ImportError("solver 'gurobi' needs gurobipy: pip install 'qpsbgd-qubo[gurobi]'") from error

SIZE_LIMIT = 200  # variables that the licence in the PyPI package allows with a quadratic objective

ROUNDING = 1e-9
"""Gap between energy and bound, relative to the larger of couplings and energy, below which it counts as closed."""

SMALL, FEW = 2e-6, 0.01
"""Share of the largest coefficient below which Gurobi's tolerances may hide one, and share of such coefficients up to
which proofs are believed: from a ratio of 1e6 on, some proofs of penalties next to costs were wrong by a cost."""

_HOW_TO_GET_A_LICENCE = (
    "academic licences are free at https://www.gurobi.com/academia (grbgetkey puts gurobi.lic into your home folder, "
    "or GRB_LICENSE_FILE names it)"
)
_WITHOUT_LICENCE = (GRB.Error.NO_LICENSE, GRB.Error.NETWORK, GRB.Error.CLOUD, GRB.Error.JOB_REJECTED)


@dataclass(frozen=True)
class Gurobi(Solver):
    """Branch and bound on the positive semidefinite form; proves every column unless time or gap stops it earlier.

    The diagonal of Q is shifted so that the least eigenvalue is 0, which changes energies by a constant only:
    with a zero diagonal it took 4 to 15 times as long at 24 spins. Answers under a time limit depend on the machine.
    It runs on as many threads as the kernels.

    A proof holds to within Gurobi's own tolerance, 1e-6 of the largest coefficient. None is claimed where more than one
    coefficient in a hundred is below 2e-6 of the largest, such as costs next to large penalties.

    Args:
        time_limit: Seconds per family, shared out evenly among the columns that are left; None for no limit.
        mip_gap: Stop a column when its energy is within this share of the proven bound. Only a gap of 0 gives proofs.
        seed: Seed of Gurobi's own random choices.
    """

    time_limit: float | None = None
    mip_gap: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, time_limit=SECONDS, mip_gap=NOT_NEGATIVE)
        check_options(self, seed=Number(whole=True, least=0, most=2_000_000_000))  # Gurobi's own bound

    @classmethod
    def variants(cls) -> dict[str, str]:
        """Whether Gurobi finds a licence here."""
        try:
            with _licence_errors(), gurobipy.Env(params={"OutputFlag": 0}):
                return {"": ""}
        except RuntimeError as error:
            return {"": str(error)}

    def _solve(self, family: QuboFamily) -> Solution:
        spins, gaps, proven = [], [], []
        version = ".".join(map(str, gurobipy.gurobi.version()))
        end = math.inf if self.time_limit is None else time.monotonic() + self.time_limit
        # Bits are rounded, so they must be near 0 or 1; otherwise the bound would not hold for what is returned.
        settings = {"OutputFlag": 0, "IntFeasTol": 1e-9, "MIPGap": self.mip_gap}
        settings |= {"Threads": thread_count(), "Seed": self.seed}
        with (
            _licence_errors(family.num_spins),
            gurobipy.Env(params=settings) as env,
            gurobipy.Model(env=env) as model,
            deadline(None) as stop,
        ):
            bits = model.addMVar(family.num_spins, vtype=GRB.BINARY)
            if family.num_spins > SIZE_LIMIT:
                model.setObjective(bits @ bits)
                model.optimize()  # says at once whether the licence allows so many
            form = _Form.of(family, seconds=end - time.monotonic())
            if form is None:
                stats = {"solver": "gurobi", "gap": math.inf, "unproven": family.num_columns, "version": version}
                return Solution.of(family, sign_start(family), **stats)
            model.setObjective(bits @ form.quadratic @ bits)
            for column in range(family.num_columns):
                left = (end - time.monotonic()) / (family.num_columns - column)
                model.Params.TimeLimit = 0.0 if stop[0] else min(max(left, 0.0), GRB.INFINITY)
                answer, bound = _solve_column(model, bits, form=form, column=column)
                energy = form.energy(answer, column)
                gap = max(0.0, energy - bound)
                spins.append(2 * answer - 1)
                gaps.append(gap / max(abs(energy), ROUNDING))
                optimal = model.Status == GRB.OPTIMAL and gap <= ROUNDING * max(1.0, abs(energy))
                proven.append(optimal and form.is_narrow(column))
        stats = {"solver": "gurobi", "gap": max(gaps), "unproven": proven.count(False), "version": version}
        return Solution.of(family, np.stack(spins, axis=1), proven_optimal=np.array(proven), **stats)


@dataclass(frozen=True, eq=False)
class _Form:
    """A family over bits x = (1 + g)/2, divided by its size, because Gurobi's tolerances are absolute."""

    quadratic: np.ndarray[Any, Any]  # 4 (Q − λ I), λ the least eigenvalue of Q, shape (n, n)
    linear: np.ndarray[Any, Any]  # 2 s − 4 (Q − λ I) 1, shape (n, m)
    offset: np.ndarray[Any, Any]  # what is left of the energy, shape (m,)

    @classmethod
    def of(cls, family: QuboFamily, *, seconds: float = math.inf) -> _Form | None:
        """The form, None where its eigenvalues would take longer than `seconds`."""
        double = family.double()
        quadratic, linear, offset = double.quadratic, double.linear, double.offset
        if (shift := least_shift(quadratic, seconds=seconds)) is None:
            return None
        shifted = quadratic.copy()
        np.fill_diagonal(shifted, shift)
        rows = shifted.sum(1)
        size = abs(4 * shifted).max() or abs(linear).max() or 1.0
        rest = offset + rows.sum() + quadratic.trace() - len(quadratic) * shift - linear.sum(0)
        return cls(4 * shifted / size, (2 * linear - 4 * rows[:, None]) / size, rest / size)

    def is_narrow(self, column: int) -> bool:
        """Whether few coefficients of the family are far below the others."""
        n = len(self.quadratic)
        fields = self.linear[:, column] + self.quadratic.sum(1)
        sizes = abs(np.concatenate([self.quadratic[np.triu_indices(n, 1)], fields]))
        sizes = sizes[sizes > 0]
        return bool((sizes < SMALL * sizes.max(initial=0)).mean() <= FEW) if sizes.size else True

    def energy(self, bits: np.ndarray[Any, Any], column: int) -> float:
        """The energy of one bit vector in one column, in units of the form's size."""
        return float(bits @ self.quadratic @ bits + self.linear[:, column] @ bits + self.offset[column])


def _solve_column(
    model: gurobipy.Model, bits: gurobipy.MVar, *, form: _Form, column: int
) -> tuple[np.ndarray[Any, Any], float]:
    """The best bits for the column, shape (n,), and the proven lower bound of its energy, −inf where there is none."""
    first = (form.linear[:, column] + form.quadratic.sum(1) <= 0).astype(np.float64)  # sign(−s)
    model.reset()  # otherwise a column's answer would depend on those before it
    bits.setAttr("Obj", form.linear[:, column])
    bits.setAttr("Start", first)
    model.ObjCon = form.offset[column]
    model.optimize()
    if model.Status == GRB.INTERRUPTED:
        signal.raise_signal(signal.SIGINT)  # Gurobi has caught it: for Python's handler, which raises or lets go on
    answer = np.round(bits.X) if model.SolCount else first
    return answer, model.ObjBound if model.ObjBound > -GRB.INFINITY else -math.inf


@contextmanager
def _licence_errors(num_spins: int = 0) -> Iterator[None]:
    """Turns Gurobi's errors about its licence into errors that say what to do."""
    try:
        yield
    except gurobipy.GurobiError as error:
        if error.errno == GRB.Error.SIZE_LIMIT_EXCEEDED:
            raise ValueError(
                f"this Gurobi licence is limited in size (the one in the PyPI package to {SIZE_LIMIT} variables "
                f"with a quadratic objective), but the family has {num_spins} spins; use the solver 'exact' or 'auto', "
                f"or a full licence: {_HOW_TO_GET_A_LICENCE}"
            ) from error
        if error.errno in _WITHOUT_LICENCE:
            raise RuntimeError(f"Gurobi finds no valid licence: {error}; {_HOW_TO_GET_A_LICENCE}") from error
        raise
