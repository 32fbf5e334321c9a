"""The C code of layers over real numbers, fast at -O2 without vector instructions.

Sums with weights ±1 are looked up: eight inputs have 256 sums with signs, which are computed once for all units, and a
byte of weights picks one. That is one addition per eight weights, and weights stay one bit each. Convolutions over few
channels, or with real weights, multiply, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qpsbgd.deploy.c_values import Frame, float_text, indent, over
from qpsbgd_runtime.image_operations import Convolution
from qpsbgd_runtime.operations import Array, Dense, Weighted, Weights

_FEW_CHANNELS = 4
"""Channels of a group up to which a pixel's tables do not pay."""
_MANY_LOOKUPS = 48
"""Uses of a table from which 256 sums of eight inputs pay, rather than 16 of four."""


def real_layer(operation: Weighted, frame: Frame) -> str:
    """The statements of a layer whose inputs are real numbers."""
    if isinstance(operation, Dense):
        return _dense(operation, frame)
    assert isinstance(operation, Convolution)
    before = frame.before
    taps = operation.window.rows_and_columns(before.image[-len(operation.window.size) :])
    if operation.weights.binary and before.channels // operation.groups > _FEW_CHANNELS:
        return _convolve_by_tables(operation, taps, frame)
    return _convolve_by_products(operation, taps, frame)


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
        return indent([samples], [f"{over('unit', units)} {{", *body])
    tables = Tables(frame, inputs=inputs, uses=units, each=not isinstance(weights.coefficients, tuple))
    blocks = -(-inputs // frame.word)
    name = frame.array("weights", in_blocks(weights.array.swapaxes(1, 2), frame.word))
    use = [
        f"LOOK_UP({name} + ({plane * blocks} + block) * {units}, {units}, {factor}, out);"
        for plane, factor in enumerate(_coefficients(weights, frame))
    ]
    clear = [over("unit", units), "    out[unit] = 0;"]
    return indent([samples], [*clear, *tables.calls(source="in", use=use)])


def in_blocks(signs: Array, word: int) -> Array:
    """Booleans (…, n, m) as (…, ⌈n / word⌉, m, word), False where there is nothing."""
    *before, count, units = signs.shape
    padded = np.pad(signs, [(0, 0)] * len(before) + [(0, -count % word), (0, 0)])
    return padded.reshape(*before, -1, word, units).swapaxes(-1, -2)


def _convolve_by_tables(operation: Convolution, taps: tuple[Array, Array], frame: Frame) -> str:
    """Pixel by pixel: its tables serve all windows that see it. Sums of a few rows of results wait in the scratch."""
    (rows, columns), weights, groups = taps, operation.weights, operation.groups
    before, after, (height, width) = frame.before, frame.after, frame.before.image
    inputs, units, (high, wide) = before.channels // groups, after.channels // groups, (rows.shape[1], columns.shape[1])
    first, last = np.where(rows < 0, height, rows).min(1) % height, rows.max(1).clip(0)
    slots = _slots(first, last)
    size = after.image[1] * after.channels  # of a row of results
    waiting = (int(slots.max()) + 1) * size
    uses = max(1, rows.size * columns.size // (height * width)) * units
    each = not isinstance(weights.coefficients, tuple)
    tables = Tables(frame, inputs=inputs, uses=uses, each=each, more=waiting)
    signs = weights.array.reshape(-1, groups, units, inputs, high, wide).transpose(0, 1, 4, 5, 3, 2)
    words = frame.array("weights", in_blocks(signs, frame.word))
    row, column = frame.lists("rows", rows, "y", height, "r"), frame.lists("columns", columns, "x", width, "c")
    done, slot = frame.lists("done", last[:, None], "y", height, "r"), frame.array("slots", slots.astype(np.int32))
    blocks = -(-inputs // frame.word)
    add = [
        *(row.loop, f"{column.loop} {{"),
        f"const int32_t place = ((group * {high} + {row.place}) * {wide} + {column.place}) * {blocks};",
        f"float *to = sums + {slot}[{row.position}] * {size} + {column.position} * {after.channels};",
        *(
            f"LOOK_UP({words} + ({plane * groups * high * wide * blocks} + place + block) * {units}, {units}"
            f", {factor}{f' + group * {units}' if each else ''}, to + group * {units});"
            for plane, factor in enumerate(_coefficients(weights, frame))
        ),
        "}",
    ]
    pixel = f"in + group * {inputs * before.positions} + y * {width} + x"
    body = [
        *(over("group", groups), f"{over('x', width)} {{", f"const float *pixel = {pixel};"),
        *tables.calls(source="pixel", stride=before.positions, use=add),
        *("}", f"{done.loop} {{"),
        f"float *row = sums + {slot}[{done.position}] * {size};",
        f"float *to = out + {done.position} * {after.image[1]};",
        *(over("unit", after.channels), f"    {over('j', after.image[1])}"),
        f"        to[unit * {after.positions} + j] = row[j * {after.channels} + unit];",
        *(over("k", size), "    row[k] = 0;", "}"),
    ]
    sums = f"float *const sums = scratch + {tables.numbers};"
    return indent([over("y", height)], body, before=[sums, over("k", waiting), "    sums[k] = 0;"])


def _slots(first: Array, last: Array) -> Array:
    """A place for every row of results, from the first row of pixels that it sees to the last."""
    slots, ends = np.zeros(len(first), np.int64), list[int]()
    for row in np.argsort(first, kind="stable"):
        free = [slot for slot, end in enumerate(ends) if end < first[row]]
        slot = free[0] if free else len(ends)
        ends[slot : slot + 1] = [int(last[row])]
        slots[row] = slot
    return slots


def _convolve_by_products(operation: Convolution, taps: tuple[Array, Array], frame: Frame) -> str:
    """Channel by channel, from a copy of the channel with what is added at its sides."""
    before, after, weights, groups = frame.before, frame.after, operation.weights, operation.groups
    inputs, units = before.channels // groups, after.channels // groups
    (down, right), (gap, step) = ((1, *pair)[-2:] for pair in (operation.window.stride, operation.window.dilation))
    rows, columns = (_pad_line(table, *pair) for table, pair in zip(taps, ((down, gap), (right, step)), strict=True))
    pixels = [dy * gap * len(columns) + dx * step for dy in range(taps[0].shape[1]) for dx in range(taps[1].shape[1])]
    copy = len(rows) * len(columns)
    frame.need(copy + units * len(pixels), "float")
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
    return indent([over("channel", before.channels)], body, before=clear)


def _pad_line(taps: Array, stride: int, dilation: int) -> Array:
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


def _coefficients(weights: Weights, frame: Frame) -> list[str]:
    """The coefficient of every plane, or where those of its units begin."""
    if isinstance(weights.coefficients, tuple):
        return [float_text(factor) for factor in weights.coefficients]
    name = frame.array("coefficients", weights.coefficients)
    return [f"{name} + {plane * weights.shape[0]}" for plane in range(len(weights.array))]


class Tables:
    """Sums with signs of the inputs that share a word of weights: 256 of eight inputs each, or 16 of four.

    `numbers` of them stand at the beginning of the step's scratch memory.
    """

    def __init__(
        self, frame: Frame, *, inputs: int, uses: int = 0, each: bool = False, whole: bool = False, more: int = 0
    ) -> None:
        """Tables for this many inputs, used this often; reserves their functions and memory, and `more` numbers.

        `each` says whether every unit has a factor of its own; tables of integers have no factors.
        """
        self._word, self._each, self._whole = frame.word, each, whole
        self._share = 8 if uses >= _MANY_LOOKUPS else 4
        self._name = "ints" if whole else "bytes" if self._share == 8 else "nibbles"
        self.numbers = -(-min(inputs, self._word) // self._share) * 2**self._share
        # Inputs per block, the first block and the one behind the last: of all full blocks, and of what is left.
        full, rest = divmod(inputs, self._word)
        self._blocks = [(self._word, 0, full)] * (full > 0) + [(rest, full, full + 1)] * (rest > 0)
        helpers = {"APART": _APART}
        if whole:
            helpers["fill_ints"] = _FILL_INTS
        else:
            helpers |= {"signed_sums": _SIGNED_SUMS, f"fill_{self._name}": _FILL[self._share]}
        helpers |= {self._look_up(count): self._function(count) for count, _, _ in self._blocks}
        frame.constants.helpers |= helpers
        frame.need(self.numbers + more, "int32_t" if whole else "float")

    def _look_up(self, count: int) -> str:
        return f"look_up_{-(-count // self._share)}_{self._name}{'_each' if self._each else ''}"

    def _function(self, count: int) -> str:
        terms, entries = [], 2**self._share
        for table in range(-(-count // self._share)):
            bits = f"w >> {table * self._share} & {entries - 1}" if table else f"w & {entries - 1}"
            terms.append(f"t{table}[{bits}]")
        tables = ", ".join(f"*t{k} = tables + {k * entries}" for k in range(len(terms)))
        while len(terms) > 1:  # in pairs, which wait less for each other
            pairs = [terms[k : k + 2] for k in range(0, len(terms), 2)]
            terms = [f"({pair[0]} + {pair[1]})" if len(pair) == 2 else pair[0] for pair in pairs]
        given, factor = (
            ("const float *factors, ", "factors[unit] * ") if self._each else ("float factor, ", "factor * ")
        )
        if self._whole:
            given = factor = ""
        text = _LOOK_UP.format(name=self._look_up(count), given=given, tables=tables, factor=factor, sum=terms[0])
        return text.replace("float", "int32_t") if self._whole else text

    def calls(self, *, source: str, use: Sequence[str], stride: int = 1, gather: Sequence[str] = ()) -> list[str]:
        """Statements that go through all inputs, `stride` apart from `source` on, block by block.

        `use` are statements with the tables of block `block`, and LOOK_UP for the function; `gather` are statements
        before, which put the COUNT inputs of the block to the source.
        """
        lines = []
        for count, begin, end in self._blocks:
            place, apart = f"{source} + block * {self._word * stride}", "" if self._whole else f"{stride}, "
            lines += [
                f"for (int32_t block = {begin}; block < {end}; block++) {{",
                *(line.replace("COUNT", str(count)) for line in gather),
                f"fill_{self._name}({source if gather else place}, {apart}{count}, scratch);",
                *(line.replace("LOOK_UP(", f"{self._look_up(count)}(scratch, ") for line in use),
                "}",
            ]
        return lines


_APART = """
/* Inside other loops it would run short of registers; vectors of looked-up numbers take longer than the numbers. */
#if defined(__GNUC__) && !defined(__clang__)
#define APART __attribute__((noinline, optimize("no-tree-vectorize")))
#elif defined(__GNUC__)
#define APART __attribute__((noinline))
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

_FILL_INTS = """
/* The sums with signs of every four of `count` numbers, behind which zeros stand. */
APART static void fill_ints(const int32_t *x, int32_t count, int32_t *tables)
{
    for (int32_t k = 0; k < count; k += 4, x += 4, tables += 16) {
        const int32_t a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
        tables[0] = -c - a; tables[1] = b - c; tables[2] = -c - b; tables[3] = a - c;
        tables[4] = d - a; tables[5] = d + b; tables[6] = d - b; tables[7] = d + a;
        tables[8] = -d - a; tables[9] = b - d; tables[10] = -d - b; tables[11] = a - d;
        tables[12] = c - a; tables[13] = c + b; tables[14] = c - b; tables[15] = c + a;
    }
}
"""

_LOOK_UP = """
/* Adds to every unit's sum what its word of signs picks from the tables. */
APART static void {name}(const float *tables, const word *words, int32_t units, {given}float *restrict sums)
{{
    const float {tables};
    for (int32_t unit = 0; unit < units; unit++) {{
        const word w = words[unit];
        sums[unit] += {factor}{sum};
    }}
}}
"""
