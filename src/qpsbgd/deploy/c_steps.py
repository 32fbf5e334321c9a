"""The bodies of the C functions, one per operation, and the constants that they read.

Between steps, real numbers stand as (channels, positions); whole numbers as (positions, channels); bits as (positions,
words), where the channels of a position are the bits of its words. Flattened bits and numbers of 8 bits stay where they
are: the weights behind them are put into their order instead. Bits and whole numbers of a dense layer that is applied
to every row of a matrix have the rows for positions and the features for channels.
"""

from __future__ import annotations

import math

import numpy as np

from qpsbgd.deploy.c_values import Constants, Values, float_text, nested
from qpsbgd.deploy.operations import (
    Array,
    AveragePool,
    Clip,
    Convolution,
    Dense,
    MaxPool,
    Operation,
    Shape,
    Sign,
    Spins,
    Window,
)
from qpsbgd.deploy.unit_operations import Quantize, Requantize, Scale, Threshold

_UNROLLED = 16
"""Words of a row up to which their population counts are written out."""


def step(operation: Operation, number: int, before: Values, after: Values, constants: Constants) -> str:
    """The statements that compute `out` from `in`."""
    match operation:
        case Sign():
            return _sign(after, constants.word)
        case Spins():
            return _spins(before, constants.word)
        case Quantize():
            return _quantize(operation, before, after)
        case Requantize():
            return _requantize(operation, number, after, constants)
        case Scale():
            return _scale(operation, number, before, constants)
        case Clip():
            return _clip(operation, before)
        case Threshold():
            setup, store, finish = _store(operation, number, after, constants)
            loops = [f"for (int32_t at = 0; at < {after.positions}; at++)", _over_units(after)]
            value = f"const int32_t sum = in[at * {after.channels} + unit];"
            return nested(loops, [value, *store], before=setup, after=finish)
        case MaxPool():
            return _max_pool(operation, number, before, after, constants)
        case AveragePool():
            return _average_pool(operation, number, before, after, constants)
    raise TypeError(f"{operation} is not an operation")


