"""The C code of layers over real numbers or whole numbers of 8 bits, fast at -O2 without vector instructions.

Sums with weights ±1 are looked up: eight inputs have 256 sums with signs, which are computed once for all units, and a
byte of weights picks one. That is one addition per eight weights, and weights stay one bit each. Convolutions over few
channels of real numbers, or with real weights, multiply, row by row; those over few channels of whole numbers look up
patch by patch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qpsbgd.deploy.c_values import SCRATCH, Frame, float_text, nested, over
from qpsbgd_runtime.image_operations import Convolution
from qpsbgd_runtime.operations import Array, Dense, Weighted, Weights

_FEW_CHANNELS = 4
"""Channels of a group up to which a pixel's tables do not pay."""
_MANY_LOOKUPS = 48
"""Uses of a table from which 256 sums of eight inputs pay, rather than 16 of four."""


def real_layer(operation: Weighted, frame: Frame) -> str:
    """The statements of a layer whose inputs are real numbers, or whole numbers of 8 bits."""
    if isinstance(operation, Dense):
        return _dense(operation, frame)
    assert isinstance(operation, Convolution)
    before = frame.before
    taps = operation.window.rows_and_columns(before.image[-len(operation.window.size) :])
    if operation.weights.binary and before.channels // operation.groups > _FEW_CHANNELS:
        return _looked_up(operation, taps, frame)
    return _multiplied(operation, taps, frame) if before.kind == "real" else _patched(operation, taps, frame)


