"""Any QUBO or Ising model as a family over spins, and the way back to its own variables and energies."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.qubo.family import QuboFamily, Solution

if TYPE_CHECKING:
    import dimod

MAX_VARIABLES = 10_000
"""The most variables a problem may have: its dense matrix then takes 0.8 GB, and solvers need several of that size."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem in its own terms, and the family over spins whose lowest energies solve it.

    Attributes:
        family: To be minimised over spins; its energies are the problem's, negated if it is to be maximised.
        vartype: "BINARY" for variables 0 and 1, "SPIN" for −1 and +1, as in dimod.
        labels: The variables' names, in the order of the family's spins.
        maximize: Whether the highest value is wanted.
    """

    family: QuboFamily
    vartype: str
    labels: tuple[Hashable, ...]
    maximize: bool = False

    def maximized(self) -> Problem:
        """The same problem with the highest value wanted; one that is maximised already stays as it is."""
        if self.maximize:
            return self
        return Problem(self.family * -1, self.vartype, self.labels, maximize=True)

    def values(self, spins: Tensor) -> np.ndarray[Any, Any]:
        """The variables' own values for spins (n, m): −1 and +1, or 0 and 1; same shape, integers."""
        whole = spins.cpu().numpy().astype(np.int8)
        return whole if self.vartype == "SPIN" else (whole + 1) // 2

    def energies(self, spins: Tensor) -> Tensor:
        """The problem's own energies for spins (n, m), offset included; shape (m,)."""
        energies = self.family.energies(spins)
        return -energies if self.maximize else energies

    def summary(self, solution: Solution) -> dict[str, str]:
        """A solution described in the problem's own terms: name → text."""
        energies = self.energies(solution.spins)
        digits = 12 if energies.dtype == torch.float64 else 7
        m, proven = len(energies), int(solution.proven_optimal.sum())
        best = float(energies.max() if self.maximize else energies.min())
        solver = ", ".join(f"{key} {value}" for key, value in solution.stats.items())
        return {
            "problem": f"n = {len(self.labels)} variables ({self.vartype}), m = {m}",
            "best energy": f"{best:.{digits}g}" + (f", mean {float(energies.mean()):.{digits}g}" if m > 1 else ""),
            "proven optimal": f"{proven} of {m}" if m > 1 else ("yes" if proven else "no"),
            "solver": solver.removeprefix("solver "),
        }


def qubo_problem(matrix: Any, *, offset: Any = 0.0) -> Problem:
    """The minimum of xᵀ A x + offset over x ∈ {0, 1}ⁿ, every entry of A counting once; A has shape (n, n)."""
    matrix = _matrix(matrix, name="the QUBO matrix")
    half = (matrix + matrix.T) / 2
    return _problem("BINARY", half / 4, half.sum(1) / 2, _number(offset) + half.sum() / 4)


def ising_problem(fields: Any, couplings: Any, *, offset: Any = 0.0) -> Problem:
    """The minimum of hᵀ g + gᵀ J g + offset over g ∈ {−1, +1}ⁿ, every entry of J counting once; J has shape (n, n)."""
    couplings = _matrix(couplings, name="J")
    fields = np.asarray(fields, dtype=np.float64)
    if fields.shape != couplings.shape[:1]:
        raise ValueError(f"h must have shape (n,) = ({len(couplings)},) as J has, got {fields.shape}")
    if not np.isfinite(fields).all():
        raise ValueError("h must be finite, but holds NaN or infinite values")
    return _problem("SPIN", (couplings + couplings.T) / 2, fields, _number(offset))


def bqm_problem(bqm: dimod.BinaryQuadraticModel) -> Problem:
    """The minimum of a dimod model over its own variables."""
    labels = tuple(bqm.variables)
    n = check_size(len(labels))
    linear, (rows, columns, biases), offset = bqm.to_numpy_vectors(variable_order=list(labels))
    matrix = np.zeros((n, n))
    matrix[rows, columns] = biases
    return model_problem(bqm.vartype.name, linear, matrix, offset=offset, labels=labels)


def model_problem(vartype: str, linear: Any, quadratic: Any, *, offset: Any, labels: tuple[Hashable, ...]) -> Problem:
    """The minimum of linearᵀ v + vᵀ quadratic v + offset over v of that vartype; the diagonal of quadratic is zero."""
    linear = np.array(linear, dtype=np.float64)
    if vartype == "SPIN":
        problem = ising_problem(linear, quadratic, offset=offset)
    else:
        problem = qubo_problem(quadratic + np.diag(linear), offset=offset)
    return dataclasses.replace(problem, labels=labels)


def check_size(num_variables: int) -> int:
    """The number itself, if a problem may have that many variables.

    Raises:
        ValueError: There is no variable.
        MemoryError: There are more than `MAX_VARIABLES`.
    """
    if num_variables < 1:
        raise ValueError("a problem must have at least one variable, but this one has none")
    if num_variables > MAX_VARIABLES:
        raise MemoryError(
            f"problems are solved as dense matrices and may have up to {MAX_VARIABLES} variables, got {num_variables} "
            f"({8e-9 * num_variables**2:.3g} GB per matrix); use a sparse solver, such as those of dwave-samplers"
        )
    return num_variables


def _matrix(value: Any, *, name: str) -> np.ndarray[Any, Any]:
    matrix = np.asarray(value, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must have shape (n, n), got {matrix.shape}")
    check_size(len(matrix))
    if not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be finite, but holds NaN or infinite values")
    return matrix


def _number(offset: Any) -> float:
    value = np.asarray(offset, dtype=np.float64)
    if value.size != 1 or not np.isfinite(value).all():
        raise ValueError(f"offset must be one finite number, got {offset!r}")
    return float(value.item())


def _problem(vartype: str, quadratic: np.ndarray[Any, Any], linear: np.ndarray[Any, Any], offset: float) -> Problem:
    parts = (torch.from_numpy(part) for part in (quadratic, linear[:, None], np.array([offset])))
    return Problem(QuboFamily(*parts), vartype, tuple(range(len(linear))))
