"""A trained network as a graph of simple operations: what every target, from packed files to C, is made from.

Operations stand in the order in which they are computed. Value 0 is the network's input, value k the result of the
k-th operation; an operation names the values that it takes by these numbers, or none for the one before it. The last
value is the output. Values of one sample, (features,), (channels, …) or (positions, features), are of these kinds:

    real         float32
    bits         ±1
    int8, uint8  whole numbers of up to 8 bits, which count a power of two
    ints         sums of ±1 times bits or whole numbers of 8 bits
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Kind = Literal["real", "bits", "int8", "uint8", "ints"]
SMALL: tuple[Kind, ...] = ("bits", "int8", "uint8")
"""What layers with integer sums take."""

_MOST_TAPS = 2**26  # pixels of all windows along one dimension; a window over 8000 of as many pixels has fewer


class Value(NamedTuple):
    """The kind and the shape of what stands between operations, for one sample."""

    kind: Kind
    shape: Shape


@dataclass(frozen=True, eq=False)
class Weights:
    """Real weights, or planes of signs.

    Attributes:
        array: Real weights (units, …) in float32, or planes (bits, units, …) of booleans, where True is +1.
        coefficients: c_b of every plane: the weights are Σ_b c_b · ±1. One number per plane, or an array (bits, units)
            in float32; without meaning for real weights.
    """

    array: Array
    coefficients: tuple[float, ...] | Array = (1.0,)

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


@dataclass(frozen=True)
class Window:
    """A window that moves over the dimensions of an image.

    Attributes:
        size: Of the window, one number per dimension.
        stride: Steps between windows.
        sides: What is added before and after every dimension.
        dilation: Steps between the pixels of a window.
        mode: What is added: "zeros", "reflect", "replicate" or "circular". Pools leave out what is added.
    """

    size: Shape
    stride: Shape
    sides: tuple[tuple[int, int], ...]
    dilation: Shape
    mode: str = "zeros"

    def taps(self, image: Shape) -> list[Array]:
        """For each dimension the index (positions, window) of the image's pixel, or −1 where zeros are added.

        Raises:
            ValueError: The window does not fit the image.
        """
        if len(image) != len(self.size):
            raise ValueError(f"images of {len(self.size)} dimensions and channels")
        return [self._taps(size, dimension) for dimension, size in enumerate(image)]

    def rows_and_columns(self, image: Shape) -> tuple[Array, Array]:
        """`taps` of an image of two dimensions; one of one dimension is one row."""
        taps = self.taps(image)
        return (taps[0], taps[1]) if len(taps) == 2 else (np.zeros((1, 1), np.int64), taps[0])

    def _taps(self, size: int, dimension: int) -> Array:
        window, stride = self.size[dimension], self.stride[dimension]
        sides, dilation = self.sides[dimension], self.dilation[dimension]
        count = (size + sum(sides) - dilation * (window - 1) - 1) // stride + 1
        most = {"reflect": size - 1, "circular": size}.get(self.mode, max(sides))
        if count < 1 or max(sides) > most:
            raise ValueError("larger images")
        if count * window > _MOST_TAPS:
            raise ValueError("smaller windows, or images with less padding")
        taps = np.arange(count)[:, None] * stride + np.arange(window) * dilation - sides[0]
        if self.mode == "replicate":
            return taps.clip(0, size - 1)
        if self.mode == "circular":
            return taps % size
        if self.mode == "reflect":
            return (size - 1) - abs((size - 1) - abs(taps))
        return np.where((taps >= 0) & (taps < size), taps, -1)


@dataclass(frozen=True, eq=False)
class Operation:
    """One step of the computation.

    Attributes:
        name: Of the module that it comes from, for messages.
        inputs: Numbers of the values that go in; none for the value before.
        takes: The kinds of values that go in.
        gives: The kind that comes out; empty for the same.
    """

    name: str
    inputs: tuple[int, ...] = field(default=(), kw_only=True)

    takes: ClassVar[tuple[Kind, ...]] = ("real",)
    gives: ClassVar[Kind | Literal[""]] = ""

    def result(self, *values: Value) -> Value:
        """What comes out of what goes in.

        Raises:
            ValueError: The operation does not take these values.
        """
        if len(values) != 1:
            raise ValueError(f"{self} takes one input, got {len(values)}")
        return Value(self.kind_after(values[0].kind), self.shape_after(values[0].shape))

    def kind_after(self, kind: Kind) -> Kind:
        """The kind of values that come out.

        Raises:
            ValueError: Values of this kind cannot go in.
        """
        if kind not in self.takes:
            raise ValueError(f"{self} takes values of kind {' or '.join(self.takes)}, got {kind}")
        return self.gives or kind

    def shape_after(self, shape: Shape) -> Shape:
        """The shape of what comes out for one sample of this shape.

        Raises:
            ValueError: The operation does not take this shape.
        """
        return shape

    def _refusal(self, wanted: object, shape: Shape) -> ValueError:
        return ValueError(f"{self} takes {wanted}, got shape {shape} per sample")

    def __str__(self) -> str:
        return f"{self.name} ({type(self).__name__})"


@dataclass(frozen=True, eq=False)
class Dense(Operation):
    """Sums of weights (m, n) times inputs (…, n); of whole numbers in, whole numbers come out.

    Attributes:
        weights: Of one plane of signs if bits or numbers of 8 bits go in.
        integer: Whether those go in.
    """

    weights: Weights
    integer: bool = False

    takes = ("real", *SMALL)

    def kind_after(self, kind: Kind) -> Kind:
        """Ints of whole numbers, reals of reals."""
        return _sum_kind(self, kind)

    def shape_after(self, shape: Shape) -> Shape:
        """(…, n) → (…, m)."""
        units, inputs = self.weights.shape
        if shape[-1:] != (inputs,):
            hint = " (is nn.Flatten() missing before it?)" if len(shape) > 1 else ""
            raise self._refusal(f"{inputs} numbers{hint}", shape)
        return (*shape[:-1], units)


@dataclass(frozen=True, eq=False)
class Convolution(Operation):
    """Sums of weights (m, C / groups, …window) times patches; of whole numbers in, whole numbers come out.

    Attributes:
        weights: Of one plane of signs if bits or numbers of 8 bits go in.
        window: Which patches.
        groups: Parts of the channels that are not connected to each other.
        integer: Whether those go in.
    """

    weights: Weights
    window: Window
    groups: int = 1
    integer: bool = False

    takes = ("real", *SMALL)

    def kind_after(self, kind: Kind) -> Kind:
        """Ints of whole numbers, reals of reals."""
        return _sum_kind(self, kind)

    def shape_after(self, shape: Shape) -> Shape:
        """(C, …) → (m, …)."""
        units, channels = self.weights.shape[:2]
        if not shape or shape[0] != channels * self.groups:
            raise self._refusal(f"{channels * self.groups} channels", shape)
        return (units, *_image_after(self, self.window, shape))


def _sum_kind(operation: Dense | Convolution, kind: Kind) -> Kind:
    if operation.integer != (kind in SMALL):
        wanted = " or ".join(SMALL) if operation.integer else "real"
        raise ValueError(f"{operation} takes values of kind {wanted}, got {kind}")
    return "ints" if operation.integer else "real"


def _image_after(operation: Operation, window: Window, shape: Shape) -> Shape:
    try:
        return tuple(len(taps) for taps in window.taps(shape[1:]))
    except ValueError as error:
        raise operation._refusal(error, shape) from None


@dataclass(frozen=True, eq=False)
class Sign(Operation):
    """+1 where x ≥ 0, −1 elsewhere."""

    gives = "bits"


@dataclass(frozen=True, eq=False)
class Spins(Operation):
    """Bits as real numbers ±1."""

    takes = ("bits",)
    gives = "real"


@dataclass(frozen=True, eq=False)
class Clip(Operation):
    """x within [low, high]."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class MaxPool(Operation):
    """The largest value of each window, of every channel."""

    window: Window

    takes = ("real", *SMALL, "ints")

    def shape_after(self, shape: Shape) -> Shape:
        """(C, …) → (C, …)."""
        return (*shape[:1], *_image_after(self, self.window, shape))