def _dense(operation: Dense, frame: Frame) -> str:
    before, weights, (units, inputs) = frame.before, operation.weights, operation.weights.shape
    samples = f"for (int32_t row = 0; row < {math.prod(before.shape[:-1])}; row++, in += {inputs}, out += {units}) {{"
    if not weights.binary:
        name = frame.array("weights", weights.array)
        products = [f"sum{k} += weight[k + {k}] * in[k + {k}];" for k in range(4)]  # four sums wait less for each other
        body = [
            f"const float *weight = {name} + unit * {inputs};",
            "float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;",
            "int32_t k = 0;",
            *(f"for (; k + 4 <= {inputs}; k += 4) {{", *products, "}"),
            *(f"for (; k < {inputs}; k++)", f"    {products[0]}"),
            *("out[unit] = (sum0 + sum1) + (sum2 + sum3);", "}"),
        ]
        return nested([samples], [f"{over('unit', units)} {{", *body])
    tables = _Tables(weights, frame, inputs=inputs, uses=units)
    blocks, signs = -(-inputs // frame.word), weights.array
    if before.kind != "real" and not before.rows:  # channels come last there
        signs = signs.reshape(1, units, before.channels, before.positions).swapaxes(2, 3).reshape(1, units, inputs)
    name = frame.array("weights", _in_blocks(signs.swapaxes(1, 2), frame.word))
    use = [
        f"LOOK_UP({name} + ({plane * blocks} + block) * {units}, {units}{factor}, out);"
        for plane, factor in enumerate(_factors(weights, frame))
    ]
    clear = [over("unit", units), "    out[unit] = 0;"]
    return nested([samples], [*clear, *tables.calls(source="in", stride=1, use=use)])


def _in_blocks(signs: Array, word: int) -> Array:
    """Booleans (…, n, m) as (…, ⌈n / word⌉, m, word), False where there is nothing."""
    *before, count, units = signs.shape
    padded = np.pad(signs, [(0, 0)] * len(before) + [(0, -count % word), (0, 0)])
    return padded.reshape(*before, -1, word, units).swapaxes(-1, -2)


def _looked_up(operation: Convolution, taps: tuple[Array, Array], frame: Frame) -> str:
    """Pixel by pixel: its tables serve all windows that see it. Sums of a few rows of results wait in the scratch."""
    (rows, columns), weights, groups = taps, operation.weights, operation.groups
    before, after, (height, width) = frame.before, frame.after, frame.before.image
    inputs, units, (high, wide) = before.channels // groups, after.channels // groups, (rows.shape[1], columns.shape[1])
    first, last = np.where(rows < 0, height, rows).min(1) % height, rows.max(1).clip(0)
    slots = _slots(first, last)
    size = after.image[1] * after.channels  # of a row of results
    waiting = (int(slots.max()) + 1) * size
    uses = max(1, rows.size * columns.size // (height * width)) * units
    tables = _Tables(weights, frame, inputs=inputs, uses=uses, more=waiting)
    signs = weights.array.reshape(-1, groups, units, inputs, high, wide).transpose(0, 1, 4, 5, 3, 2)
    words = frame.array("weights", _in_blocks(signs, frame.word))
    row, column = frame.lists("rows", rows, "y", height, "r"), frame.lists("columns", columns, "x", width, "c")
    done, slot = frame.lists("done", last[:, None], "y", height, "r"), frame.array("slots", slots.astype(np.int32))
    blocks, number = -(-inputs // frame.word), tables.number
    add = [
        *(row.loop, f"{column.loop} {{"),
        f"const int32_t place = ((group * {high} + {row.place}) * {wide} + {column.place}) * {blocks};",
        f"{number} *to = sums + {slot}[{row.position}] * {size} + {column.position} * {after.channels};",
        *(
            f"LOOK_UP({words} + ({plane * groups * high * wide * blocks} + place + block) * {units}, {units}"
            f"{factor}{f' + group * {units}' if tables.each else ''}, to + group * {units});"
            for plane, factor in enumerate(_factors(weights, frame))
        ),
        "}",
    ]
    if before.kind == "real":
        pixel, stride = f"group * {inputs * before.positions} + y * {width} + x", before.positions
        row_of_results, place = after.image[1], f"unit * {after.positions} + j"
    else:  # channels stand side by side
        pixel, stride = f"(y * {width} + x) * {before.channels} + group * {inputs}", 1
        row_of_results, place = size, f"j * {after.channels} + unit"
    body = [
        *(over("group", groups), f"{over('x', width)} {{", f"const {before.type} *pixel = in + {pixel};"),
        *tables.calls(source="pixel", stride=stride, use=add),
        *("}", f"{done.loop} {{"),
        f"{number} *row = sums + {slot}[{done.position}] * {size};",
        f"{number} *to = out + {done.position} * {row_of_results};",
        *(over("unit", after.channels), f"    {over('j', after.image[1])}"),
        f"        to[{place}] = row[j * {after.channels} + unit];",
        *(over("k", size), "    row[k] = 0;", "}"),
    ]
    sums = f"{number} *const sums = {tables.scratch} + {tables.numbers};"
    return nested([over("y", height)], body, before=[sums, over("k", waiting), "    sums[k] = 0;"])


def _slots(first: Array, last: Array) -> Array:
    """A place for every row of results, from the first row of pixels that it sees to the last."""
    slots, ends = np.zeros(len(first), np.int64), list[int]()
    for row in np.argsort(first, kind="stable"):
        free = [slot for slot, end in enumerate(ends) if end < first[row]]
        slot = free[0] if free else len(ends)
        ends[slot : slot + 1] = [int(last[row])]
        slots[row] = slot
    return slots


def _patched(operation: Convolution, taps: tuple[Array, Array], frame: Frame) -> str:
    """Patch by patch of whole numbers, whose tables serve all units."""
    (rows, columns), weights, groups = taps, operation.weights, operation.groups
    before, after = frame.before, frame.after
    inputs, units, (high, wide) = before.channels // groups, after.channels // groups, (rows.shape[1], columns.shape[1])
    count = high * wide * inputs
    tables = _Tables(weights, frame, inputs=count, uses=units)
    signs = weights.array[0].reshape(groups, units, inputs, high, wide).transpose(0, 3, 4, 2, 1)
    words = frame.array("weights", _in_blocks(signs.reshape(groups, count, units), frame.word))
    down, across = frame.taps(rows, columns)
    blocks = -(-count // frame.word)
    use = [f"LOOK_UP({words} + (group * {blocks} + block) * {units}, {units}, out);"]
    body = [
        *(f"{before.type} patch[{count}], *to = patch;", over("dy", high), f"{over('dx', wide)} {{"),
        f"const int32_t y = {down}[i * {high} + dy], x = {across}[j * {wide} + dx];",
        f"const int32_t pixel = (y * {before.image[1]} + x) * {before.channels} + group * {inputs};",
        *(over("k", inputs), "    *to++ = y < 0 || x < 0 ? 0 : in[pixel + k];", "}"),
        *(over("unit", units), "    out[unit] = 0;"),
        *tables.calls(source="patch", stride=1, use=use),
    ]
    loops = [over("i", after.image[0]), over("j", after.image[1])]
    return nested([*loops, f"for (int32_t group = 0; group < {groups}; group++, out += {units})"], body)


def _multiplied(operation: Convolution, taps: tuple[Array, Array], frame: Frame) -> str:
    """Channel by channel, from a copy of the channel with what is added at its sides."""
    before, after, weights, groups = frame.before, frame.after, operation.weights, operation.groups
    inputs, units = before.channels // groups, after.channels // groups
    (down, right), (gap, step) = ((1, *pair)[-2:] for pair in (operation.window.stride, operation.window.dilation))
    rows, columns = (_added(table, *pair) for table, pair in zip(taps, ((down, gap), (right, step)), strict=True))
    pixels = [dy * gap * len(columns) + dx * step for dy in range(taps[0].shape[1]) for dx in range(taps[1].shape[1])]
    copy = len(rows) * len(columns)
    frame.constants.need(copy + units * len(pixels), "float")
    names = frame.taps(rows, columns)
    terms = [f"w{k} * x[{place}]" for k, place in enumerate(pixels)]
    sums = [f"to[j] += {' + '.join(terms[k : k + 9])};" for k in range(0, len(terms), 9)]
    body = [
        f"{over('i', len(rows))} {{",
        f"{over('j', len(columns))} {{",
        f"const int32_t y = {names[0]}[i], x = {names[1]}[j];",
        f"scratch[i * {len(columns)} + j] = "
        f"y < 0 || x < 0 ? 0.0f : in[channel * {before.positions} + y * {before.image[1]} + x];",
        *("}", "}"),
        f"{over('k', units * len(pixels))} {{",
        f"const int32_t unit = channel / {inputs} * {units} + k / {len(pixels)};",
        f"const int32_t place = (unit * {inputs} + channel % {inputs}) * {len(pixels)} + k % {len(pixels)};",
        f"scratch[{copy} + k] = {_weight(weights, frame)};",
        "}",
        over("unit", units),
        f"{over('i', after.image[0])} {{",
        f"const float *x = scratch + i * {down * len(columns)}, *w = scratch + {copy} + unit * {len(pixels)};",
        f"float *to = out + ((channel / {inputs} * {units} + unit) * {after.image[0]} + i) * {after.image[1]};",
        *(f"const float w{k} = w[{k}];" for k in range(len(pixels))),
        *(f"for (int32_t j = 0; j < {after.image[1]}; j++, x += {right}) {{", *sums, "}", "}"),
    ]
    clear = [over("k", after.channels * after.positions), "    out[k] = 0.0f;"]
    return nested([over("channel", before.channels)], body, before=clear)


def _added(taps: Array, stride: int, dilation: int) -> Array:
    """The pixels of a line with those that are added, so that window k begins at k · stride."""
    places = np.arange(len(taps))[:, None] * stride + np.arange(taps.shape[1]) * dilation
    line = np.full(places.max() + 1, -1)
    line[places] = taps
    return line


def _weight(weights: Weights, frame: Frame) -> str:
    """The weight with number `place`, of unit `unit`."""
    if not weights.binary:
        return f"{frame.array('weights', weights.array)}[place]"
    planes = weights.array.reshape(len(weights.array), -1)
    name, words = frame.array("weights", planes), -(-planes.shape[1] // frame.word)
    each = "" if isinstance(weights.coefficients, tuple) else "[unit]"
    return " + ".join(
        f"(bit({name} + {plane * words}, place) ? 1.0f : -1.0f) * {f'({factor}){each}' if each else factor}"
        for plane, factor in enumerate(_coefficients(weights, frame))
    )


def _factors(weights: Weights, frame: Frame) -> list[str]:
    """An argument per plane: its coefficient, or where those of its units begin; none of whole numbers."""
    return [f", {factor}" for factor in _coefficients(weights, frame)] if frame.before.kind == "real" else [""]


def _coefficients(weights: Weights, frame: Frame) -> list[str]:
    """The coefficient of every plane, or where those of its units begin."""
    if isinstance(weights.coefficients, tuple):
        return [float_text(factor) for factor in weights.coefficients]
    name = frame.array("coefficients", weights.coefficients)
    return [f"{name} + {plane * weights.shape[0]}" for plane in range(len(weights.array))]


class _Tables:
    """Sums with signs of the inputs that share a word of weights: 256 of eight inputs each, or 16 of four.

    `number` is their C type, `scratch` the array that begins with them, and `each` says whether every unit has a factor
    of its own; whole numbers have no factors.
    """

    def __init__(self, weights: Weights, frame: Frame, *, inputs: int, uses: int, more: int = 0) -> None:
        """Tables of so many inputs that are used so often; reserves their functions and memory, and `more` numbers."""
        self._word, self._source = frame.word, frame.before.type
        self._share = 8 if uses >= _MANY_LOOKUPS else 4
        self._entries = 2**self._share
        self._name, self.number = ("bytes" if self._share == 8 else "nibbles"), "float"
        if self._source != "float":
            self._name, self.number = f"{self._name}_{self._source[:-2]}", "int32_t"
        self.each, self.scratch = not isinstance(weights.coefficients, tuple), SCRATCH[self.number]
        self.numbers = self._word // self._share * self._entries
        # Inputs per block, the first block and the one behind the last: of all full blocks, and of what is left.
        full, rest = divmod(inputs, self._word)
        self._blocks = [(self._word, 0, full)] * (full > 0) + [(rest, full, full + 1)] * (rest > 0)
        helpers = {"APART": _APART, f"signed_sums {self._source}": self._typed(_SIGNED_SUMS)}
        helpers[f"fill_{self._name}"] = self._typed(_FILL[self._share])
        helpers |= {self._look_up(count): self._function(count) for count, _, _ in self._blocks}
        frame.constants.helpers |= helpers
        frame.constants.need(self.numbers + more, self.number)

    def _typed(self, text: str) -> str:
        """C code for real numbers as code for these inputs."""
        if self._source == "float":
            return text
        for name in ("signed_sums", "fill_nibbles", "fill_bytes"):
            text = text.replace(name, f"{name}_{self._source[:-2]}")
        text = text.replace("(const float *x, int32_t stride", f"(const {self._source} *x, int32_t stride")
        return text.replace("float", "int32_t").replace("0.0f", "0")

    def _look_up(self, count: int) -> str:
        return f"look_up_{-(-count // self._share)}_{self._name}{'_each' if self.each else ''}"

    def _function(self, count: int) -> str:
        terms = []
        for table in range(-(-count // self._share)):
            bits = f"w >> {table * self._share} & {self._entries - 1}" if table else f"w & {self._entries - 1}"
            terms.append(f"t{table}[{bits}]")
        tables = ", ".join(f"*t{k} = {self.scratch} + {k * self._entries}" for k in range(len(terms)))
        while len(terms) > 1:  # in pairs, which wait less for each other
            pairs = [terms[k : k + 2] for k in range(0, len(terms), 2)]
            terms = [f"({pair[0]} + {pair[1]})" if len(pair) == 2 else pair[0] for pair in pairs]
        given, factor = ("const float *factors, ", "factors[unit] * ") if self.each else ("float factor, ", "factor * ")
        if self.number != "float":
            given = factor = ""
        head = {"name": self._look_up(count), "number": self.number, "given": given}
        return _LOOK_UP.format(**head, tables=tables, factor=factor, sum=terms[0])

    def calls(self, *, source: str, stride: int, use: Sequence[str]) -> list[str]:
        """Statements that go through all inputs, `stride` apart from `source` on, block by block.

        `use` are statements with the tables of block `block`, and LOOK_UP for the function.
        """
        lines = []
        for count, begin, end in self._blocks:
            place = f"{source} + block * {self._word * stride}"
            lines += [
                f"for (int32_t block = {begin}; block < {end}; block++) {{",
                f"fill_{self._name}({place}, {stride}, {count}, {self.scratch});",
                *(line.replace("LOOK_UP", self._look_up(count)) for line in use),
                "}",
            ]
        return lines


_APART = """
#if defined(__GNUC__)
#define APART __attribute__((noinline)) /* inside other loops it would run short of registers */
#else
#define APART
#endif
"""

_SIGNED_SUMS = """
/* All sums of four numbers with signs: bit k of the index is 1 for +, 0 for -. */
static void signed_sums(const float *x, float *sums)
{
    const float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
    const float low[4] = {-a, b, -b, a}, high[4] = {-c, d, -d, c};
    for (int32_t i = 0; i < 4; i++)
        for (int32_t j = 0; j < 4; j++)
            sums[4 * i + j] = high[i] + low[j];
}
"""

_FILL = {
    4: """
/* The sums with signs of every four of `count` numbers. */
static void fill_nibbles(const float *x, int32_t stride, int32_t count, float *tables)
{
    for (int32_t k = 0; k < count; k += 4, tables += 16) {
        float four[4];
        for (int32_t i = 0; i < 4; i++)
            four[i] = k + i < count ? x[(k + i) * stride] : 0.0f;
        signed_sums(four, tables);
    }
}
""",
    8: """
/* The sums with signs of every eight of `count` numbers. */
static void fill_bytes(const float *x, int32_t stride, int32_t count, float *tables)
{
    for (int32_t k = 0; k < count; k += 8, tables += 256) {
        float eight[8], low[16], high[16];
        for (int32_t i = 0; i < 8; i++)
            eight[i] = k + i < count ? x[(k + i) * stride] : 0.0f;
        signed_sums(eight, low);
        signed_sums(eight + 4, high);
        for (int32_t i = 0; i < 16; i++) {
            float *t = tables + 16 * i;
            const float h = high[i];
            t[0] = h + low[0]; t[1] = h + low[1]; t[2] = h + low[2]; t[3] = h + low[3];
            t[4] = h + low[4]; t[5] = h + low[5]; t[6] = h + low[6]; t[7] = h + low[7];
            t[8] = h + low[8]; t[9] = h + low[9]; t[10] = h + low[10]; t[11] = h + low[11];
            t[12] = h + low[12]; t[13] = h + low[13]; t[14] = h + low[14]; t[15] = h + low[15];
        }
    }
}
""",
}

_LOOK_UP = """
/* Adds to every unit's sum what its word of signs picks from the tables. */
APART static void {name}(const word *words, int32_t units, {given}{number} *restrict sums)
{{
    const {number} {tables};
    for (int32_t unit = 0; unit < units; unit++) {{
        const word w = words[unit];
        sums[unit] += {factor}{sum};
    }}
}}
"""