def weighted(
    operation: Dense | Convolution,
    threshold: Threshold | None,
    number: int,
    before: Values,
    after: Values,
    constants: Constants,
) -> str:
    """The statements of a layer of bits, and of the threshold behind it where there is one."""
    if isinstance(operation, Dense):
        return _dense_bits(operation, threshold, number, before, after, constants)
    inputs, units = before.channels // operation.groups, after.channels // operation.groups
    size, loops, at = _window(operation.window, number, before, constants)
    setup, store, finish = _store(threshold, number, after, constants)
    signs = operation.weights.array[0].reshape(after.channels, inputs, *size).transpose(0, 2, 3, 1)
    if operation.groups == 1:
        return _patches(signs, (loops, at), (setup, store, finish), number, before, after, constants)
    name, width = constants.array(f"weights{number}", signs), -(-inputs // constants.word)
    body = [
        *("int32_t differing = 0, products = 0;", *loops),
        f"const word *row = {name} + ((unit * {size[0]} + dy) * {size[1]} + dx) * {width};",
        f"const word *pixel = in + ({at}) * {-(-before.channels // constants.word)};",
        f"for (int32_t k = 0; k < {inputs}; k++)",
        f"    differing += bit(pixel, unit / {units} * {inputs} + k) != bit(row, k);",
        *(f"products += {inputs};", "}", "const int32_t sum = products - 2 * differing;"),
    ]
    return nested([*_over_positions(after), _over_units(after)], [*body, *store], before=setup, after=finish)


def _patches(
    signs: Array,
    window: tuple[list[str], str],
    storing: Store,
    number: int,
    before: Values,
    after: Values,
    constants: Constants,
) -> str:
    """A convolution of bits (units, …window, channels), in one group: all bits of a patch stand side by side."""
    (loops, at), (setup, store, finish), channels = window, storing, before.channels
    count, words = signs[0].size, -(-signs[0].size // constants.word)
    name = constants.array(f"weights{number}", signs.reshape(len(signs), -1))
    padded = "    continue;" in loops
    body = [
        f"word patch[{words}] = {{0}}{f', seen[{words}] = {{0}}' if padded else ''};",
        *("int32_t products = 0;" for _ in "1" if padded),
        *(*loops, f"const int32_t place = (dy * {signs.shape[2]} + dx) * {channels};"),
        f"add_bits(in + ({at}) * {-(-channels // constants.word)}, {channels}, place, patch);",
    ]
    if padded:
        ones = constants.array(f"ones{number}", np.ones(channels, bool))
        body += [f"add_bits({ones}, {channels}, place, seen);", f"products += {channels};"]
    body += ["}"]
    for inside in (True, False) if padded else (True,):
        if padded:
            body += [f"if (products == {count}) {{" if inside else "else {"]
        body += [
            _over_units(after),
            f"const word *row = {name} + unit * {words};",
            *_differing("patch", words, "" if inside else " & seen[k]"),
            f"const int32_t sum = {count if inside else 'products'} - 2 * differing;",
            *(*store, "}", *("}" for _ in "1" if padded)),
        ]
    positions = _over_positions(after)
    return nested([*positions[:-1], f"{positions[-1]} {{"], body, before=setup, after=finish)


def _differing(source: str, words: int, mask: str) -> list[str]:
    """Statements that count where words differ from those of `row`."""
    if words > _UNROLLED:
        term = f"popcount(({source}[k] ^ row[k]){mask})"
        return ["int32_t differing = 0;", f"for (int32_t k = 0; k < {words}; k++)", f"    differing += {term};"]
    terms = [f"popcount(({source}[{k}] ^ row[{k}]){mask.replace('[k]', f'[{k}]')})" for k in range(words)]
    return [f"const int32_t differing = {' + '.join(terms)};"]


def _over_positions(values: Values) -> list[str]:
    rows, columns = values.image
    loops = [f"for (int32_t i = 0; i < {rows}; i++)", f"for (int32_t j = 0; j < {columns}; j++, at++)"]
    return ["int32_t at = 0;", *loops]


def _over_units(values: Values) -> str:
    return f"for (int32_t unit = 0; unit < {values.channels}; unit++) {{"


Store = tuple[list[str], list[str], list[str]]


def _store(threshold: Threshold | None, number: int, after: Values, constants: Constants, at: str = "at") -> Store:
    """Statements before a loop over positions `at` and units, in it, where `sum` is known, and after it."""
    words, word, total = -(-after.channels // constants.word), constants.word, after.count(constants.word)
    if threshold is None:
        return [], [f"out[{f'{at} * {after.channels} + ' if at else ''}unit] = sum;"], []
    levels = constants.array(f"levels{number}", threshold.levels)
    place = f"{f'{at} * {words} + ' if at else ''}unit / {word}"
    full = f"unit % {word} == {word - 1} || unit == {after.channels - 1}"
    store = [
        f"bits |= (word)(sum >= {levels}[unit]) << (unit % {word});",
        *(f"if ({full}) {{", f"out[{place}] = bits;", "bits = 0;", "}"),
    ]
    finish = []
    if threshold.flipped.any():
        flipped = constants.array(f"flipped{number}", threshold.flipped)
        finish = [f"for (int32_t k = 0; k < {total}; k++)", f"    out[k] ^= {flipped}[k % {words}];"]
    return ["word bits = 0;"], store, finish


def _cleared(words: int) -> list[str]:
    return [f"for (int32_t k = 0; k < {words}; k++)", "    out[k] = 0;"]


def _dense_bits(
    operation: Dense, threshold: Threshold | None, number: int, before: Values, after: Values, constants: Constants
) -> str:
    signs = operation.weights.array[0]
    rows = before.positions if before.rows else 1
    ordered = signs.reshape(len(signs), before.channels, before.positions // rows).transpose(0, 2, 1)
    name, words = constants.array(f"weights{number}", ordered), before.count(constants.word) // rows
    setup, store, finish = _store(threshold, number, after, constants, at="at" if before.rows else "")
    loops = [f"for (int32_t at = 0; at < {rows}; at++, in += {words})"] if before.rows else []
    body = [
        f"const word *row = {name} + unit * {words};",
        *_differing("in", words, ""),
        f"const int32_t sum = {signs.shape[1]} - 2 * differing;",
        *store,
    ]
    return nested([*loops, _over_units(after)], body, before=setup, after=finish)


def _window(window: Window, number: int, before: Values, constants: Constants) -> tuple[Shape, list[str], str]:
    """Size of a window, loops over its pixels (one brace open), and the pixel's position in the image."""
    rows, columns = window.rows_and_columns(before.image[-len(window.size) :])
    names = [
        constants.array(f"{what}{number}", table.astype(np.int32))
        for what, table in (("rows", rows), ("columns", columns))
    ]
    size = (rows.shape[1], columns.shape[1])
    loops = [
        f"for (int32_t dy = 0; dy < {size[0]}; dy++)",
        f"for (int32_t dx = 0; dx < {size[1]}; dx++) {{",
        f"const int32_t y = {names[0]}[i * {size[0]} + dy], x = {names[1]}[j * {size[1]} + dx];",
    ]
    if (rows < 0).any() or (columns < 0).any():
        loops += ["if (y < 0 || x < 0)", "    continue;"]
    return size, loops, f"y * {before.image[1]} + x"


def _sign(after: Values, word: int) -> str:
    words, total = -(-after.channels // word), after.count(word)
    loops = [f"for (int32_t at = 0; at < {after.positions}; at++)", _over_units(after)]
    body = [f"out[at * {words} + unit / {word}] |= (word)(in[{after.real_place}] >= 0) << (unit % {word});"]
    return nested(loops, body, before=_cleared(total))


def _spins(before: Values, word: int) -> str:
    words = -(-before.channels // word)
    loops = [f"for (int32_t at = 0; at < {before.positions}; at++)", _over_units(before)]
    return nested(loops, [f"out[{before.real_place}] = bit(in + at * {words}, unit) ? 1 : -1;"])


def _quantize(operation: Quantize, before: Values, after: Values) -> str:
    """From real numbers, or from whole numbers where a network begins with them."""
    steps, value = operation.steps, f"in[{after.real_place}]"
    least, largest = (f"value < {steps.low} ? {steps.low} : ", f"value > {steps.high} ? {steps.high} : ")
    if before.type == "float":
        body = [
            f"const float x = {value} / {float_text(steps.scale)};",
            f"const int32_t value = nearest(x < {steps.low}.0f ? {steps.low}.0f : x > {steps.high}.0f ? "
            f"{steps.high}.0f : x);",
        ]
    else:
        body = [f"const int32_t value = {value};"]
    body += [f"out[at * {after.channels} + unit] = ({after.type})({least}{largest}value);"]
    return nested([f"for (int32_t at = 0; at < {after.positions}; at++)", _over_units(after)], body)


def _requantize(operation: Requantize, number: int, after: Values, constants: Constants) -> str:
    # What is shifted is positive: C leaves shifts of negative numbers to compilers.
    least, place = operation.steps.low, f"at * {after.channels} + unit"
    raised = operation.offsets.astype(np.int64) - (np.int64(least) << operation.shift)
    factors, offsets = (
        constants.array(f"{what}{number}", values.astype(np.int64))
        for what, values in (("factors", operation.factors), ("offsets", raised))
    )
    low, high = (
        f"{values[0]}" if (values == values[0]).all() else f"{constants.array(f'{what}{number}', values)}[unit]"
        for what, values in (("lows", operation.lows), ("highs", operation.highs))
    )
    body = [
        f"const int64_t line = {factors}[unit] * in[{place}] + {offsets}[unit];",
        f"const int64_t value = (line < 0 ? 0 : line >> {operation.shift}) + {least};",
        f"out[{place}] = ({after.type})(value < {low} ? {low} : value > {high} ? {high} : value);",
    ]
    after_all: list[str] = []
    if operation.exceptions:
        units, sums, results = (
            constants.array(f"{what}{number}", np.array(column, np.int32))
            for what, column in zip(("units", "sums", "results"), zip(*operation.exceptions, strict=True), strict=True)
        )
        after_all = [
            f"for (int32_t at = 0; at < {after.positions}; at++)",
            f"    for (int32_t k = 0; k < {len(operation.exceptions)}; k++)",
            f"        if (in[at * {after.channels} + {units}[k]] == {sums}[k])",
            f"            out[at * {after.channels} + {units}[k]] = ({after.type}){results}[k];",
        ]
    loops = [f"for (int32_t at = 0; at < {after.positions}; at++)", _over_units(after)]
    return nested(loops, body, after=after_all)


def repacked(before: Values, after: Values, word: int) -> str:
    """The statements that put bits or numbers of 8 bits of one layout into another one."""
    loop = f"for (int32_t k = 0; k < {before.channels * before.positions}; k++) {{"
    if before.kind != "bits":
        source = f"in[k % {before.positions} * {before.channels} + k / {before.positions}]"
        return nested([loop], [f"out[k % {after.positions} * {after.channels} + k / {after.positions}] = {source};"])
    old, new = (-(-one.channels // word) for one in (before, after))
    body = [
        f"const int32_t from = k / {before.positions}, at = k % {before.positions};",
        f"const int32_t to = k / {after.positions}, place = k % {after.positions};",
        f"out[place * {new} + to / {word}] |= (word)bit(in + at * {old}, from) << (to % {word});",
    ]
    return nested([loop], body, before=_cleared(after.count(word)))


def _scale(operation: Scale, number: int, before: Values, constants: Constants) -> str:
    last = operation.axis == -1 and len(before.shape) > 1 and not before.rows
    unit = f"at % {before.shape[-1]}" if last else "unit"
    factor, offset = (
        constants.array(f"{what}{number}", values) + (f"[{unit}]" if len(values) > 1 else "[0]")
        for what, values in (("factors", operation.factor), ("offsets", operation.offset))
    )
    value = f"in[{before.real_place}]"
    if before.kind != "real":
        value = f"(float)in[at * {before.channels} + unit]"
    loops = [
        f"for (int32_t unit = 0; unit < {before.channels}; unit++)",
        f"for (int32_t at = 0; at < {before.positions}; at++) {{",
    ]
    return nested(loops, [f"out[{before.real_place}] = {factor} * {value} + {offset};"])


def fixed_point(operation: Scale, number: int, before: Values, constants: Constants) -> tuple[str, float]:
    """The statements of a scale at the end of a network of whole numbers, and the step that its outputs count."""
    factor, offset = (values.astype(np.float64) for values in (operation.factor, operation.offset))
    value, place = f"in[at * {before.channels} + unit]", f"out[{before.real_place}]"
    loops = [f"for (int32_t at = 0; at < {before.positions}; at++)", _over_units(before)]
    if len(factor) == 1 and factor[0] > 0 and not offset.any():
        return nested(loops, [f"{place} = {value};"]), float(factor[0])
    # Factors get 31 bits, more than float32 has; sums have at most 31, so that all fits into 64.
    room = [
        bits - math.floor(math.log2(largest)) - 1
        for bits, largest in ((31, abs(factor).max()), (61, abs(offset).max()))
        if largest > 0
    ]
    shift = min(room, default=0)
    names = [
        constants.array(f"{what}{number}", np.rint(np.ldexp(values, shift)).clip(*limits).astype(kind))
        + ("[unit]" if len(values) > 1 else "[0]")
        for what, values, kind, limits in (
            ("factors", factor, np.int32, (1 - 2**31, 2**31 - 1)),
            ("offsets", offset, np.int64, (1 - 2**62, 2**62)),
        )
    ]
    return nested(loops, [f"{place} = (int64_t){names[0]} * {value} + {names[1]};"]), math.ldexp(1.0, -shift)


def _clip(operation: Clip, before: Values) -> str:
    value, body = "in[k]", list[str]()
    for bound, sign in ((operation.low, "<"), (operation.high, ">")):
        if math.isfinite(bound):
            name = f"x{len(body)}"
            body.append(f"const float {name} = {value};")
            value = f"{name} {sign} {float_text(bound)} ? {float_text(bound)} : {name}"
    count = before.channels * before.positions
    fours = count // 4 * 4  # compilers turn these into vectors, which have no branches to mispredict
    body = [*body, f"out[k] = {value};", "}"]
    loops = [f"for (int32_t k = 0; k < {fours}; k++) {{"] * (fours > 0)
    rest = [f"for (int32_t k = {fours}; k < {count}; k++) {{"] * (count > fours)
    return nested(loops or rest, body[:-1], after=[*rest, *body] if loops and rest else ())


def _plain_max_pool(operation: MaxPool, before: Values, after: Values) -> str:
    """The statements for small windows of real numbers to which nothing is added; empty for others."""
    window, (height, width) = operation.window, before.image
    if len(window.size) != 2 or math.prod(window.size) > 9 or any(map(any, window.sides)):
        return ""
    (high, wide), (down, right), (gap, step) = window.size, window.stride, window.dilation
    places = [dy * gap * width + dx * step for dy in range(high) for dx in range(wide)]
    body = [
        f"const float *x = in + (unit * {height} + i * {down}) * {width};",
        f"for (int32_t j = 0; j < {after.image[1]}; j++, x += {right}) {{",
        f"float largest = x[{places[0]}];",
        *(f"largest = x[{place}] > largest ? x[{place}] : largest;" for place in places[1:]),
        *("*out++ = largest;", "}"),
    ]
    loops = [f"for (int32_t unit = 0; unit < {after.channels}; unit++)"]
    return nested([*loops, f"for (int32_t i = 0; i < {after.image[0]}; i++) {{"], body)


def _max_pool(operation: MaxPool, number: int, before: Values, after: Values, constants: Constants) -> str:
    plain = _plain_max_pool(operation, before, after) if before.kind == "real" else ""
    if plain:
        return plain
    _, loops, at = _window(operation.window, number, before, constants)
    if before.kind == "bits":  # the largest of several signs is the OR of their bits
        words = -(-before.channels // constants.word)
        body = ["word largest = 0;", *loops, f"largest |= in[({at}) * {words} + k];", "}"]
        loop = f"for (int32_t k = 0; k < {words}; k++) {{"
        return nested([*_over_positions(after), loop], [*body, f"out[at * {words} + k] = largest;"])
    if before.kind == "real":
        value = f"in[unit * {before.positions} + {at}]"
        body = ["float largest = -FLT_MAX;", *loops, f"if ({value} > largest)", f"    largest = {value};", "}"]
        place = f"unit * {after.positions} + at"
        return nested([*_over_positions(after), _over_units(before)], [*body, f"out[{place}] = largest;"])
    least = {"uint8_t": "0", "int8_t": "INT8_MIN"}.get(before.type, "INT32_MIN")
    body = [  # all channels of a pixel at once, as vectors
        f"{after.type} *to = out + at * {after.channels};",
        *(f"for (int32_t unit = 0; unit < {after.channels}; unit++)", f"    to[unit] = {least};"),
        *(*loops, f"const {before.type} *pixel = in + ({at}) * {before.channels};"),
        f"for (int32_t unit = 0; unit < {after.channels}; unit++)",
        *("    to[unit] = pixel[unit] > to[unit] ? pixel[unit] : to[unit];", "}"),
    ]
    positions = _over_positions(after)
    return nested([*positions[:-1], f"{positions[-1]} {{"], body)


def _average_pool(operation: AveragePool, number: int, before: Values, after: Values, constants: Constants) -> str:
    window = operation.window_for((before.channels, *before.image[-operation.dimensions :]))
    size, loops, at = _window(window, number, before, constants)
    value = f"in[unit * {before.positions} + {at}]"
    body = ["float sum = 0.0f;", "int32_t count = 0;", *loops, f"sum += {value};", "count++;", "}"]
    if operation.counts_padding:
        body += [f"count = {math.prod(size)};"]
    body += [f"out[unit * {after.positions} + at] = sum / (float)count;"]
    return nested([*_over_positions(after), _over_units(before)], body)
