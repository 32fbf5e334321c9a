"""A layer's QUBOs as one family with a shared quadratic part, and their solution."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qpsbgd_qubo.files.html import html_table

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

    Arrays and lists are turned into tensors; integers become float64 and half precision float32.

    Raises:
        ValueError: A shape does not fit, Q is not symmetric, or a value is not finite or outside the type's range.

    Examples:
        >>> import torch
        >>> from qpsbgd.qubo import QuboFamily
        >>> family = QuboFamily([[0.0, 1.0], [1.0, 0.0]], [[1.0], [0.0]])  # E(g) = 2 g₁ g₂ + g₁
        >>> family.energies(torch.tensor([[-1.0], [1.0]])).tolist()
        [-3.0]
    """

    quadratic: Tensor
    linear: Tensor
    offset: Tensor = field(default=None)  # type: ignore[assignment]  # filled in __post_init__

    def __post_init__(self) -> None:
        quadratic, linear = _as_float(self.quadratic), _as_float(self.linear)
        if quadratic.ndim != 2 or quadratic.shape[0] != quadratic.shape[1]:
            raise ValueError(f"quadratic must have shape (n, n), got {tuple(quadratic.shape)}")
        if linear.ndim != 2 or linear.shape[0] != quadratic.shape[0]:
            raise ValueError(
                f"linear must have shape (n, m) with n = {quadratic.shape[0]} as in quadratic, "
                f"got {tuple(linear.shape)}; a single QUBO is a family of one column: linear[:, None]"
            )
        if 0 in linear.shape:
            raise ValueError(f"a family needs at least one spin and one column, got {tuple(linear.shape)}")
        offset = linear.new_zeros(linear.shape[1]) if self.offset is None else _as_float(self.offset)
        if offset.shape != linear.shape[1:]:
            raise ValueError(f"offset must have shape (m,) = ({linear.shape[1]},), got {tuple(offset.shape)}")
        devices = {str(t.device) for t in (quadratic, linear, offset)}
        if len(devices) > 1:
            raise ValueError(f"quadratic, linear and offset must be on one device, got {sorted(devices)}")
        dtype = torch.promote_types(torch.promote_types(quadratic.dtype, linear.dtype), offset.dtype)
        parts = {"quadratic": quadratic, "linear": linear, "offset": offset}
        for name, part in parts.items():
            if not torch.isfinite(part).all():
                raise ValueError(
                    f"{name} holds NaN or infinite values; look for them in the layer's inputs and output "
                    "gradients (a loss that overflowed, rows of almost zero norm)"
                )
            object.__setattr__(self, name, part.to(dtype))
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        asymmetry = (self.quadratic - self.quadratic.T).abs().amax()
        if asymmetry > tolerance * self.quadratic.abs().amax():
            raise ValueError(
                f"quadratic must be symmetric, but differs from its transpose by up to {float(asymmetry):.3g}; "
                "pass (Q + Q.T) / 2, which has the same energies"
            )
        if asymmetry > 0:
            object.__setattr__(self, "quadratic", (self.quadratic + self.quadratic.T) / 2)
        self.range_exponent()

    @classmethod
    def trusted(cls, quadratic: Tensor, linear: Tensor, offset: Tensor) -> QuboFamily:
        """A family from parts that are known to be valid: nothing is checked or converted."""
        family = object.__new__(cls)
        vars(family).update(quadratic=quadratic, linear=linear, offset=offset)
        return family

    @property
    def num_spins(self) -> int:
        """n, the number of spins of each QUBO."""
        return self.linear.shape[0]

    @property
    def num_columns(self) -> int:
        """m, the number of QUBOs."""
        return self.linear.shape[1]

    def energies(self, spins: Tensor) -> Tensor:
        """Energies of one spin vector per column: (…, n, m) → (…, m)."""
        if spins.ndim < 2 or spins.shape[-2:] != self.linear.shape:
            raise ValueError(f"spins must have shape (…, n, m) = (…, {self._shape()}), got {tuple(spins.shape)}")
        spins = spins.to(self.linear)
        return ((self.quadratic @ spins + self.linear) * spins).sum(-2) + self.offset

    def __add__(self, other: QuboFamily) -> QuboFamily:
        if not isinstance(other, QuboFamily):
            return NotImplemented
        if self.linear.shape != other.linear.shape:
            raise ValueError(f"families of different shapes cannot be added: ({self._shape()}), ({other._shape()})")
        return QuboFamily(self.quadratic + other.quadratic, self.linear + other.linear, self.offset + other.offset)

    def __mul__(self, factor: float) -> QuboFamily:
        if not isinstance(factor, int | float):
            return NotImplemented
        return QuboFamily(self.quadratic * factor, self.linear * factor, self.offset * factor)

    __rmul__ = __mul__

    def range_exponent(self) -> int:
        """The exponent of two of the largest of |Q| and |s| where squares may leave the type's range; 0 elsewhere.

        Raises:
            ValueError: The sums of |Q|, |s| and |c| of a column overflow, or all of Q and s is denormal, but not zero.
        """
        parts, limits = (self.quadratic, self.linear, self.offset), torch.finfo(self.linear.dtype)
        sizes = [_largest(part) for part in parts]
        dtype, largest = str(self.linear.dtype).removeprefix("torch."), max(sizes[:2])
        if any(map(math.isnan, sizes)):
            raise ValueError("the numbers of a family must be finite, got NaN; has the training diverged?")
        if (self.num_spins + 1) ** 2 * largest + sizes[2] > limits.max:
            couplings, fields = torch.linalg.vector_norm(parts[0].double(), 1), parts[1].double().abs().sum(0)
            total = float(couplings + fields.amax()) + sizes[2]
            if total > limits.max:
                raise ValueError(
                    f"the sum of |quadratic|, |linear| and |offset| of a column must stay below {limits.max:.2g} in "
                    f"{dtype}, got {total:.2g}; multiply the family by a power of two, which keeps its optima"
                )
        if 0 < largest < limits.tiny:
            raise ValueError(
                f"all numbers of quadratic and linear are below {limits.tiny:.2g}, where {dtype} loses digits; "
                "multiply them by a power of two before they get that small"
            )
        exponent, end = math.frexp(largest)[1], math.frexp(limits.max)[1]
        return min(exponent, end - 2) if abs(exponent) > end // 4 else 0  # 2 to its power is within the range, too

    def in_range(self, exponent: int) -> QuboFamily:
        """The family without offset times 2^−exponent, which has the same optima.

        Raises:
            ValueError: A number would be rounded: the family's numbers span more than their type can hold.
        """
        plain = self.without_offset()
        found = plain * math.ldexp(1.0, -exponent)
        pairs = ((plain.quadratic, found.quadratic), (plain.linear, found.linear))
        if not all(torch.equal(scaled * math.ldexp(1.0, exponent), part) for part, scaled in pairs):
            sizes = torch.cat([part.abs().flatten() for part, _ in pairs])
            raise ValueError(
                "the numbers of a family must not differ by more than their type can hold, got some from "
                f"{float(sizes[sizes > 0].amin()):.3g} to {float(sizes.amax()):.3g}; leave out the small ones, or "
                "use float64"
            )
        return found

    def without_offset(self) -> QuboFamily:
        """The family with c = 0: next to a large offset, single precision cannot tell energies apart."""
        return QuboFamily.trusted(self.quadratic, self.linear, torch.zeros_like(self.offset))

    def to(self, *args: Any, **kwargs: Any) -> QuboFamily:
        """The family on another device or in another floating type, as in `Tensor.to`."""
        parts = [t.to(*args, **kwargs) for t in (self.quadratic, self.linear, self.offset)]
        if not parts[0].is_floating_point() or parts[0].dtype in (torch.float16, torch.bfloat16):
            raise ValueError(f"a family is kept in float32 or float64, not in {parts[0].dtype}")
        return QuboFamily.trusted(*parts)

    def to_bqm(self, column: int) -> dimod.BinaryQuadraticModel:
        """Column `column` as a dimod model over SPIN variables 0…n−1, with equal energies."""
        try:
            import dimod
        except ImportError as error:
            raise ImportError("to_bqm needs dimod: pip install 'qpsbgd[dimod]'") from error
        if not -self.num_columns <= column < self.num_columns:
            raise IndexError(f"column {column} is out of range for a family of {self.num_columns} columns")
        quadratic = self.quadratic.double().cpu()
        couplings = (2 * quadratic).triu(1).numpy()
        offset = float(self.offset[column]) + float(quadratic.trace())
        return dimod.BinaryQuadraticModel(self.linear[:, column].double().cpu().numpy(), couplings, offset, dimod.SPIN)

    def __repr__(self) -> str:
        dtype = str(self.linear.dtype).removeprefix("torch.")
        return f"QuboFamily(n={self.num_spins}, m={self.num_columns}, {dtype}, {self.linear.device})"

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

    Examples:
        >>> import torch
        >>> from qpsbgd.qubo import QuboFamily, Solution
        >>> family = QuboFamily([[0.0, 1.0], [1.0, 0.0]], [[1.0], [0.0]])
        >>> solution = Solution.of(family, torch.tensor([[-1.0], [1.0]]), solver="by hand")
        >>> solution.energies.tolist(), solution.proven_optimal.tolist()
        ([-3.0], [False])
    """

    spins: Tensor
    energies: Tensor
    proven_optimal: Tensor
    stats: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, family: QuboFamily, spins: Tensor, *, proven_optimal: Tensor | bool = False, **stats: Any) -> Solution:
        """These spins as a solution of `family`; their energies are computed here."""
        spins = spins.to(family.linear)
        if isinstance(proven_optimal, bool):
            proven_optimal = torch.full((family.num_columns,), proven_optimal, device=spins.device)
        return cls(spins, family.energies(spins), proven_optimal.to(spins.device), stats)

    def with_offset(self, offset: Tensor) -> Solution:
        """The same spins for a family whose offset is larger by `offset` (m,), and on its device."""
        spins, energies, proven = (t.to(offset.device) for t in (self.spins, self.energies, self.proven_optimal))
        return Solution(spins, energies + offset, proven, self.stats)

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


def _largest(values: Tensor) -> float:
    """The largest |value|, NaN if there is one; numpy is several times faster than torch here."""
    found = values.detach().numpy() if values.device.type == "cpu" else values
    return max(-float(found.min()), float(found.max()))


def _as_float(value: Any) -> Tensor:
    tensor = torch.as_tensor(value).detach()
    if tensor.is_complex():
        raise ValueError("a QUBO has real coefficients, got complex ones")
    if not tensor.is_floating_point():
        return tensor.double()
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
