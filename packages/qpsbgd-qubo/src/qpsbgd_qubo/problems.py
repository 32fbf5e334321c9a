"""Any QUBO or Ising model as a model over spins, and the way back to its own variables and values."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qpsbgd_qubo.arrays import sums_are_exact
from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.sparse import SparseIsing, TooLargeError, check_dense, check_sums, real

if TYPE_CHECKING:
    import dimod

MAX_VARIABLES = 10_000_000
"""The most variables a problem may have: sparse solvers need a few arrays of that length, 80 MB each."""
MANY_VARIABLES, PER_ENTRY = 1_000_000, 100
"""Variables above which a file must have an entry for one in so many: a few bytes would take a gigabyte otherwise."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem in its own terms, and the model over spins whose lowest energies solve it.

    Attributes:
        model: To be minimised over spins; its energies are the problem's values, negated if these are maximised.
        vartype: "BINARY" for variables 0 and 1, "SPIN" for −1 and +1, as in dimod.
        labels: The variables' names, in the order of the model's spins.
        maximize: Whether the highest value is wanted.
        quantity: What the value is called: "energy", "value" of an objective, or "cut" of a graph.
        format: The format of the file that it is from; "" if from none.
        rounded: Whether double precision rounds sums of the coefficients that a dense model was made of.
    """

    model: SparseIsing | QuboFamily
    vartype: str
    labels: tuple[Hashable, ...]
    maximize: bool = False
    quantity: str = "energy"
    format: str = ""
    rounded: bool = False

    @property
    def sense(self) -> int:
        """−1 where the highest value is wanted, otherwise 1: the model's energies are this times the values."""
        return -1 if self.maximize else 1

    @functools.cached_property
    def family(self) -> QuboFamily:
        """The model as a dense family; TooLargeError if it has too many variables for that."""
        return self.model.to_dense() if isinstance(self.model, SparseIsing) else self.model

    @functools.cached_property
    def is_exact(self) -> bool:
        """Whether sums of the problem's numbers are, and of the model's; proofs are claimed where they are."""
        model = self.model
        if self.rounded or (isinstance(model, SparseIsing) and model.rounded):
            return False
        return sums_are_exact(model.couplings if isinstance(model, SparseIsing) else model.quadratic, model.linear)

    def with_sense(self, *, maximize: bool) -> Problem:
        """The same problem with the highest or the lowest value wanted."""
        if maximize == self.maximize:
            return self
        return dataclasses.replace(self, model=self.model * -1, maximize=maximize)

    def __repr__(self) -> str:
        sense = "maximised" if self.maximize else "minimised"
        return f"Problem({self.vartype}, {self.quantity} {sense}, {self.model!r})"

    def values(self, spins: Any) -> Array:
        """The variables' own values for spins (n, m): −1 and +1, or 0 and 1; same shape, integers."""
        whole = np.asarray(spins).astype(np.int8)
        return whole if self.vartype == "SPIN" else (whole + 1) // 2

    def energies(self, spins: Any) -> Array:
        """The problem's own values for spins (n, m), offset included; shape (m,)."""
        model = self.model if isinstance(self.model, SparseIsing) else self.model.double()
        return self.sense * model.energies(spins)


@np.errstate(over="ignore", invalid="ignore")  # sums that overflow are refused
def qubo_problem(matrix: Any, *, offset: Any = 0.0) -> Problem:
    """The minimum of xᵀ A x + offset over x ∈ {0, 1}ⁿ, every entry of A counting once; A has shape (n, n)."""
    matrix = _matrix(matrix, name="the QUBO matrix")
    half = (matrix + matrix.T) / 2
    rounded = not sums_are_exact(matrix / 4)
    return _problem("BINARY", half / 4, half.sum(1) / 2, _number(offset) + half.sum() / 4, rounded=rounded)


@np.errstate(over="ignore", invalid="ignore")  # sums that overflow are refused
def ising_problem(fields: Any, couplings: Any, *, offset: Any = 0.0) -> Problem:
    """The minimum of hᵀ g + gᵀ J g + offset over g ∈ {−1, +1}ⁿ, every entry of J counting once; J has shape (n, n).

    With labels, J is a dict (i, j) → value, and h a dict i → value or a list, as dimod's `sample_ising` takes them.
    """
    if isinstance(couplings, Mapping):
        named = fields if isinstance(fields, Mapping) else dict(enumerate(fields))
        order = itertools.chain(named, itertools.chain.from_iterable(couplings))
        labels, entries = named_entries(couplings, "the keys of J must be pairs (i, j) of labels", labels=order)
        linear = [named.get(label, 0.0) for label in labels]
        return model_problem("SPIN", linear, entries, offset=offset, labels=labels)
    couplings = _matrix(couplings, name="J")
    fields = real(fields, "h", 1)
    if fields.shape != couplings.shape[:1]:
        raise ValueError(f"h must have shape (n,) = ({len(couplings)},) as J has, got {fields.shape}")
    rounded = not sums_are_exact(couplings / 2, fields)
    return _problem("SPIN", (couplings + couplings.T) / 2, fields, _number(offset), rounded=rounded)


