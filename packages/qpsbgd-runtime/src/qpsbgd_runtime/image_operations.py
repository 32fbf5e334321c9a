"""Operations on images (channels, …) of one or two dimensions: windows that move over them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qpsbgd_runtime.operations import SMALL, Array, Operation, Shape, Step, Weighted, Weights
from qpsbgd_runtime.rules import Rules, are_whole

MODES = ("zeros", "reflect", "replicate", "circular")
MOST_TAPS = 2**26
"""Pixels of all windows along the dimensions of images, for which there are tables; a window over 8000 of as many
pixels has fewer."""


@dataclass(frozen=True)
class Window:
    """A window that moves over the dimensions of an image."""

    size: Shape  # of the window, one number per dimension
    stride: Shape  # steps between windows
    sides: tuple[tuple[int, int], ...]  # what is added before and after every dimension
    dilation: Shape  # steps between the pixels of a window
    mode: str = "zeros"  # what is added, one of `MODES`. Pools leave out what is added

    def taps(self, image: Shape) -> list[Array]:
        """For each dimension the index (positions, window) of the image's pixel, or −1 where zeros are added."""
        pairs = zip(image, self.positions(image), strict=True)
        return [self._taps(size, count, dimension) for dimension, (size, count) in enumerate(pairs)]

    def positions(self, image: Shape) -> Shape:
        """How many windows there are along each dimension; raises as `taps` does."""
        if len(image) != len(self.size):
            raise ValueError(f"images of {len(self.size)} dimensions and channels")
        return tuple(self._count(size, dimension) for dimension, size in enumerate(image))

    def count_taps(self, image: Shape) -> int:
        """How many numbers `taps` gives; raises as it does."""
        return sum(count * size for count, size in zip(self.positions(image), self.size, strict=True))

    def rows_and_columns(self, image: Shape) -> tuple[Array, Array]:
        """`taps` of an image of two dimensions; one of one dimension is one row."""
        taps = self.taps(image)
        return (taps[0], taps[1]) if len(taps) == 2 else (np.zeros((1, 1), np.int64), taps[0])

    def _count(self, size: int, dimension: int) -> int:
        window, sides = self.size[dimension], self.sides[dimension]
        count = (size + sum(sides) - self.dilation[dimension] * (window - 1) - 1) // self.stride[dimension] + 1
        most = {"reflect": size - 1, "circular": size}.get(self.mode, max(sides))
        if count < 1 or max(sides) > most:
            raise ValueError("larger images")
        if count * window > MOST_TAPS:
            raise ValueError("smaller windows, or images with less padding")
        return count

    def _taps(self, size: int, count: int, dimension: int) -> Array:
        window, stride, dilation = self.size[dimension], self.stride[dimension], self.dilation[dimension]
        sides = self.sides[dimension]
        taps = np.arange(count)[:, None] * stride + np.arange(window) * dilation - sides[0]
        if self.mode == "replicate":
            return taps.clip(0, size - 1)
        if self.mode == "circular":
            return taps % size
        if self.mode == "reflect":
            return (size - 1) - abs((size - 1) - abs(taps))
        return np.where((taps >= 0) & (taps < size), taps, -1)


def _window_rules(window: Any) -> Rules:
    right = isinstance(window, Window) and window.mode in MODES
    yield right, f"a window with a mode of {', '.join(MODES)}"
    parts = (window.size, window.stride, window.dilation)
    right = all(are_whole(part, least=1) and len(part) == len(window.size) for part in parts)
    right = right and isinstance(window.sides, tuple) and len(window.sides) == len(window.size)
    right = right and all(are_whole(pair, least=0) and len(pair) == 2 for pair in window.sides)
    yield right and len(window.size) in (1, 2), "a window of integers, in one or two dimensions"


@dataclass(frozen=True, eq=False)
class Convolution(Weighted):
    """Sums of weights (m, C / groups, …window) times patches."""

    weights: Weights
    window: Window  # which patches
    groups: int = 1  # parts of the channels that are not connected to each other
    integer: bool = False

    def _rules(self) -> Rules:
        yield from super()._rules()
        yield from _window_rules(self.window)
        yield self.weights.shape[2:] == self.window.size, "weights of the window's size"
        whole = are_whole((self.groups,), least=1) and not self.weights.shape[0] % self.groups
        yield whole, "groups of as many units each"

    def window_for(self, shape: Shape) -> Window:
        """The same for all shapes."""
        return self.window

    def _shape(self, shape: Shape) -> Shape:
        units, channels = self.weights.shape[:2]
        if not shape or shape[0] != channels * self.groups:
            raise ValueError(f"{channels * self.groups} channels")
        return (units, *self.window.positions(shape[1:]))


@dataclass(frozen=True, eq=False)
class MaxPool(Operation):
    """The largest value of each window, of every channel."""

    window: Window

    takes = ("real", *SMALL, "ints")

    def _rules(self) -> Rules:
        yield from _window_rules(self.window)

    def window_for(self, shape: Shape) -> Window:
        """The same for all shapes."""
        return self.window

    def _shape(self, shape: Shape) -> Shape:
        return (*shape[:1], *self.window.positions(shape[1:]))

    def _step(self, shape: Shape) -> Step:
        """The largest of integers, pixel by pixel of the window."""
        window, after = self.window, self.shape_after(shape)
        lines = list(zip(window.size, window.stride, window.dilation, after[1:], strict=True))
        places: list[tuple[Any, ...]] = [
            tuple(
                slice(at * gap, at * gap + stride * (count - 1) + 1, stride)
                for at, (_, stride, gap, count) in zip(pixel, lines, strict=True)
            )
            for pixel in np.ndindex(*window.size)
        ]

        def pool(x: Array) -> Array:
            if any(map(any, window.sides)):
                x = np.pad(x, ((0, 0), (0, 0), *window.sides), constant_values=np.iinfo(x.dtype).min)
            largest: Array = x[(..., *places[0])]
            for place in places[1:]:
                largest = np.maximum(largest, x[(..., *place)])
            return largest

        return pool


@dataclass(frozen=True, eq=False)
class AveragePool(Operation):
    """The mean of each window, of every channel."""

    window: Window | None  # which windows; None for one window, the whole image
    counts_padding: bool  # whether zeros that were added count as values
    dimensions: int  # of the image; those of a whole-image average become 1 each

    def _rules(self) -> Rules:
        right = self.dimensions in (1, 2) and isinstance(self.counts_padding, bool)
        yield right, "one or two dimensions, and whether padding counts"
        if self.window is not None:
            yield from _window_rules(self.window)
            yield len(self.window.size) == self.dimensions, "a window of its dimensions"

    def window_for(self, shape: Shape) -> Window:
        """The window for images of this shape."""
        ones = (1,) * self.dimensions
        return self.window or Window(shape[1:], ones, ((0, 0),) * self.dimensions, ones)

    def _shape(self, shape: Shape) -> Shape:
        if len(shape) != self.dimensions + 1:
            raise ValueError(f"images of {self.dimensions} dimensions and channels")
        return (shape[0], *self.window_for(shape).positions(shape[1:]))
