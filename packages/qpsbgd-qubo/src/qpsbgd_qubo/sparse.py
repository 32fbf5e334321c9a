"""One Ising problem whose couplings stay sparse: memory grows with their number, not with n²."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qpsbgd_qubo.arrays import check_whole_numbers, is_tensor, on_cpu, real_floats, sums_are_exact
from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.kernels import Array

MOST_SPINS = 2**31 - 1  # columns are 32 bits wide; couplings are counted with 64
MAX_DENSE = 10_000
"""The most spins of a problem that is made dense: its matrix then takes 0.8 GB, and solvers need several of those."""


@dataclass(frozen=True, eq=False)
class SparseIsing:
    """One Ising problem over spins with sparse couplings.

        E(g) = Σ_{i<j} J_ij g_i g_j + Σ_i h_i g_i + offset,   g ∈ {−1, +1}ⁿ

    J is kept as a symmetric matrix in compressed rows: J_ij stands in row i and in row j, the diagonal is empty, and
    columns ascend within a row. `from_edges` and `from_qubo` make this of any list of coefficients.

    Args:
        indptr: Where each row begins, and the end of the last, int64, shape (n + 1,).
        indices: The columns, int32, shape (nnz,).
        couplings: J_ij, float64, shape (nnz,).
        linear: h, float64, shape (n,).
        offset: A constant.

    Raises:
        ValueError: A shape does not fit, rows are not as described, J is not symmetric, or a value is not finite.
    """

    indptr: Array
    indices: Array
    couplings: Array
    linear: Array
    offset: float = 0.0
    rounded: bool = field(default=False, init=False, repr=False)
    """Whether the coefficients that `from_edges` or `from_qubo` added up have sums that double precision rounds."""

    def __post_init__(self) -> None:
        linear, couplings, offset = _check_parts(self.linear, self.couplings, self.offset)
        n = len(linear)
        _check_count(n)
        indptr, indices = (_whole(part, name) for part, name in ((self.indptr, "indptr"), (self.indices, "indices")))
        if indptr.shape != (n + 1,) or indices.shape != couplings.shape:
            raise ValueError(
                f"indptr must have shape (n + 1,) = ({n + 1},) and indices the shape of couplings {couplings.shape}, "
                f"got {indptr.shape} and {indices.shape}"
            )
        if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
            raise ValueError("indptr must ascend from 0 to the number of couplings")
        _check_range(indices, n, name="indices")
        check_sums(couplings, linear, offset)
        rows = np.repeat(np.arange(n), np.diff(indptr))
        if (rows == indices).any():
            raise ValueError("the diagonal must be empty; `from_edges` adds it to the offset")
        if (np.diff(rows * n + indices) <= 0).any():
            raise ValueError("columns must ascend within a row; `from_edges` sorts them and adds up equal ones")
        turned = _order(indices, n)  # the transpose, row by row
        if not (np.array_equal(indices[turned], rows) and np.array_equal(rows[turned], indices)):
            raise ValueError("couplings must be symmetric, but a place is filled on one side of the diagonal only")
        if not np.array_equal(couplings[turned], couplings):
            raise ValueError("couplings must be symmetric, but differ from their transpose")
        self._set(indptr, indices.astype(np.int32, copy=False), couplings, linear, offset, False)

    @classmethod
    def from_edges(
        cls, n: int, rows: Any, cols: Any, values: Any, linear: Any = None, offset: float = 0.0
    ) -> SparseIsing:
        """The problem Σ values · g_rows g_cols + Σ linear · g + offset over n spins, every entry counting once.

        Entries (k,) for the same pair, in either order, add up; one for a spin and itself goes to the offset, as g_i² =
        1.
        """
        rows, cols, values = _entries(n, rows, cols, values)
        linear, values, offset = _check_parts(np.zeros(n) if linear is None else linear, values, offset)
        if linear.shape != (n,):
            raise ValueError(f"linear must have shape (n,) = ({n},), got {linear.shape}")
        loops = rows == cols
        if loops.any():
            offset += float(values[loops].sum())
            rows, cols, values = rows[~loops], cols[~loops], values[~loops]
        rounded = not sums_are_exact(values, linear)
        return cls._of_pairs(n, *_sum_duplicates(n, rows, cols, values), linear, offset, rounded=rounded)

    @classmethod
    def from_qubo(cls, n: int, rows: Any, cols: Any, values: Any, offset: float = 0.0) -> SparseIsing:
        """The QUBO Σ values · x_rows x_cols + offset over x = (1 + g) / 2 ∈ {0, 1}ⁿ, every entry counting once."""
        rows, cols, values = _entries(n, rows, cols, values)
        _, values, offset = _check_parts(np.zeros(n), values, offset)
        rounded = not sums_are_exact(values / 4)
        loops = rows == cols
        diagonal = np.bincount(rows[loops], values[loops], minlength=n)
        if loops.any():
            rows, cols, values = rows[~loops], cols[~loops], values[~loops]
        rows, cols, values = _sum_duplicates(n, rows, cols, values)
        quarters = values / 4
        linear = diagonal / 2 + np.bincount(rows, quarters, minlength=n) + np.bincount(cols, quarters, minlength=n)
        offset += diagonal.sum() / 2 + quarters.sum()
        return cls._of_pairs(n, rows, cols, quarters, linear, offset, rounded=rounded)

    @classmethod
    def from_dense(cls, model: QuboFamily, column: int = 0) -> SparseIsing:
        """One column of a family, its couplings J = 2Q of zero left out."""
        model = model.numpy()
        rows, cols = np.nonzero(np.triu(model.quadratic, 1))
        values = 2 * model.quadratic[rows, cols].astype(np.float64)
        whole = float(model.offset[column]) + float(model.quadratic.trace(dtype=np.float64))
        return cls._of_pairs(model.num_spins, rows, cols, values, model.linear[:, column].astype(np.float64), whole)

    @classmethod
    def _of_pairs(
        cls, n: int, rows: Array, cols: Array, values: Array, linear: Array, offset: float, *, rounded: bool = False
    ) -> SparseIsing:
        """From pairs i < j in ascending order, each once; both triangles are filled."""
        check_sums(values, linear, offset)
        # The lower triangle comes first: a stable order by rows then keeps columns ascending.
        ends, others = np.concatenate([cols, rows]), np.concatenate([rows, cols]).astype(np.int32)
        order, couplings = _order(ends, n), np.concatenate([values, values])
        indptr = np.append(0, np.bincount(ends, minlength=n).cumsum())
        return cls._unchecked(indptr, others[order], couplings[order], linear, float(offset), rounded)

    @classmethod
    def _unchecked(cls, *parts: Any) -> SparseIsing:
        """A problem from all its fields, known to be valid: nothing is checked or converted."""
        problem = object.__new__(cls)
        problem._set(*parts)
        return problem

    def _set(self, *parts: Any) -> None:
        vars(self).update(zip(self.__dataclass_fields__, parts, strict=True))

    @property
    def num_spins(self) -> int:
        """n, the number of spins."""
        return len(self.linear)

    @property
    def num_couplings(self) -> int:
        """How many pairs of spins are coupled."""
        return len(self.couplings) // 2

    def edges(self) -> tuple[Array, Array, Array]:
        """Every coupled pair i < j once, in ascending order, and its coupling: three arrays (num_couplings,)."""
        rows = np.repeat(np.arange(self.num_spins, dtype=self.indices.dtype), np.diff(self.indptr))
        once = rows < self.indices
        return rows[once], self.indices[once], self.couplings[once]

    @property
    def num_columns(self) -> int:
        """How many problems there are: one."""
        return 1

    @property
    def constant(self) -> float:
        """The offset."""
        return self.offset

    def energies(self, spins: Any) -> Array:
        """Energies of spins (n, 1), as those of a dense model: shape (1,)."""
        return self.energy(np.asarray(spins).T)

    def energy(self, spins: Any) -> Any:
        """Energies of spins (…, n): a float for one vector, an array (…) for several."""
        spins = np.asarray(spins)
        if spins.shape[-1:] != (self.num_spins,):
            raise ValueError(f"spins must have shape (…, n) = (…, {self.num_spins}), got {spins.shape}")
        flat = spins.reshape(-1, self.num_spins)
        energies, degrees = np.empty(len(flat)), np.diff(self.indptr)
        for place, vector in enumerate(flat.astype(np.int8)):  # one by one: all at once would take (…, num_couplings)
            pairs = dot(self.couplings, vector[self.indices] * np.repeat(vector, degrees)) / 2
            energies[place] = pairs + dot(self.linear, vector) + self.offset
        return float(energies[0]) if spins.ndim == 1 else energies.reshape(spins.shape[:-1])

    def __mul__(self, factor: float) -> SparseIsing:
        if not isinstance(factor, int | float):
            return NotImplemented
        couplings, linear = self.couplings * factor, self.linear * factor
        check_sums(couplings, linear, self.offset * factor)
        return SparseIsing._unchecked(self.indptr, self.indices, couplings, linear, self.offset * factor, self.rounded)

    __rmul__ = __mul__

    def to_dense(self) -> QuboFamily:
        """The same problem with a full matrix, a family of one column; TooLargeError above `MAX_DENSE` spins."""
        n = check_dense(self.num_spins)
        quadratic = np.zeros((n, n))
        quadratic[np.repeat(np.arange(n), np.diff(self.indptr)), self.indices] = self.couplings / 2
        return QuboFamily.trusted(quadratic, self.linear[:, None].copy(), np.array([self.offset]))

    def __repr__(self) -> str:
        return f"SparseIsing(n={self.num_spins}, couplings={self.num_couplings})"


class TooLargeError(MemoryError, ValueError):
    """A problem has too many variables for what is to be done with it."""


def check_dense(num_spins: int) -> int:
    """The number itself, if a problem of that many spins may be made dense."""
    if num_spins > MAX_DENSE:
        raise TooLargeError(
            f"a dense problem may have up to {MAX_DENSE} variables, got {num_spins}: one matrix would take "
            f"{8 * num_spins**2:,} bytes; use a solver that keeps problems sparse"
        )
    return num_spins


def dot(a: Array, b: Array) -> float:
    """aᵀb on one thread: those that numpy's product wakes for long vectors then spin for a tenth of a second."""
    return float(np.einsum("i,i->", a, b))


