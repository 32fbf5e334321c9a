"""Operations on numbers, dimensions and several values: what residual networks and transformers have between layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from qpsbgd.deploy.operations import Array, Operation, Shape, Value


@dataclass(frozen=True, eq=False)
class Activation(Operation):
    """A smooth function of every number.

    Attributes:
        function: One of `FUNCTIONS`.
        slope: Of "leaky relu" below zero.
    """

    function: str
    slope: float = 0.01


FUNCTIONS = ("gelu", "gelu tanh", "hard sigmoid", "hard swish", "leaky relu", "sigmoid", "silu", "tanh")
"""The functions of `Activation`."""


@dataclass(frozen=True, eq=False)
class Softmax(Operation):
    """exp(x) / Σ exp(x) along one dimension."""

    axis: int

    def shape_after(self, shape: Shape) -> Shape:
        """The same shape."""
        _axis(self, self.axis, shape)
        return shape


@dataclass(frozen=True, eq=False)
class Normalize(Operation):
    """x / √(mean x² + eps) over the last dimension, where `centred` of x less its mean."""

    eps: float
    centred: bool = True


@dataclass(frozen=True, eq=False)
class Mean(Operation):
    """The mean over some dimensions, which become 1 or, unless `keep`, disappear."""

    axes: tuple[int, ...]
    keep: bool = False

    def places(self, shape: Shape) -> Shape:
        """The dimensions, counted from the first, in order."""
        return tuple(sorted({_axis(self, axis, shape) for axis in self.axes}))

    def shape_after(self, shape: Shape) -> Shape:
        """The shape without these dimensions, or with 1 there."""
        places = self.places(shape)
        return tuple(1 if at in places else size for at, size in enumerate(shape) if self.keep or at not in places)


@dataclass(frozen=True, eq=False)
class Transpose(Operation):
    """The dimensions in another order: dimension k of what comes out is dimension order[k] of what goes in."""

    order: Shape

    def shape_after(self, shape: Shape) -> Shape:
        """The sizes in the new order."""
        if sorted(self.order) != list(range(len(shape))):
            raise self._refusal(f"{len(self.order)} dimensions", shape)
        return tuple(shape[at] for at in self.order)


@dataclass(frozen=True, eq=False)
class Slice(Operation):
    """What stands from `start` to before `stop` along a dimension; it disappears unless `keep`, where it must be 1."""

    axis: int
    start: int
    stop: int
    keep: bool = True

    def shape_after(self, shape: Shape) -> Shape:
        """The shape with another size there."""
        axis = _axis(self, self.axis, shape)
        if not 0 <= self.start < self.stop <= shape[axis] or not (self.keep or self.stop == self.start + 1):
            raise self._refusal(f"at least {self.stop} numbers along dimension {axis}", shape)
        return (*shape[:axis], *((self.stop - self.start,) if self.keep else ()), *shape[axis + 1 :])


def _axis(operation: Operation, axis: int, shape: Shape) -> int:
    """A dimension counted from the first."""
    if not -len(shape) <= axis < len(shape):
        raise operation._refusal(f"a dimension {axis}", shape)
    return axis % len(shape)


@dataclass(frozen=True, eq=False)
class _Joint(Operation, ABC):
    """An operation on several values of real numbers."""

    def result(self, *values: Value) -> Value:
        """What comes out of what goes in."""
        kinds = [self.kind_after(value.kind) for value in values]
        try:
            return Value(kinds[0], self._shape([value.shape for value in values]))
        except ValueError as error:
            shapes = ", ".join(str(value.shape) for value in values)
            raise ValueError(f"{self} takes {error}, got shapes {shapes} per sample") from None

    @abstractmethod
    def _shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of what comes out; a ValueError says what must go in."""


@dataclass(frozen=True, eq=False)
class Combine(_Joint):
    """Two values, or one and a constant, number by number; dimensions of size 1 are repeated.

    Attributes:
        how: One of `COMBINATIONS`.
        constant: What the second value is where only one goes in, of at most as many dimensions.
    """

    how: str
    constant: Array | None = None

    def _shape(self, shapes: Sequence[Shape]) -> Shape:
        if len(shapes) != (2 if self.constant is None else 1):
            raise ValueError("two values" if self.constant is None else "one value")
        first, second = shapes[0], shapes[1] if self.constant is None else self.constant.shape
        if len(second) > len(first) or (self.constant is None and len(second) != len(first)):
            raise ValueError("values of equally many dimensions")
        second = (*(1,) * (len(first) - len(second)), *second)
        if any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
            raise ValueError("values of one shape, or of size 1 where they differ")
        return tuple(map(max, first, second))


COMBINATIONS = ("add", "subtract", "multiply")
"""The ways of `Combine`."""


@dataclass(frozen=True, eq=False)
class Concatenate(_Joint):
    """Values one behind the other along a dimension."""

    axis: int

    def _shape(self, shapes: Sequence[Shape]) -> Shape:
        first = shapes[0]
        axis = _axis(self, self.axis, first)
        if any((*one[:axis], *one[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]) for one in shapes[1:]):
            raise ValueError(f"values whose shapes differ only in dimension {axis}")
        return (*first[:axis], sum(one[axis] for one in shapes), *first[axis + 1 :])


@dataclass(frozen=True, eq=False)
class Product(_Joint):
    """Matrix products (…, a, b) (…, b, c) → (…, a, c)."""

    def _shape(self, shapes: Sequence[Shape]) -> Shape:
        if len(shapes) != 2:
            raise ValueError("two values")
        left, right = shapes
        if min(map(len, shapes)) < 2 or left[:-2] != right[:-2] or left[-1] != right[-2]:
            raise ValueError("matrices (…, a, b) and (…, b, c)")
        return (*left[:-1], right[-1])


TENSOR_OPERATIONS = (Activation, Softmax, Normalize, Mean, Transpose, Slice, Combine, Concatenate, Product)
"""All operations of this file."""
