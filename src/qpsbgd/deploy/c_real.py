"""The C code of layers with real inputs, written so that it is fast at -O2 without vector instructions.

Weights ±1 are looked up: eight inputs have 256 sums with signs, which are computed once for all units, and a byte of
weights picks one. That is one addition per eight weights, and weights stay one bit each. Convolutions with few
channels or real weights multiply, row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qpsbgd.deploy.c_values import Constants, Values, float_text, nested
from qpsbgd.deploy.operations import Array, Convolution, Dense, Weights

_MANY_LOOKUPS = 48
"""Uses of a table from which 256 sums of eight inputs pay, rather than 16 of four."""
_FEW_CHANNELS = 4
"""Channels of a group below which a convolution multiplies."""


@dataclass(frozen=True)
class Tables:
    """Sums with signs of the inputs that share a word of weights.

    Attributes:
        word: Bits of a word, and inputs of a block.
        share: Inputs of a table, 4 or 8.
        each: Whether every unit has a factor of its own.
    """

    word: int
    share: int
    each: bool

    @classmethod
    def best(cls, weights: Weights, word: int, *, uses: int) -> Tables:
        """For tables that are used so often."""
        return cls(word, 8 if uses >= _MANY_LOOKUPS else 4, not isinstance(weights.coefficients, tuple))

    @property
    def entries(self) -> int:
        """Sums of one table."""
        return int(2**self.share)

    @property
    def numbers(self) -> int:
        """Sums of all tables."""
        return self.word // self.share * self.entries

    def helpers(self, inputs: int) -> dict[str, str]:
        """The functions that `calls` for so many inputs calls, by name, in the order in which they need each other."""
        found = {"APART": _APART, "signed_sums": _SIGNED_SUMS, f"fill_{self._name}": _FILL[self.share]}
        for count in self._counts(inputs):
            found[self._look_up(count)] = self._function(count)
        return found

    def _counts(self, inputs: int) -> list[int]:
        """Inputs of the blocks, one for all full ones."""
        return [self.word] * (inputs >= self.word) + [inputs % self.word] * (inputs % self.word > 0)

    def _look_up(self, count: int) -> str:
        return f"look_up_{-(-count // self.share)}_{self._name}{'_each' if self.each else ''}"

    @property
    def _name(self) -> str:
        return "bytes" if self.share == 8 else "nibbles"

    def _function(self, count: int) -> str:
        terms = []
        for table in range(-(-count // self.share)):
            bits = f"w >> {table * self.share} & {self.entries - 1}" if table else f"w & {self.entries - 1}"
            terms.append(f"t{table}[{bits}]")
        names = [f"*t{k} = scratch + {k * self.entries}" for k in range(len(terms))]
        while len(terms) > 1:  # in pairs, which wait less for each other
            pairs = [terms[k : k + 2] for k in range(0, len(terms), 2)]
            terms = [f"({pair[0]} + {pair[1]})" if len(pair) == 2 else pair[0] for pair in pairs]
        given, factor = ("const float *factors", "factors[unit]") if self.each else ("float factor", "factor")
        return _LOOK_UP.format(
            name=self._look_up(count), given=given, factor=factor, tables=", ".join(names), sum=terms[0]
        )

    def calls(self, inputs: int, *, source: str, stride: int, use: str) -> list[str]:
        """Statements that go through all inputs, block by block.

        Args:
            inputs: How many.
            source: The place of the first one.
            stride: From one to the next.
            use: Statements that use the tables of block `block`, with LOOK_UP for the function.
        """
        full, rest = divmod(inputs, self.word)
        lines = []
        for count, begin, end in ((self.word, 0, full), (rest, full, full + 1)):
            if not count or begin == end:
                continue
            place = f"{source} + block * {self.word * stride}"
            lines += [
                f"for (int32_t block = {begin}; block < {end}; block++) {{",
                f"fill_{self._name}({place}, {stride}, {count}, scratch);",
                *use.replace("LOOK_UP", self._look_up(count)).split("\n"),
                "}",
            ]
        return lines


def real_layer(operation: Dense | Convolution, number: int, before: Values, after: Values, constants: Constants) -> str:
    """The statements of a layer whose inputs are real."""
    if isinstance(operation, Dense):
        return _dense(operation, number, before, constants)
    rows, columns = operation.window.rows_and_columns(before.image[-len(operation.window.size) :])
    if operation.weights.binary and before.channels // operation.groups > _FEW_CHANNELS:
        return _looked_up(operation, (rows, columns), number, before, after, constants)
    return _multiplied(operation, (rows, columns), number, before, after, constants)


def _over(what: str, count: int) -> str:
    return f"for (int32_t {what} = 0; {what} < {count}; {what}++)"


def _dense(operation: Dense, number: int, before: Values, constants: Constants) -> str:
    weights, (units, inputs) = operation.weights, operation.weights.shape
    samples = f"for (int32_t row = 0; row < {math.prod(before.shape[:-1])}; row++, in += {inputs}, out += {units}) {{"
    if not weights.binary:
        name = constants.array(f"weights{number}", weights.array)
        products = [f"sum{k} += row[k + {k}] * in[k + {k}];" for k in range(4)]  # four sums wait less for each other
        body = [
            f"const float *row = {name} + unit * {inputs};",
            "float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;",
            "int32_t k = 0;",
            *(f"for (; k + 4 <= {inputs}; k += 4) {{", *products, "}"),
            *(f"for (; k < {inputs}; k++)", f"    {products[0]}"),
            *("out[unit] = (sum0 + sum1) + (sum2 + sum3);", "}"),
        ]
        return nested([samples], [f"{_over('unit', units)} {{", *body])
    tables = Tables.best(weights, constants.word, uses=units)
    constants.need(tables.helpers(inputs), scratch=tables.numbers)
    blocks = -(-inputs // constants.word)
    name = constants.array(f"weights{number}", _in_blocks(weights.array.swapaxes(1, 2), constants.word))
    use = "\n".join(
        f"LOOK_UP({name} + ({plane * blocks} + block) * {units}, {units}, {factor}, out);"
        for plane, factor in enumerate(_factors(weights, number, constants))
    )
    clear = [_over("unit", units), "    out[unit] = 0.0f;"]
    return nested([samples], [*clear, *tables.calls(inputs, source="in", stride=1, use=use)])


def _in_blocks(signs: Array, word: int) -> Array:
    """Booleans (…, n, m) as (…, ⌈n / word⌉, m, word), False where there is nothing."""
    *before, count, units = signs.shape
    padded = np.zeros((*before, -(-count // word) * word, units), bool)
    padded[..., :count, :] = signs
    return padded.reshape(*before, -1, word, units).swapaxes(-1, -2)


def _looked_up(
    operation: Convolution,
    taps: tuple[Array, Array],
    number: int,
    before: Values,
    after: Values,
    constants: Constants,
) -> str:
    """Pixel by pixel: its tables serve all windows that see it. Sums of a few rows of results wait in the scratch."""
    (rows, columns), weights, groups = taps, operation.weights, operation.groups
    inputs, units, (high, wide) = before.channels // groups, after.channels // groups, (rows.shape[1], columns.shape[1])
    (height, width), length = before.image, after.image[1]
    first, last = np.where(rows < 0, height, rows).min(1) % height, rows.max(1).clip(0)
    slots = _slots(first, last)
    count = int(slots.max()) + 1
    size = length * after.channels  # of a row of results
    tables = Tables.best(weights, constants.word, uses=max(1, rows.size * columns.size // (height * width)) * units)
    constants.need(tables.helpers(inputs), scratch=tables.numbers + count * size)
    planes, blocks = len(weights.array), -(-inputs // constants.word)
    signs = weights.array.reshape(planes, groups, units, inputs, high, wide).transpose(0, 1, 4, 5, 3, 2)
    words = constants.array(f"weights{number}", _in_blocks(signs, constants.word))
    down = constants.lists(f"rows{number}", rows, height)
    across = constants.lists(f"columns{number}", columns, width)
    done = constants.lists(f"done{number}", last[:, None], height)
    slot = constants.array(f"slots{number}", slots.astype(np.int32))
    use = "\n".join(
        [
            down.loop("r", "y"),
            across.loop("c", "x") + " {",
            f"const int32_t place = ((group * {high} + {down.place('r')}) * {wide} + {across.place('c')}) * {blocks};",
            f"float *to = sums + {slot}[{down.positions}[r]] * {size} + {across.positions}[c] * {after.channels};",
            *(
                f"LOOK_UP({words} + ({plane * groups * high * wide * blocks} + place + block) * {units}, {units}, "
                f"{factor}{f' + group * {units}' if tables.each else ''}, to + group * {units});"
                for plane, factor in enumerate(_factors(weights, number, constants))
            ),
            "}",
        ]
    )
    body = [
        *(_over("group", groups), f"{_over('x', width)} {{"),
        f"const float *pixel = in + group * {inputs * before.positions} + y * {width} + x;",
        *tables.calls(inputs, source="pixel", stride=before.positions, use=use),
        *("}", done.loop("r", "y") + " {"),
        f"float *row = sums + {slot}[{done.positions}[r]] * {size};",
        f"float *to = out + {done.positions}[r] * {length};",
        *(_over("unit", after.channels), f"    {_over('j', length)}"),
        f"        to[unit * {after.positions} + j] = row[j * {after.channels} + unit];",
        *(_over("k", size), "    row[k] = 0.0f;", "}"),
    ]
    clear = [
        f"float *const sums = scratch + {tables.numbers};",
        _over("k", count * size),
        "    sums[k] = 0.0f;",
    ]
    return nested([f"{_over('y', height)} {{"], body, before=clear)


def _slots(first: Array, last: Array) -> Array:
    """A place for every row of results, from the first row of pixels that it sees to the last."""
    slots, ends = np.zeros(len(first), np.int64), list[int]()
    for row in np.argsort(first, kind="stable"):
        free = [slot for slot, end in enumerate(ends) if end < first[row]]
        slot = free[0] if free else len(ends)
        ends[slot : slot + 1] = [int(last[row])]
        slots[row] = slot
    return slots


def _multiplied(
    operation: Convolution,
    taps: tuple[Array, Array],
    number: int,
    before: Values,
    after: Values,
    constants: Constants,
) -> str:
    """Channel by channel, from a copy of the channel with what is added at its sides."""
    weights, groups = operation.weights, operation.groups
    inputs, units = before.channels // groups, after.channels // groups
    steps = [(1, *pair)[-2:] for pair in (operation.window.stride, operation.window.dilation)]
    ((down, right), (gap, step)) = steps
    rows, columns = (_added(table, *pair) for table, pair in zip(taps, ((down, gap), (right, step)), strict=True))
    pixels = [dy * gap * len(columns) + dx * step for dy in range(taps[0].shape[1]) for dx in range(taps[1].shape[1])]
    copy = len(rows) * len(columns)
    constants.need({}, scratch=copy + units * len(pixels))
    names = [
        constants.array(f"{what}{number}", values.astype(np.int32))
        for what, values in (("rows", rows), ("columns", columns))
    ]
    terms = [f"w{k} * x[{place}]" for k, place in enumerate(pixels)]
    sums = [f"to[j] += {' + '.join(terms[k : k + 9])};" for k in range(0, len(terms), 9)]
    body = [
        f"{_over('i', len(rows))} {{",
        f"{_over('j', len(columns))} {{",
        f"const int32_t y = {names[0]}[i], x = {names[1]}[j];",
        f"scratch[i * {len(columns)} + j] = "
        f"y < 0 || x < 0 ? 0.0f : in[channel * {before.positions} + y * {before.image[1]} + x];",
        *("}", "}"),
        f"{_over('k', units * len(pixels))} {{",
        f"const int32_t unit = channel / {inputs} * {units} + k / {len(pixels)};",
        f"const int32_t place = (unit * {inputs} + channel % {inputs}) * {len(pixels)} + k % {len(pixels)};",
        f"scratch[{copy} + k] = {_weight(weights, number, constants)};",
        "}",
        _over("unit", units),
        f"{_over('i', after.image[0])} {{",
        f"const float *x = scratch + i * {down * len(columns)}, *w = scratch + {copy} + unit * {len(pixels)};",
        f"float *to = out + ((channel / {inputs} * {units} + unit) * {after.image[0]} + i) * {after.image[1]};",
        *(f"const float w{k} = w[{k}];" for k in range(len(pixels))),
        *(f"for (int32_t j = 0; j < {after.image[1]}; j++, x += {right}) {{", *sums, "}", "}"),
    ]
    clear = [_over("k", after.channels * after.positions), "    out[k] = 0.0f;"]
    return nested([f"{_over('channel', before.channels)} {{"], body, before=clear)


def _added(taps: Array, stride: int, dilation: int) -> Array:
    """The pixels of a line with those that are added, so that window k begins at k · stride."""
    places = np.arange(len(taps))[:, None] * stride + np.arange(taps.shape[1]) * dilation
    line = np.full(places.max() + 1, -1)
    line[places] = taps
    return line


def _weight(weights: Weights, number: int, constants: Constants) -> str:
    """The weight with number `place`, of unit `unit`."""
    if not weights.binary:
        return f"{constants.array(f'weights{number}', weights.array)}[place]"
    planes = weights.array.reshape(len(weights.array), -1)
    name, words = constants.array(f"weights{number}", planes), -(-planes.shape[1] // constants.word)
    each = "" if isinstance(weights.coefficients, tuple) else "[unit]"
    return " + ".join(
        f"(bit({name} + {plane * words}, place) ? 1.0f : -1.0f) * {f'({factor}){each}' if each else factor}"
        for plane, factor in enumerate(_factors(weights, number, constants))
    )


def _factors(weights: Weights, number: int, constants: Constants) -> list[str]:
    """The coefficient of every plane, or where those of its units begin."""
    if isinstance(weights.coefficients, tuple):
        return [float_text(factor) for factor in weights.coefficients]
    name = constants.array(f"coefficients{number}", weights.coefficients)
    return [f"{name} + {plane * weights.shape[0]}" for plane in range(len(weights.array))]


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
APART static void {name}(const word *words, int32_t units, {given}, float *restrict sums)
{{
    const float {tables};
    for (int32_t unit = 0; unit < units; unit++) {{
        const word w = words[unit];
        sums[unit] += {factor} * {sum};
    }}
}}
"""