def _check_count(n: int) -> None:
    if n > MOST_SPINS:
        raise ValueError(f"a problem must have at most {MOST_SPINS} variables, got {n}; leave out those without terms")


def _entries(n: int, rows: Any, cols: Any, values: Any) -> tuple[Array, Array, Array]:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"a problem must have at least one variable, got n = {n!r}")
    _check_count(n)
    rows, cols = _whole(rows, "rows"), _whole(cols, "cols")
    values = np.asarray(values)
    if rows.ndim != 1 or rows.shape != cols.shape or rows.shape != values.shape:
        raise ValueError(f"rows, cols and values must be of one length, got {rows.shape}, {cols.shape}, {values.shape}")
    _check_range(rows, n, name="rows")
    _check_range(cols, n, name="cols")
    return rows, cols, values


def _whole(value: Any, name: str) -> Array:
    array = np.asarray(value)
    if not array.size:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold integers, got {array.dtype}")
    return array.astype(np.int64)  # a copy


def _check_range(indices: Array, n: int, *, name: str) -> None:
    if len(indices) and (indices.min() < 0 or indices.max() >= n):
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise ValueError(f"{name} must be from 0 to n - 1 = {n - 1}, got {wrong}")


def _check_parts(linear: Any, values: Any, offset: Any) -> tuple[Array, Array, float]:
    linear, values, offset = real(linear, "linear", 1), real(values, "couplings", 1), real(offset, "offset", 0)
    if not len(linear):
        raise ValueError("a problem must have at least one variable, but this one has none")
    return linear, values, float(offset)


