"""QUBOs that share their quadratic part as one family, and their solution; of numpy arrays or torch tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from qpsbgd_qubo.arrays import (
    cast,
    full,
    full_precision,
    is_tensor,
    largest,
    on_cpu,
    real_floats,
    sums_are_exact,
    to_type,
    type_name,
)
from qpsbgd_qubo.files.html import html_table
from qpsbgd_qubo.kernels import Array

if TYPE_CHECKING:
    import dimod


@dataclass(frozen=True, eq=False)
class QuboFamily:
    """m QUBOs over n spins that share their quadratic part (Prop. 2 for every column of a layer).

        E_j(g) = gᵀ Q g + s_jᵀ g + c_j,   g ∈ {−1, +1}ⁿ,   j = 1…m

    Since g_i² = 1, the diagonal of Q only shifts the energies.

    Args:
        quadratic: Q, shape (n, n), symmetric.
        linear: s, shape (n, m); column j belongs to output unit j.
        offset: c, shape (m,); zero if left out.

    All parts are copied, to tensors if one of them is a tensor, otherwise to numpy arrays; so are energies and
    solutions. Integers become float64 and half precision float32.

    Raises:
        ValueError: A shape does not fit, Q is not symmetric, or a value is not finite or outside the type's range.

    Examples:
        >>> from qpsbgd_qubo import QuboFamily
        >>> family = QuboFamily([[0.0, 1.0], [1.0, 0.0]], [[1.0], [0.0]])  # E(g) = 2 g₁ g₂ + g₁
        >>> family.energies([[-1], [1]]).tolist()
        [-3.0]
    """

    quadratic: Any
    linear: Any
    offset: Any = None

    def __post_init__(self) -> None:
        quadratic, linear, offset = self._parts()
        if quadratic.ndim != 2 or quadratic.shape[0] != quadratic.shape[1]:
            raise ValueError(f"quadratic must have shape (n, n), got {tuple(quadratic.shape)}")
        if linear.ndim != 2 or linear.shape[0] != quadratic.shape[0]:
            raise ValueError(
                f"linear must have shape (n, m) with n = {quadratic.shape[0]} as in quadratic, "
                f"got {tuple(linear.shape)}; a single QUBO is a family of one column: linear[:, None]"
            )
        if 0 in linear.shape:
            raise ValueError(f"a family needs at least one spin and one column, got {tuple(linear.shape)}")
        if offset is None:
            offset = full(linear.shape[1], 0, like=linear)
        if offset.shape != linear.shape[1:]:
            raise ValueError(f"offset must have shape (m,) = ({linear.shape[1]},), got {tuple(offset.shape)}")
        parts = {"quadratic": quadratic, "linear": linear, "offset": offset}
        devices = {str(getattr(part, "device", "cpu")) for part in parts.values()}
        if len(devices) > 1:
            raise ValueError(f"quadratic, linear and offset must be on one device, got {sorted(devices)}")
        dtype = max(map(type_name, parts.values()))  # "float64" if one is
        for name, part in parts.items():
            if not math.isfinite(largest(part)):
                raise ValueError(
                    f"{name} holds NaN or infinite values; look for them in the layer's inputs and output "
                    "gradients (a loss that overflowed, rows of almost zero norm)"
                )
            object.__setattr__(self, name, to_type(part, dtype))
        with np.errstate(over="ignore"):  # a difference that overflows is no small one
            asymmetry = largest(self.quadratic - self.quadratic.T)
        if asymmetry > (1e-4 if dtype == "float32" else 1e-9) * largest(self.quadratic):
            raise ValueError(
                f"quadratic must be symmetric, but differs from its transpose by up to {asymmetry:.3g}; "
                "pass (Q + Q.T) / 2, which has the same energies"
            )
        if asymmetry > 0:
            object.__setattr__(self, "quadratic", (self.quadratic + self.quadratic.T) / 2)
        self.range_exponent()

    def _parts(self) -> list[Any]:
        parts = [None if part is None else real_floats(part) for part in (self.quadratic, self.linear, self.offset)]
        tensor = next(filter(is_tensor, parts), None)
        if tensor is None:
            return parts
        return [
            part if part is None or is_tensor(part) else cast(part, tensor, dtype=type_name(part)) for part in parts
        ]

    @classmethod
    def trusted(cls, quadratic: Any, linear: Any, offset: Any) -> QuboFamily:
        """A family from parts that are known to be valid: nothing is checked or converted."""
        family = object.__new__(cls)
        vars(family).update(quadratic=quadratic, linear=linear, offset=offset)
        return family

    @property
    def num_spins(self) -> int:
        """n, the number of spins of each QUBO."""
        return int(self.linear.shape[0])

    @property
    def num_columns(self) -> int:
        """m, the number of QUBOs."""
        return int(self.linear.shape[1])

    @property
    def num_couplings(self) -> int:
        """How many pairs of spins are coupled."""
        return int(np.count_nonzero(np.triu(on_cpu(self.quadratic), 1)))

    @property
    def constant(self) -> float:
        """What the first column's couplings and fields do not depend on: c and, since g_i² = 1, the trace of Q."""
        return float(self.offset[0]) + float(np.trace(on_cpu(self.quadratic)))

    @property
    def is_cpu(self) -> bool:
        """Whether the family is in the processor's memory, as all arrays are."""
        return not is_tensor(self.linear) or bool(self.linear.is_cpu)

    def couplings(self) -> Array:
        """2 Q without its diagonal, (n, n), a float64 array."""
        couplings: Array = np.multiply(on_cpu(self.quadratic), 2, dtype=np.float64)
        np.fill_diagonal(couplings, 0)
        return couplings

    def energies(self, spins: Any) -> Any:
        """Energies of one spin vector per column: (…, n, m) → (…, m)."""
        spins = cast(spins, self.linear)
        if spins.ndim < 2 or spins.shape[-2:] != self.linear.shape:
            raise ValueError(f"spins must have shape (…, n, m) = (…, {self._shape()}), got {tuple(spins.shape)}")
        with full_precision(spins):
            return ((self.quadratic @ spins + self.linear) * spins).sum(-2) + self.offset

    def __add__(self, other: QuboFamily) -> QuboFamily:
        if not isinstance(other, QuboFamily):
            return NotImplemented
        if self.linear.shape != other.linear.shape:
            raise ValueError(f"families of different shapes cannot be added: ({self._shape()}), ({other._shape()})")
        with np.errstate(over="ignore", invalid="ignore"):  # sums that overflow are refused
            parts = (self.quadratic + other.quadratic, self.linear + other.linear, self.offset + other.offset)
        return QuboFamily(*parts)

    def __mul__(self, factor: float) -> QuboFamily:
        if not isinstance(factor, int | float):
            return NotImplemented
        with np.errstate(over="ignore", invalid="ignore"):  # products that overflow are refused
            parts = (self.quadratic * factor, self.linear * factor, self.offset * factor)
        return QuboFamily(*parts)

    __rmul__ = __mul__

    def range_exponent(self) -> int:
        """The exponent of two of the largest of |Q| and |s| where squares may leave the type's range; 0 elsewhere.

        Raises:
            ValueError: The sums of |Q|, |s| and |c| of a column overflow, or all of Q and s is denormal, but not zero.
        """
        parts, dtype = (self.quadratic, self.linear, self.offset), type_name(self.linear)
        limits, sizes = np.finfo(dtype), [largest(part) for part in parts]
        most, least, top = float(limits.max), float(limits.tiny), max(sizes[:2])
        if any(map(math.isnan, sizes)):
            raise ValueError("the numbers of a family must be finite, got NaN; has the training diverged?")
        if (self.num_spins + 1) ** 2 * top + sizes[2] > most:
            quadratic, linear = (abs(to_type(part, "float64")) for part in parts[:2])
            with np.errstate(over="ignore"):
                total = float(quadratic.sum()) + float(linear.sum(0).max()) + sizes[2]
            if total > most:
                raise ValueError(
                    f"the sum of |quadratic|, |linear| and |offset| of a column must stay below {most:.2g} in "
                    f"{dtype}, got {total:.2g}; multiply the family by a power of two, which keeps its optima"
                )
        if 0 < top < least:
            raise ValueError(
                f"all numbers of quadratic and linear are below {least:.2g}, where {dtype} loses digits; "
                "multiply them by a power of two before they get that small"
            )
        exponent, end = math.frexp(top)[1], math.frexp(most)[1]
        return min(exponent, end - 2) if abs(exponent) > end // 4 else 0  # 2 to its power is within the range, too

    def in_range(self, exponent: int) -> QuboFamily:
        """The family without offset times 2^−exponent, which has the same optima.

        Raises:
            ValueError: A number would be rounded: the family's numbers span more than their type can hold.
        """
        plain = self.without_offset()
        scaled = plain * math.ldexp(1.0, -exponent)
        pairs = ((plain.quadratic, scaled.quadratic), (plain.linear, scaled.linear))
        if not all(bool((part == shrunk * math.ldexp(1.0, exponent)).all()) for part, shrunk in pairs):
            sizes = np.concatenate([abs(on_cpu(part)).ravel() for part, _ in pairs])
            raise ValueError(
                "the numbers of a family must not differ by more than their type can hold, got some from "
                f"{float(sizes[sizes > 0].min()):.3g} to {float(sizes.max()):.3g}; leave out the small ones, or "
                "use float64"
            )
        return scaled

    def without_offset(self) -> QuboFamily:
        """The family with c = 0: next to a large offset, single precision cannot tell energies apart."""
        return QuboFamily.trusted(self.quadratic, self.linear, full(self.num_columns, 0, like=self.linear))

    def to(self, *args: Any, **kwargs: Any) -> QuboFamily:
        """The family as tensors on another device or in another floating type, as in `Tensor.to`; needs torch."""
        import torch

        parts = [torch.as_tensor(part).to(*args, **kwargs) for part in (self.quadratic, self.linear, self.offset)]
        if not parts[0].is_floating_point() or parts[0].dtype in (torch.float16, torch.bfloat16):
            raise ValueError(f"a family is kept in float32 or float64, not in {parts[0].dtype}")
        return QuboFamily.trusted(*parts)

    def numpy(self) -> QuboFamily:
        """The family as arrays by rows, without a copy of what already is, such as tensors on the CPU."""
        parts = (self.quadratic, self.linear, self.offset)
        return QuboFamily.trusted(*(np.ascontiguousarray(on_cpu(part)) for part in parts))

    def double(self) -> QuboFamily:
        """The family in double precision."""
        return QuboFamily.trusted(*(to_type(part, "float64") for part in (self.quadratic, self.linear, self.offset)))

    def to_bqm(self, column: int) -> dimod.BinaryQuadraticModel:
        """Column `column` as a dimod model over SPIN variables 0…n−1, with equal energies."""
        try:
            import dimod
        except ImportError as error:
            raise ImportError("to_bqm needs dimod: pip install 'qpsbgd-qubo[dimod]'") from error
        if not -self.num_columns <= column < self.num_columns:
            raise IndexError(f"column {column} is out of range for a family of {self.num_columns} columns")
        plain = self.numpy().double()
        offset = float(plain.offset[column]) + float(np.trace(plain.quadratic))
        couplings = np.triu(2 * plain.quadratic, 1)
        return dimod.BinaryQuadraticModel(plain.linear[:, column].copy(), couplings, offset, dimod.SPIN)

    def __repr__(self) -> str:
        where = f", {self.linear.device}" if is_tensor(self.linear) else ""
        return f"QuboFamily(n={self.num_spins}, m={self.num_columns}, {type_name(self.linear)}{where})"

    def _shape(self) -> str:
        return f"{self.num_spins}, {self.num_columns}"


