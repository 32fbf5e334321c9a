"""Operations on numbers, dimensions and several values: what residual networks and transformers have between layers."""

from dataclasses import dataclass

import numpy as np

import qpsbgd_runtime.activations as activations
from qpsbgd_runtime.operations import Array, Operation, Shape, Step
from qpsbgd_runtime.rules import Rules, are_axes, are_finite, are_whole, is_list


@dataclass(frozen=True, eq=False)
class Activation(Operation):
    """A smooth function of every number."""

    function: str  # one of `FUNCTIONS`
    slope: float = 0.01  # of "leaky relu" below zero

    def _rules(self) -> Rules:
        right = self.function in FUNCTIONS and isinstance(self.slope, float) and np.isfinite(self.slope)
        yield bool(right), f"a function of {', '.join(FUNCTIONS)}, and a finite slope"

    def _step(self, shape: Shape) -> Step:
        if self.function == "leaky relu":
            slope = np.float32(self.slope)
            return lambda x: np.where(x < 0, slope * x, x)
        return activations.FUNCTIONS[self.function]


FUNCTIONS = tuple(sorted((*activations.FUNCTIONS, "leaky relu")))  # the functions of `Activation`


@dataclass(frozen=True, eq=False)
class Along(Operation):
    """An operation along one dimension, `axis`, which is counted from either end."""

    axis: int

    def dimension(self, shape: Shape) -> int:
        """The dimension counted from the first."""
        return _axis(self.axis, shape)

    def _rules(self) -> Rules:
        yield are_axes((self.axis,)), "a dimension"


@dataclass(frozen=True, eq=False)
class Softmax(Along):
    """exp(x) / Σ exp(x)."""

    def _shape(self, shape: Shape) -> Shape:
        self.dimension(shape)
        return shape

    def _step(self, shape: Shape) -> Step:
        axis = self.dimension(shape) + 1

        def softmax(x: Array) -> Array:
            powers = np.exp(x - x.max(axis, keepdims=True))
            return powers / powers.sum(axis, keepdims=True)

        return softmax


@dataclass(frozen=True, eq=False)
class Normalize(Operation):
    """x / √(mean x² + eps) over the last dimension, where `centred` of x less its mean."""

    eps: float
    centred: bool = True

    def _rules(self) -> Rules:
        right = isinstance(self.eps, float) and 0 <= self.eps < np.inf and isinstance(self.centred, bool)
        yield right, "a positive number to add, and whether to centre"

    def _step(self, shape: Shape) -> Step:
        eps, centred = np.float32(self.eps), self.centred

        def normalize(x: Array) -> Array:
            if centred:
                x = x - x.mean(-1, keepdims=True)
            return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)

        return normalize


@dataclass(frozen=True, eq=False)
class Mean(Operation):
    """The mean over some dimensions, which become 1 or, unless `keep`, disappear."""

    axes: tuple[int, ...]
    keep: bool = False

    def _rules(self) -> Rules:
        right = are_axes(self.axes) and len(self.axes) > 0 and isinstance(self.keep, bool)
        yield right, "dimensions, and whether to keep them"

    def places(self, shape: Shape) -> Shape:
        """The dimensions, counted from the first, in order."""
        return tuple(sorted({_axis(axis, shape) for axis in self.axes}))

    def _shape(self, shape: Shape) -> Shape:
        places = self.places(shape)
        return tuple(1 if at in places else size for at, size in enumerate(shape) if self.keep or at not in places)

    def _step(self, shape: Shape) -> Step:
        axes, keep = tuple(at + 1 for at in self.places(shape)), self.keep
        return lambda x: x.mean(axes, dtype=np.float32, keepdims=keep)


@dataclass(frozen=True, eq=False)
class Transpose(Operation):
    """The dimensions in another order: dimension k of what comes out is dimension order[k] of what goes in."""

    order: Shape

    def _rules(self) -> Rules:
        yield are_axes(self.order), "an order of dimensions"

    def _shape(self, shape: Shape) -> Shape:
        if sorted(self.order) != list(range(len(shape))):
            raise ValueError(f"{len(self.order)} dimensions")
        return tuple(shape[at] for at in self.order)

    def _step(self, shape: Shape) -> Step:
        order = [at + 1 for at in self.order]
        return lambda x: x.transpose(0, *order)


@dataclass(frozen=True, eq=False)
class Slice(Along):
    """What stands from `start` to before `stop` along a dimension; it disappears unless `keep`, where it must be 1."""

    start: int
    stop: int
    keep: bool = True

    def _rules(self) -> Rules:
        right = are_axes((self.axis,)) and are_whole((self.start, self.stop), least=0) and isinstance(self.keep, bool)
        yield right, "a dimension, a start and a stop"

    def _shape(self, shape: Shape) -> Shape:
        axis = self.dimension(shape)
        if not 0 <= self.start < self.stop <= shape[axis] or not (self.keep or self.stop == self.start + 1):
            raise ValueError(f"at least {self.stop} numbers along dimension {axis}")
        return (*shape[:axis], *((self.stop - self.start,) if self.keep else ()), *shape[axis + 1 :])

    def _step(self, shape: Shape) -> Step:
        before = (slice(None),) * (self.dimension(shape) + 1)
        place = slice(self.start, self.stop) if self.keep else self.start
        return lambda x: x[(*before, place)]