def real(value: Any, name: str, ndim: int) -> Array:
    """The value as float64 with this many dimensions; ValueError unless all are finite real numbers."""
    array = np.asarray(on_cpu(real_floats(value)) if is_tensor(value) else value)
    if array.dtype.kind not in "biufO":  # objects: fractions and the like
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")
    try:
        if array.dtype.kind in "iuO":
            check_whole_numbers(array)
        array = array.astype(np.float64)  # a copy
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must hold real numbers: {error}") from error
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, but holds NaN or infinite values")
    return array


def check_sums(couplings: Array, linear: Array, offset: float) -> None:
    """Raise ValueError unless all energies are finite: couplings of every pair once, fields and a constant."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.abs(couplings).sum() + np.abs(linear).sum() + abs(offset)
    if not np.isfinite(largest):
        raise ValueError(
            "coefficients must be finite, but their sums overflow; multiply all of them by one small number, which "
            "keeps the optima"
        )


def _sum_duplicates(n: int, rows: Array, cols: Array, values: Array) -> tuple[Array, Array, Array]:
    """Pairs as i < j in ascending order, those that come several times added up and those of zero left out."""
    rows, cols = np.minimum(rows, cols), np.maximum(rows, cols)
    keys = rows * n + cols
    if (keys[1:] <= keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        first = np.flatnonzero(np.diff(keys[order], prepend=-1))
        values = np.add.reduceat(values[order], first)
        rows, cols = rows[order[first]], cols[order[first]]
    kept = values != 0
    return (rows, cols, values) if kept.all() else (rows[kept], cols[kept], values[kept])


def _order(indices: Array, n: int) -> Array:
    """The places of indices below n, ascending, equal ones in their order; numpy is fastest with 16 bits."""
    return np.argsort(indices.astype(np.uint16) if n <= 1 << 16 else indices, kind="stable")
