"""A trained network as a graph of simple operations: what every target, from packed files to C, is made from.

Operations stand in the order in which they are computed. Value 0 is the network's input, value k the result of the
k-th operation; an operation names the values that it takes by these numbers, or none for the one before it. The last
value is the output. Values of one sample, (features,), (channels, …) or (positions, features), are of these kinds:

    real         float32
    bits         ±1
    int8, uint8  integers of up to 8 bits, which count a power of two
    ints         sums of ±1 times bits or integers of 8 bits
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from qpsbgd_runtime.rules import Rules, are_finite, are_whole

if TYPE_CHECKING:
    from qpsbgd_runtime.image_operations import Window

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Step = Callable[..., Array]
"""A function of batches (B, …) of values; bits are int8 ±1, other integers int8, uint8 or, sums, int32."""
Kind = Literal["real", "bits", "int8", "uint8", "ints"]
SMALL: tuple[Kind, ...] = ("bits", "int8", "uint8")  # what layers with integer sums take

_MOST_SUM = 2**31 - 1  # sums have 32 bits, in kernels and in C


class Value(NamedTuple):
    """The kind and the shape of what stands between operations, for one sample."""

    kind: Kind
    shape: Shape


@dataclass(frozen=True, eq=False)
class Weights:
    """Real weights, or planes of signs."""

    array: Array  # real weights (units, …) in float32, or planes (bits, units, …) of booleans, where True is +1
    coefficients: tuple[float, ...] | Array = (1.0,)  # c_b: weights are Σ_b c_b · ±1; per plane, or (bits, units)

    @property
    def binary(self) -> bool:
        """Whether the weights are signs."""
        return bool(self.array.dtype == bool)

    @property
    def shape(self) -> Shape:
        """(units, …), without the dimension of the planes."""
        shape: Shape = self.array.shape
        return shape[1:] if self.binary else shape

    def values(self) -> Array:
        """The weights as float32, in `shape`."""
        if not self.binary:
            return self.array
        around = (1,) * (len(self.shape) - 1)
        factors = [np.reshape(np.float32(c), (-1, *around)) for c in self.coefficients]
        planes = [
            c * np.where(plane, np.float32(1), np.float32(-1)) for c, plane in zip(factors, self.array, strict=True)
        ]
        return np.asarray(sum(planes[1:], planes[0]))

    def rules(self, *, integer: bool) -> Rules:
        """What the weights of a layer must be, with integer sums or without."""
        right = len(self.shape) >= 2 and 0 not in self.array.shape and self.array.dtype in (bool, np.float32)
        yield right, "real or binary weights, at least one"
        numbers = self.coefficients
        if not self.binary:
            yield not integer and are_finite(self.array), "finite weights"
        elif isinstance(numbers, np.ndarray):
            right = are_finite(numbers) and numbers.shape == self.array.shape[:2] and not integer
            yield right, "finite coefficients, one per plane and unit"
        else:
            right = isinstance(numbers, tuple) and all(isinstance(c, float) and np.isfinite(c) for c in numbers)
            yield right, "finite coefficients"
            right = len(numbers) == len(self.array) and (len(numbers) == 1 or not integer)
            yield right, "one coefficient a plane"


def words_of(bits: Array, word: int = 64) -> Array:
    """Booleans (…, n) as words (…, ⌈n / word⌉) of `word` bits, 1 for +1; incomplete ones end in zeros."""
    missing = [(0, 0)] * (bits.ndim - 1) + [(0, -bits.shape[-1] % word)]
    packed = np.packbits(np.ascontiguousarray(np.pad(bits, missing)), axis=-1, bitorder="little")
    return packed.view(f"<u{word // 8}").astype(f"u{word // 8}")


@dataclass(frozen=True, eq=False)
class Operation:
    """One step of the computation."""

    name: str  # of the module that it comes from, for messages
    inputs: tuple[int, ...] = field(default=(), kw_only=True)  # numbers of what goes in; none for the one before

    @property
    def takes(self) -> tuple[Kind, ...]:
        """The kinds of values that may go in."""
        return ("real",)

    @property
    def gives(self) -> Kind | None:
        """The kind that comes out; None for the same."""
        return None

    @property
    def count(self) -> int | None:
        """How many values go in; None for any number."""
        return 1

    def rules(self) -> Rules:
        """What its parts must be; raises whatever they raise that are not even of the right type."""
        yield are_whole(self.inputs, least=0), "numbers of values"
        yield from self._rules()

    def _rules(self) -> Rules:
        """The rules of the parts that operations of this kind have. As a rule none."""
        yield from ()

    def result(self, *values: Value) -> Value:
        """What comes out of what goes in."""
        if self.count not in (None, len(values)):
            raise ValueError(f"{self} takes {'one input' if self.count == 1 else 'two inputs'}, got {len(values)}")
        for value in values:
            if value.kind not in self.takes:
                raise ValueError(f"{self} takes values of kind {' or '.join(self.takes)}, got {value.kind}")
        return Value(self.gives or values[0].kind, self.shape_after(*(value.shape for value in values)))

    def shape_after(self, *shapes: Shape) -> Shape:
        """The shape of what comes out for one sample, of values of these shapes."""
        try:
            return self._shape(*shapes)
        except ValueError as error:
            came = f"shape {shapes[0]}" if self.count == 1 else f"shapes {', '.join(map(str, shapes))}"
            raise ValueError(f"{self} takes {error}, got {came} per sample (no batch, channels first)") from None

    def _shape(self, *shapes: Any, **_: Any) -> Shape:
        """What `shape_after` returns; a ValueError says what must go in. As a rule the same shape."""
        return shapes[0]

    def step(self, shape: Shape) -> Step:
        """What numpy computes of batches of values, of which the first has this shape per sample."""
        return self._step(shape)

    def _step(self, shape: Shape) -> Step:
        """What `step` returns; without it, an operation is computed by compiled programs alone."""
        raise TypeError(f"{self} has no step in numpy")

    def window_for(self, shape: Shape) -> Window | None:
        """The window that moves over values of this shape; None for operations without one."""
        return None

    def __str__(self) -> str:
        return f"{self.name} ({type(self).__name__})"


class Weighted(Operation):
    """Sums of weights times inputs; of integers in, integers come out.

    Attributes:
        weights: Of one plane of signs if bits or numbers of 8 bits go in.
        integer: Whether those go in.
    """

    weights: Weights
    integer: bool

    @property
    def takes(self) -> tuple[Kind, ...]:
        """Bits or numbers of 8 bits, or reals."""
        return SMALL if self.integer else ("real",)

    @property
    def gives(self) -> Kind:
        """Ints of integers, reals of reals."""
        return "ints" if self.integer else "real"

    def _rules(self) -> Rules:
        are_weights = isinstance(self.weights, Weights) and isinstance(self.weights.array, np.ndarray)
        yield are_weights and isinstance(self.integer, bool), "weights, and whether inputs are bits"
        yield from self.weights.rules(integer=self.integer)

    def largest_sum(self, kind: Kind) -> int:
        """The largest sum of inputs of a kind, one of `SMALL`."""
        return math.prod(self.weights.shape[1:]) * {"bits": 1, "int8": 128}.get(kind, 255)

    def result(self, *values: Value) -> Value:
        """As of any operation; sums of integers must fit into 32 bits."""
        result = super().result(*values)
        if self.integer and (largest := self.largest_sum(values[0].kind)) > _MOST_SUM:
            raise ValueError(
                f"{self} must have sums of at most {_MOST_SUM}, but its inputs may add up to {largest}; use fewer "
                "inputs per unit: groups, or layers whose outputs are added"
            )
        return result


@dataclass(frozen=True, eq=False)
class Dense(Weighted):
    """Sums of weights (m, n) times inputs (…, n)."""

    weights: Weights
    integer: bool = False

    def _rules(self) -> Rules:
        yield from super()._rules()
        yield len(self.weights.shape) == 2, "weights (m, n)"

    def _shape(self, shape: Shape) -> Shape:
        units, inputs = self.weights.shape
        if shape[-1:] != (inputs,):
            hint = " (is nn.Flatten() missing before it?)" if len(shape) > 1 else ""
            raise ValueError(f"{inputs} numbers{hint}")
        return (*shape[:-1], units)


@dataclass(frozen=True, eq=False)
class Sign(Operation):
    """+1 where x ≥ 0, −1 elsewhere."""

    gives = "bits"

    def _step(self, shape: Shape) -> Step:
        return lambda x: 2 * (x >= 0).view(np.int8) - 1


@dataclass(frozen=True, eq=False)
class Spins(Operation):
    """Bits as real numbers ±1."""

    takes = ("bits",)
    gives = "real"

    def _step(self, shape: Shape) -> Step:
        return lambda x: x.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Clip(Operation):
    """x within [low, high]."""

    low: float
    high: float

    def _rules(self) -> Rules:
        are_numbers = isinstance(self.low, int | float) and isinstance(self.high, int | float)
        yield are_numbers and float(self.low) <= float(self.high), "two limits in order"

    def _step(self, shape: Shape) -> Step:
        """The step for single numbers; others are parts of compiled programs."""
        low, high = np.float32(self.low), np.float32(self.high)
        return lambda x: x.clip(low, high)


@dataclass(frozen=True, eq=False)
class Reshape(Operation):
    """The same values in another shape; one number may be −1, for what is left."""

    shape: Shape

    takes = ("real", *SMALL, "ints")

    def _rules(self) -> Rules:
        right = are_whole(self.shape, least=-1) and 0 not in self.shape and self.shape.count(-1) <= 1
        yield right, "a shape of integers"

    def _shape(self, shape: Shape) -> Shape:
        count, known = math.prod(shape), math.prod(size for size in self.shape if size != -1)
        if count % known or (-1 not in self.shape and count != known):
            raise ValueError(f"what can have the shape {self.shape}")
        return tuple(count // known if size == -1 else size for size in self.shape)

    def _step(self, shape: Shape) -> Step:
        after = self.shape_after(shape)
        return lambda x: x.reshape(len(x), *after)
