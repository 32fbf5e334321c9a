"""The building blocks of generated C: values in buffers, constant arrays, loops and numbers as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from qpsbgd_runtime.operations import Array, Kind, Operation, Shape, words_of
from qpsbgd_runtime.unit_operations import Requantize, Threshold

TYPES = {"real": "float", "bits": "word", "ints": "int32_t", "int8": "int8_t", "uint8": "uint8_t"}
"""C types of values, by kind."""


def width(kind: str, word: int) -> int:
    """Bytes of a C type."""
    return {"word": word // 8, "int8_t": 1, "uint8_t": 1, "int64_t": 8}.get(kind, 4)


@dataclass(frozen=True)
class Values:
    """The values between two steps, by kind and shape per sample, and the C variable and its type that hold them.

    They are laid out as channels of an image (height, width), which flattening bits does not change; channels are the
    last dimension of the shape where they are `rows`, otherwise the first. They may be some rows of a larger image.

    Attributes:
        offset: Numbers, or words for bits, of the larger image before them.
        pitch: Positions of the larger image; 0 where there is none.
    """

    kind: Kind
    shape: Shape
    channels: int
    image: tuple[int, int]
    type: str
    rows: bool = False
    name: str = ""
    offset: int = 0
    pitch: int = 0

    @classmethod
    def of(cls, kind: Kind, shape: Shape, *, rows: bool = False) -> Values:
        """Values of a shape; an image of more than two dimensions is one of many rows."""
        if rows:
            return cls(kind, shape, shape[-1], (1, math.prod(shape[:-1])), TYPES[kind], rows=True)
        *rest, width = (1, *shape[1:])
        return cls(kind, shape, math.prod(shape[:1]), (math.prod(rest), width), TYPES[kind])

    @property
    def positions(self) -> int:
        """Pixels of the image."""
        return math.prod(self.image)

    @property
    def real_place(self) -> str:
        """Where the real number of a position `at` and a channel `unit` stands."""
        return f"at * {self.channels} + unit" if self.rows else f"unit * {self.pitch or self.positions} + at"

    def words(self, word: int) -> int:
        """Words for the bits of a position."""
        return -(-self.channels // word)

    def count(self, word: int) -> int:
        """Numbers, or words for bits."""
        return self.positions * (self.words(word) if self.kind == "bits" else self.channels)

    def size(self, word: int) -> int:
        """Bytes."""
        return self.count(word) * width(self.type, word)

    def span(self, word: int) -> tuple[int, int]:
        """The first byte of the larger image, and the one behind the last."""
        begin = self.offset * width(self.type, word)
        return begin, begin + self.size(word)

    def some_rows(self, begin: int, end: int, word: int) -> Values:
        """Rows of the image; of real numbers, which stand channel by channel, only those of an image as it comes."""
        count, wide = self.count(word) // self.image[0], self.image[1]
        at = begin * (wide if self.kind == "real" else count)
        shape, pitch = (self.channels, end - begin, wide), (self.pitch or self.positions) * (self.kind == "real")
        return replace(self, shape=shape, image=(end - begin, wide), offset=self.offset + at, pitch=pitch)


@dataclass
class Constants:
    """The constant arrays of a network with `word` bits per word: by name, with their C types.

    Also functions that steps call, by name.
    """

    word: int
    arrays: dict[str, tuple[str, Array]] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    names: dict[tuple[str, bytes], str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        return sum(values.nbytes for _, values in self.arrays.values())

    def array(self, name: str, values: Array) -> str:
        """The name of an array, defined unless one of the same numbers is.

        Booleans (…, n) are packed into words along their last dimension.
        """
        values = np.asarray(values)
        if values.dtype == bool:
            values, kind = words_of(values, self.word), "word"
        else:
            if values.dtype.kind == "i" and values.dtype != np.int64:
                values = values.astype(np.min_scalar_type(min(values.min(), ~values.max())))
            kind = "float" if values.dtype == np.float32 else f"{values.dtype}_t"
        if known := self.names.get((kind, values.tobytes())):
            return known
        self.names[kind, values.tobytes()] = name
        self.arrays[name] = kind, values.ravel()
        return name

    def text(self) -> str:
        """The definitions of all arrays."""
        texts, number = [], {"float": float_text, "word": f"0x{{:0{self.word // 4}x}}u".format}
        for name, (kind, values) in self.arrays.items():
            items = list(map(number.get(kind, _integer), values.tolist()))
            lines = [", ".join(items[at : at + 8]) for at in range(0, len(items), 8)]
            body = ",\n    ".join(lines)
            texts.append(f"static const {kind} {name}[{len(items)}] = {{\n    {body}\n}};\n")
        return "\n".join(texts)


class WindowLoop(NamedTuple):
    """The head of a loop over windows that see a pixel, the position of each, and where the pixel is in it."""

    loop: str
    position: str
    place: str


class Frame:
    """The context of a step's C function: its number, what goes in and comes out, and the network's constants.

    `before` is the first value that goes in, `epilogue` what is done to a layer's sums where nothing else takes them.

    Attributes:
        scratch: How many numbers, and of which C type, the step needs besides its results.
        distances: For inputs over which results may be written, how many bytes they must begin after the results.
    """

    def __init__(
        self,
        number: int,
        inputs: tuple[Values, ...],
        after: Values,
        constants: Constants,
        *,
        epilogue: Threshold | Requantize | None = None,
    ) -> None:
        self.number, self.inputs, self.after, self.constants = number, inputs, after, constants
        self.before, self.word, self.epilogue = inputs[0], constants.word, epilogue
        self.scratch: tuple[int, str] = (0, "int32_t")
        self.distances: dict[int, int] = {}

    def need(self, numbers: int, kind: str) -> None:
        """Reserve scratch memory for this many numbers."""
        self.scratch = (numbers, kind)

    def follow_windows(self, rows: Array, columns: Array) -> None:
        """Let results be written over the first input as soon as no window reads it any more, position by position."""
        none = len(rows) * len(columns) * self.before.positions  # where a window sees padding alone
        row, column = (np.where(taps < 0, none, taps).min(1) for taps in (rows, columns))
        first = np.minimum.accumulate((row[:, None] * self.before.image[1] + column).ravel()[::-1])[::-1]
        first = first.clip(0, self.before.positions)
        read, written = (values.size(self.word) // values.positions for values in (self.before, self.after))
        self.distances[0] = int(max(0, ((np.arange(len(first)) + 1) * written - first * read).max()))

    def array(self, name: str, values: Array) -> str:
        """Define an array of the step's own, as `Constants.array` does; returns its name."""
        return self.constants.array(f"{name}{self.number}", values)

    def lists(self, name: str, taps: Array, pixel: str, size: int, entry: str) -> WindowLoop:
        """A loop, with entries `entry`, over windows of `taps` (positions, window) that see one of `size` pixels."""
        order = np.argsort(taps.ravel(), kind="stable")[(taps < 0).sum() :]
        begins = np.searchsorted(taps.ravel()[order], np.arange(size + 1))
        parts = {"begins": begins, "positions": order // taps.shape[1], "places": order % taps.shape[1]}
        if taps.shape[1] == 1:
            del parts["places"]
        none = np.zeros(1, np.int32)  # where all see padding alone: C has no empty arrays
        begin, *names = (
            self.array(f"{what}_of_{name}", values.astype(np.int32) if len(values) else none)
            for what, values in parts.items()
        )
        loop = f"for (int32_t {entry} = {begin}[{pixel}]; {entry} < {begin}[{pixel} + 1]; {entry}++)"
        position, place = [*(f"{array}[{entry}]" for array in names), "0"][:2]
        return WindowLoop(loop, position, place)

    def taps(self, rows: Array, columns: Array) -> tuple[str, str]:
        """Define the rows and the columns of the image that windows see; returns their names."""
        return self.array("rows", rows.astype(np.int32)), self.array("columns", columns.astype(np.int32))


Statements = dict[type[Operation], Callable[[Any, Frame], str]]
"""For each operation the statements that compute `out` from `in` and, where more goes in, from `in1` and so on."""


def input_name(at: int) -> str:
    """The C parameter of an input."""
    return f"in{at}" if at else "in"


def float_text(value: float) -> str:
    """A number as a C constant of type float."""
    text = f"{value:.9g}"
    return (text if set(text) & set(".e") else f"{text}.0") + "f"


def _integer(value: int) -> str:
    return f"INT64_C({value})" if abs(value) >= 2**31 else str(value)


def over(what: str, count: int) -> str:
    """The head of a loop."""
    return f"for (int32_t {what} = 0; {what} < {count}; {what}++)"


def indent(loops: Sequence[str], body: Sequence[str], *, before: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """Statements with the indentation that their braces ask for; the last loop opens one."""
    *outer, inner = loops
    lines, depth = [], 1
    for line in [*before, *outer, inner if inner.endswith("{") else f"{inner} {{", *body, "}", *after]:
        depth -= line == "}"
        lines.append("    " * depth + line)
        depth += line.endswith("{")
    return "\n".join(lines)