def named_entries(
    entries: Mapping[Any, Any], rule: str, *, labels: Iterable[Hashable] = ()
) -> tuple[tuple[Hashable, ...], tuple[list[int], list[int], list[Any]]]:
    """The labels in a dict (i, j) → value, after those given, and its rows, columns and values."""
    for key in entries:
        if not isinstance(key, tuple) or len(key) != 2:
            raise ValueError(f"{rule}, got {key!r}")
    places: dict[Hashable, int] = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    rows, cols = ([places.setdefault(key[end], len(places)) for key in entries] for end in (0, 1))
    return tuple(places), (rows, cols, list(entries.values()))


def bqm_problem(bqm: dimod.BinaryQuadraticModel) -> Problem:
    """The minimum of a dimod model over its own variables; couplings stay sparse.

    Raises:
        TypeError: It is one of dimod's other models.
    """
    if getattr(getattr(bqm, "vartype", None), "name", None) not in ("SPIN", "BINARY"):
        raise TypeError(
            f"a model of dimod must be a BinaryQuadraticModel, got {type(bqm).__name__}; dimod.cqm_to_bqm makes one of "
            "a ConstrainedQuadraticModel"
        )
    labels = tuple(bqm.variables)
    linear, quadratic, _ = bqm.to_numpy_vectors(variable_order=list(labels))  # its offset of objects is rounded
    return model_problem(bqm.vartype.name, linear, quadratic, offset=bqm.offset, labels=labels)


def model_problem(
    vartype: str, linear: Any, quadratic: tuple[Any, Any, Any], *, offset: Any, labels: tuple[Hashable, ...]
) -> Problem:
    """The minimum of Σ linear · v + Σ biases · v_rows v_cols + offset over v of that vartype.

    `quadratic` holds rows, columns and biases, each (k,), of pairs of different variables.
    """
    n, offset = check_variables(len(labels)), _number(offset)
    rows, cols, biases = quadratic
    if vartype == "SPIN":
        return Problem(SparseIsing.from_edges(n, rows, cols, biases, linear, offset), vartype, labels)
    places = np.arange(n)
    entries = (np.concatenate([rows, places]), np.concatenate([cols, places]), np.concatenate([biases, linear]))
    return Problem(SparseIsing.from_qubo(n, *entries, offset), vartype, labels)


def check_variables(num_variables: int, *, entries: int | None = None) -> int:
    """The number itself, if a problem may have that many variables, and a file that many for so few entries."""
    if num_variables < 1:
        raise ValueError("a problem must have at least one variable, but this one has none")
    if num_variables > MAX_VARIABLES:
        raise TooLargeError(f"a problem may have up to {MAX_VARIABLES} variables, got {num_variables}")
    if entries is not None and num_variables > max(MANY_VARIABLES, PER_ENTRY * entries):
        raise TooLargeError(
            f"a file of {entries} entries may have up to {max(MANY_VARIABLES, PER_ENTRY * entries)} variables, got "
            f"{num_variables}; number those that have entries from the first on"
        )
    return num_variables


def _matrix(value: Any, *, name: str) -> Array:
    shape = np.shape(value)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{name} must have shape (n, n), got {shape}")
    check_dense(check_variables(shape[0]))
    return real(value, name, 2)


def _number(offset: Any) -> float:
    value = np.asarray(offset, dtype=np.float64)
    if value.size != 1 or not np.isfinite(value).all():
        raise ValueError(f"offset must be one finite number, got {offset!r}")
    return float(value.item())


def _problem(vartype: str, quadratic: Array, linear: Array, offset: float, *, rounded: bool) -> Problem:
    check_sums(quadratic, linear, offset)
    family = QuboFamily.trusted(quadratic, linear[:, None], np.array([offset]))
    return Problem(family, vartype, tuple(range(len(linear))), rounded=rounded)