@dataclass(frozen=True, eq=False)
class Solution:
    """A solver's answer to a family.

    Attributes:
        spins: The best spins found, −1 or +1, shape (n, m), in the family's floating type.
        energies: Their energies, shape (m,).
        proven_optimal: Whether no spins of lower energy exist, shape (m,), bool.
        stats: What the solver reports about its work; `stats["solver"]` is the name of the one that was used.
        state: For the next `solve(state, linear)`; None where the family was given as such.

    Examples:
        >>> from qpsbgd_qubo import QuboFamily, Solution
        >>> family = QuboFamily([[0.0, 1.0], [1.0, 0.0]], [[1.0], [0.0]])
        >>> solution = Solution.of(family, [[-1], [1]], solver="by hand")
        >>> solution.energies.tolist(), solution.proven_optimal.tolist()
        ([-3.0], [False])
    """

    spins: Any
    energies: Any
    proven_optimal: Any
    stats: dict[str, Any] = field(default_factory=dict)
    state: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, family: QuboFamily, spins: Any, *, proven_optimal: Any = False, **stats: Any) -> Solution:
        """These spins as a solution of `family`; their energies are computed here."""
        spins = cast(spins, family.linear)
        if isinstance(proven_optimal, bool):
            proven_optimal = full(family.num_columns, proven_optimal, like=spins, dtype="bool")
        if family.is_cpu and proven_optimal.any() and not sums_are_exact(family.quadratic, family.linear):
            proven_optimal, stats = proven_optimal & False, {**stats, "unproven": family.num_columns}
        return cls(spins, family.energies(spins), cast(proven_optimal, spins, dtype="bool"), stats)

    def with_offset(self, offset: Any) -> Solution:
        """The same spins for a family whose offset is larger by `offset` (m,)."""
        return Solution(self.spins, self.energies + offset, self.proven_optimal, self.stats)

    def like(self, family: QuboFamily) -> Solution:
        """The same solution as arrays or tensors, as `family` is, on its device."""
        spins, energies = cast(self.spins, family.linear), cast(self.energies, family.linear)
        return Solution(spins, energies, cast(self.proven_optimal, spins, dtype="bool"), self.stats)

    def _repr_html_(self) -> str:
        n, m = self.spins.shape
        energies = f"{float(self.energies.min()):.6g} to {float(self.energies.max()):.6g}"
        facts = {"spins": str(n), "columns": str(m), "energies": energies, "mean": f"{float(self.energies.mean()):.6g}"}
        facts["proven optimal"] = f"{int(self.proven_optimal.sum())} of {m}"
        return html_table(("Solution", ""), [*facts.items(), *((key, str(value)) for key, value in self.stats.items())])

    def __repr__(self) -> str:
        n, m = self.spins.shape
        proven = int(self.proven_optimal.sum())
        return (
            f"Solution(n={n}, m={m}, mean energy {float(self.energies.mean()):.6g}, "
            f"{proven}/{m} proven optimal, {self.stats})"
        )