@dataclass(frozen=True, eq=False)
class Take(Along):
    """What stands at some places along a dimension, in their order: strided ranges, padding, nearest neighbours."""

    places: Array  # integers (size,) along the dimension; −1 for `fill`
    fill: float = 0.0  # what stands where nothing is taken

    def _rules(self) -> Rules:
        right = are_axes((self.axis,)) and isinstance(self.fill, float) and bool(np.isfinite(self.fill))
        yield right, "a dimension and a finite number to fill in"
        places = self.places
        yield is_list(places, "i4", "i8") and int(places.min()) >= -1, "places from 0 on, or -1 to fill in"

    def _shape(self, shape: Shape) -> Shape:
        axis, most = self.dimension(shape), int(self.places.max())
        if most >= shape[axis]:
            raise ValueError(f"at least {most + 1} numbers along dimension {axis}")
        return (*shape[:axis], len(self.places), *shape[axis + 1 :])

    def _step(self, shape: Shape) -> Step:
        axis, places, fill = self.dimension(shape) + 1, self.places, np.float32(self.fill)
        empty = places < 0

        def take(x: Array) -> Array:
            taken = np.take(x, places, axis)
            if empty.any():
                np.moveaxis(taken, axis, -1)[..., empty] = fill
            return taken

        return take


@dataclass(frozen=True, eq=False)
class Embedding(Operation):
    """The row of a table (rows, width) for every integer."""

    table: Array

    def _rules(self) -> Rules:
        table = self.table
        yield are_finite(table) and table.ndim == 2 and table.size > 0, "a finite table (rows, width)"

    def _shape(self, shape: Shape) -> Shape:
        return (*shape, self.table.shape[1])

    def _step(self, shape: Shape) -> Step:
        table = self.table

        def look_up(x: Array) -> Array:
            rows = x.astype(np.int64)
            if (rows != x).any() or (rows < 0).any() or (rows >= len(table)).any():
                raise ValueError(f"{self} takes integers from 0 to {len(table) - 1}, got others")
            return np.asarray(table[rows])

        return look_up


def _axis(axis: int, shape: Shape) -> int:
    """A dimension counted from the first."""
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"a dimension {axis}")
    return axis % len(shape)


@dataclass(frozen=True, eq=False)
class Combine(Operation):
    """Two values, or one and a constant, number by number; dimensions of size 1 are repeated."""

    how: str  # one of `COMBINATIONS`
    constant: Array | None = None  # what the second value is where only one goes in, of at most as many dimensions

    def _rules(self) -> Rules:
        yield self.how in COMBINATIONS, f"a way of {', '.join(COMBINATIONS)}"
        yield self.constant is None or are_finite(self.constant), "a finite constant or none"

    @property
    def count(self) -> int:
        """Two, or one and the constant."""
        return 2 if self.constant is None else 1

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        second = others[0] if self.constant is None else self.constant.shape
        if len(second) > len(first) or (self.constant is None and len(second) != len(first)):
            raise ValueError("values of equally many dimensions")
        second = (*(1,) * (len(first) - len(second)), *second)
        if any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
            raise ValueError("values of one shape, or of size 1 where they differ")
        return tuple(map(max, first, second))

    def _step(self, shape: Shape) -> Step:
        combine, constant = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[self.how], self.constant
        return combine if constant is None else lambda x: combine(x, constant)


COMBINATIONS = ("add", "subtract", "multiply")  # the ways of `Combine`


@dataclass(frozen=True, eq=False)
class Concatenate(Along):
    """Values concatenated along a dimension."""

    count = None

    def _shape(self, first: Shape, *others: Shape) -> Shape:
        axis = self.dimension(first)
        if any((*shape[:axis], *shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]) for shape in others):
            raise ValueError(f"values whose shapes differ only in dimension {axis}")
        return (*first[:axis], sum(shape[axis] for shape in (first, *others)), *first[axis + 1 :])

    def _step(self, shape: Shape) -> Step:
        axis = self.dimension(shape) + 1
        return lambda *values: np.concatenate(values, axis)


@dataclass(frozen=True, eq=False)
class Product(Operation):
    """Matrix products (…, a, b) (…, b, c) → (…, a, c)."""

    count = 2

    def _shape(self, left: Shape, right: Shape) -> Shape:
        if min(len(left), len(right)) < 2 or left[:-2] != right[:-2] or left[-1] != right[-2]:
            raise ValueError("matrices (…, a, b) and (…, b, c)")
        return (*left[:-1], right[-1])

    def _step(self, shape: Shape) -> Step:
        return np.matmul