@dataclass(frozen=True, eq=False)
class AveragePool(Operation):
    """The mean of each window, of every channel.

    Attributes:
        window: Which windows; None for one window, the whole image.
        counts_padding: Whether zeros that were added count as values.
        dimensions: Of the image; those of a whole-image average become 1 each.
    """

    window: Window | None
    counts_padding: bool
    dimensions: int

    def window_for(self, shape: Shape) -> Window:
        """The window for images of this shape."""
        ones = (1,) * self.dimensions
        return self.window or Window(shape[1:], ones, ((0, 0),) * self.dimensions, ones)

    def shape_after(self, shape: Shape) -> Shape:
        """(C, …) → (C, …)."""
        if len(shape) != self.dimensions + 1:
            raise self._refusal(f"images of {self.dimensions} dimensions and channels", shape)
        return (shape[0], *_image_after(self, self.window_for(shape), shape))


@dataclass(frozen=True, eq=False)
class Reshape(Operation):
    """The same values in another shape; one number may be −1, for what is left."""

    shape: Shape

    takes = ("real", *SMALL, "ints")

    def shape_after(self, shape: Shape) -> Shape:
        """The new shape."""
        count, known = math.prod(shape), math.prod(size for size in self.shape if size != -1)
        if count % known or (-1 not in self.shape and count != known):
            raise self._refusal(f"what can have the shape {self.shape}", shape)
        return tuple(count // known if size == -1 else size for size in self.shape)
