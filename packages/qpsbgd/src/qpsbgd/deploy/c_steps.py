"""The bodies of the C functions, one per operation, and the constants that they read.

Between steps, real numbers stand as (channels, positions); integers as (positions, channels); bits as (positions,
words), where the channels of a position are the bits of its words. Flattened bits and numbers of 8 bits stay where they
are: the weights that follow are reordered instead. Bits and integers of a dense layer that is applied
to every row of a matrix have the rows for positions and the features for channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import qpsbgd_runtime.operations as ops
from qpsbgd.deploy.c_bytes import byte_layer, store_result
from qpsbgd.deploy.c_passes import EXACT, MixedPool, WholeSum
from qpsbgd.deploy.c_real import real_layer
from qpsbgd.deploy.c_values import Frame, Statements, Values, float_text, indent, input_name, over
from qpsbgd_runtime.image_operations import AveragePool, Convolution, MaxPool, Window
from qpsbgd_runtime.operations import Operation, Shape
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Scale, Steps, Threshold

_UNROLLED = 16
"""Words of a row up to which their population counts are written out."""


def _sign(operation: ops.Sign, frame: Frame) -> str:
    after, word = frame.after, frame.word
    value = f"in[{_input_place(frame)}]"
    body = [f"out[at * {after.words(word)} + unit / {word}] |= (word)({value} >= 0) << (unit % {word});"]
    return indent(_over_all(after), body, before=_clear(after, word))


def _input_place(frame: Frame) -> str:
    """Where the number for the result of a position and a channel stands, among real numbers or a caller's."""
    return replace(frame.after, pitch=frame.before.pitch).real_place


def _spins(operation: ops.Spins, frame: Frame) -> str:
    before = frame.before
    spin = f"bit(in + at * {before.words(frame.word)}, unit) ? 1 : -1"
    return indent(_over_all(before), [f"out[{before.real_place}] = {spin};"])


def _epilogue(operation: Threshold | Requantize, frame: Frame) -> str:
    setup, store = store_result(operation, frame)
    value = f"const int32_t sum = in[at * {frame.after.channels} + unit];"
    return indent(_over_all(frame.after), [value, *store], before=setup)


def _layer(operation: ops.Dense | Convolution, frame: Frame) -> str:
    if frame.before.kind != "bits":
        return (real_layer if frame.before.kind == "real" else byte_layer)(operation, frame)
    if isinstance(operation, ops.Dense):
        return _dense(operation, frame)
    return (_patches if operation.groups == 1 else _grouped_convolution)(operation, frame)


def _dense(operation: ops.Dense, frame: Frame) -> str:
    signs, before = operation.weights.array[0], frame.before
    rows = before.positions if before.rows else 1
    ordered = signs.reshape(len(signs), before.channels, before.positions // rows).transpose(0, 2, 1)
    name, words = frame.array("weights", ordered), before.count(frame.word) // rows
    setup, store = store_result(frame.epilogue, frame, most=signs.shape[1])
    body = [
        f"const word *row = {name} + unit * {words};",
        *_differing("in", words, ""),
        "const int32_t lost = 2 * differing;",
        *store,
    ]
    rows_of_words = f"for (int32_t at = 0; at < {rows}; at++, in += {words})"
    return indent([rows_of_words, over("unit", frame.after.channels)], body, before=setup)


def _grouped_convolution(operation: Convolution, frame: Frame) -> str:
    """A convolution of bits in several groups, bit by bit."""
    before, after = frame.before, frame.after
    inputs, units = before.channels // operation.groups, after.channels // operation.groups
    size, loops, at = _window(operation.window, frame)
    setup, store = store_result(frame.epilogue, frame)
    signs = operation.weights.array[0].reshape(after.channels, inputs, *size).transpose(0, 2, 3, 1)
    name, width = frame.array("weights", signs), -(-inputs // frame.word)
    body = [
        *("int32_t differing = 0, products = 0;", *loops),
        f"const word *row = {name} + ((unit * {size[0]} + dy) * {size[1]} + dx) * {width};",
        f"const word *pixel = in + ({at}) * {before.words(frame.word)};",
        over("k", inputs),
        f"    differing += bit(pixel, unit / {units} * {inputs} + k) != bit(row, k);",
        *(f"products += {inputs};", "}", "const int32_t sum = products - 2 * differing;", *store),
    ]
    return indent([*_over_image(after), over("unit", after.channels)], body, before=setup)


def _patches(operation: Convolution, frame: Frame) -> str:
    """A convolution of bits in one group: all bits of a patch stand side by side."""
    channels, units = frame.before.channels, frame.after.channels
    size, loops, at = _window(operation.window, frame)
    signs = operation.weights.array[0].reshape(units, channels, *size).transpose(0, 2, 3, 1).reshape(units, -1)
    setup, store = store_result(frame.epilogue, frame, most=signs.shape[1])
    name, count, words = frame.array("weights", signs), signs.shape[1], -(-signs.shape[1] // frame.word)
    padded = "    continue;" in loops
    loops.append(f"const int32_t place = (dy * {size[1]} + dx) * {channels};")
    body = [
        *(f"word patch[{words}] = {{0}};", *([f"int32_t missing = {count};"] if padded else []), *loops),
        f"add_bits(in + ({at}) * {frame.before.words(frame.word)}, {channels}, place, patch);",
        *([f"missing -= {channels};"] if padded else []),
        "}",
    ]
    for inside in (True, False) if padded else (True,):
        if padded:
            body += ["if (missing == 0) {" if inside else "else {"]
        if not inside:
            ones = frame.array("ones", np.ones(channels, bool))
            body += [f"word seen[{words}] = {{0}};", *loops, f"add_bits({ones}, {channels}, place, seen);", "}"]
        body += [
            f"{over('unit', units)} {{",
            f"const word *row = {name} + unit * {words};",
            *_differing("patch", words, "" if inside else " & seen[k]"),
            f"const int32_t lost = 2 * differing{'' if inside else ' + missing'};",
            *(*store, "}", *(["}"] if padded else [])),
        ]
    return indent(_over_image(frame.after), body, before=setup)


def _differing(source: str, words: int, mask: str) -> list[str]:
    """Statements that count where words differ from those of `row`."""

    def term(k: int | str) -> str:
        return f"({source}[{k}] ^ row[{k}]){mask.replace('[k]', f'[{k}]')}"

    def fifteen(first: str = "", at: int = 0, count: int = 15) -> str:
        words = [term(f"{first}{at + k}") for k in range(count)] + ["0"] * (15 - count)
        return (
            f"popcount15({', '.join(words)})"
            if count > 2
            else " + ".join(f"popcount({word})" for word in words[:count])
        )

    if words > _UNROLLED:
        return [
            "int32_t differing = 0, k = 0;",
            *(f"for (; k < {words // 15 * 15}; k += 15)", f"    differing += {fifteen('k + ')};"),
            *(f"for (; k < {words}; k++)", f"    differing += popcount({term('k')});"),
        ]
    terms = [fifteen(at=at, count=min(15, words - at)) for at in range(0, words, 15)]
    return [f"const int32_t differing = {' + '.join(terms)};"]


def _over_image(values: Values) -> list[str]:
    rows, columns = values.image
    return ["int32_t at = 0;", over("i", rows), f"for (int32_t j = 0; j < {columns}; j++, at++)"]


def _over_all(values: Values) -> list[str]:
    return [over("at", values.positions), over("unit", values.channels)]


def _clear(values: Values, word: int) -> list[str]:
    return [over("k", values.count(word)), "    out[k] = 0;"]


def _window(window: Window, frame: Frame) -> tuple[Shape, list[str], str]:
    """Size of a window, loops over its pixels (one brace open), and the pixel's position in the image."""
    image = frame.before.image
    taps = window.rows_and_columns(image[-len(window.size) :])
    size = (taps[0].shape[1], taps[1].shape[1])
    loops = [over("dy", size[0]), f"{over('dx', size[1])} {{"]
    if any(map(any, window.sides)):
        rows, columns = frame.taps(*taps)
        loops += [f"const int32_t y = {rows}[i * {size[0]} + dy], x = {columns}[j * {size[1]} + dx];"]
    else:
        (down, right), (gap, step) = ((1, *pair)[-2:] for pair in (window.stride, window.dilation))
        loops += [f"const int32_t y = i * {down} + dy * {gap}, x = j * {right} + dx * {step};"]
    if (taps[0] < 0).any() or (taps[1] < 0).any():
        loops += ["if (y < 0 || x < 0)", "    continue;"]
    return size, loops, f"y * {image[1]} + x"


def _quantize(operation: Quantize, frame: Frame) -> str:
    """From real numbers, or from integers where a network begins with them."""
    steps, after, value = operation.steps, frame.after, f"in[{_input_place(frame)}]"
    least, largest = (f"value < {steps.low} ? {steps.low} : ", f"value > {steps.high} ? {steps.high} : ")
    if frame.before.type == "float":
        body = [
            f"const float x = {value} / {float_text(steps.scale)};",
            f"const int32_t value = nearest(x < {steps.low}.0f ? {steps.low}.0f : x > {steps.high}.0f ? "
            f"{steps.high}.0f : x);",
        ]
    else:
        body = [f"const int32_t value = {value};"]
    body += [f"out[at * {after.channels} + unit] = ({after.type})({least}{largest}value);"]
    return indent(_over_all(after), body)


def _reshape(operation: ops.Reshape, frame: Frame) -> str:
    """From one layout of bits or numbers of 8 bits into another."""
    before, after, word = frame.before, frame.after, frame.word
    loop = over("k", before.channels * before.positions)
    if before.kind != "bits":
        source = f"in[k % {before.positions} * {before.channels} + k / {before.positions}]"
        return indent([loop], [f"out[k % {after.positions} * {after.channels} + k / {after.positions}] = {source};"])
    bit = f"bit(in + at * {before.words(word)}, from)"
    body = [
        f"const int32_t from = k / {before.positions}, at = k % {before.positions};",
        f"const int32_t to = k / {after.positions}, place = k % {after.positions};",
        f"out[place * {after.words(word)} + to / {word}] |= (word){bit} << (to % {word});",
    ]
    return indent([loop], body, before=_clear(after, word))


def _scale(operation: Scale, frame: Frame) -> str:
    if frame.after.type == "int64_t":
        return _fixed_scale(operation, frame)
    before = frame.before
    last = operation.axis == -1 and len(before.shape) > 1 and not before.rows
    unit = f"at % {before.shape[-1]}" if last else "unit"
    factor, offset = (
        frame.array(what, values) + (f"[{unit}]" if len(values) > 1 else "[0]")
        for what, values in (("factors", operation.factor), ("offsets", operation.offset))
    )
    value = f"in[{before.real_place}]" if before.kind == "real" else f"(float)in[at * {before.channels} + unit]"
    loops = [over("unit", before.channels), over("at", before.positions)]
    return indent(loops, [f"out[{before.real_place}] = {factor} * {value} + {offset};"])


def input_steps(operations: Sequence[Operation]) -> Steps | None:
    """What inputs count in a network of integers that begins with a Quantize; None where it begins with signs."""
    first = next((operation for operation in operations if not isinstance(operation, ops.Reshape)), None)
    return first.steps if isinstance(first, Quantize) else None


def fixed_point(operation: Scale) -> tuple[int | None, float]:
    """The bits by which a scale of integers is raised, None if its sums stay as they are; the outputs' step."""
    factor, offset = (values.astype(np.float64) for values in (operation.factor, operation.offset))
    if len(factor) == 1 and factor[0] > 0 and not offset.any():
        return None, float(factor[0])
    # Factors get 31 bits, more than float32 has; sums have at most 31, so that all fits into 64.
    room = [
        bits - math.floor(math.log2(largest)) - 1
        for bits, largest in ((31, abs(factor).max()), (61, abs(offset).max()))
        if largest > 0
    ]
    shift = min(room, default=0)
    return shift, math.ldexp(1.0, -shift)


def _fixed_scale(operation: Scale, frame: Frame) -> str:
    """A scale at the end of a network of integers."""
    before, (shift, _) = frame.before, fixed_point(operation)
    value = f"in[at * {before.channels} + unit]"
    if shift is not None:
        parts = (("factors", operation.factor, np.int32), ("offsets", operation.offset, np.int64))
        factor, offset = (
            frame.array(what, np.rint(np.ldexp(values.astype(np.float64), shift)).astype(kind))
            + ("[unit]" if len(values) > 1 else "[0]")
            for what, values, kind in parts
        )
        value = f"(int64_t){factor} * {value} + {offset}"
    return indent(_over_all(before), [f"out[{before.real_place}] = {value};"])


def _clip(operation: ops.Clip, frame: Frame) -> str:
    value, body = "in[k]", list[str]()
    for bound, sign in ((operation.low, "<"), (operation.high, ">")):
        if math.isfinite(bound):
            name = f"x{len(body)}"
            body.append(f"const float {name} = {value};")
            value = f"{name} {sign} {float_text(bound)} ? {float_text(bound)} : {name}"
    count = frame.before.channels * frame.before.positions
    return indent([over("k", count)], [*body, f"out[k] = {value};"])


def _plain_max_pool(window: Window, before: Values, after: Values) -> str:
    """The statements for small windows of real numbers to which nothing is added; empty for others."""
    height, width = before.image
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
    return indent([over("unit", after.channels), over("i", after.image[0])], body)


def _max_pool(operation: MaxPool, frame: Frame) -> str:
    before, after = frame.before, frame.after
    if before.kind == "real" and (plain := _plain_max_pool(operation.window, before, after)):
        return plain
    if before.kind != "real":  # whose channels follow each other
        frame.follow_windows(*operation.window.rows_and_columns(before.image[-len(operation.window.size) :]))
    falling = operation.falling if isinstance(operation, MixedPool) and operation.falling.any() else None
    _, loops, at = _window(operation.window, frame)
    if before.kind == "bits":  # the largest of several signs is the OR of their bits
        words, turned = before.words(frame.word), ""
        if falling is not None:
            turned = f" ^ {frame.array('falling', falling)}[k]"
        body = ["word largest = 0;", *loops, f"largest |= in[({at}) * {words} + k]{turned};", "}"]
        return indent([*_over_image(after), over("k", words)], [*body, f"out[at * {words} + k] = largest{turned};"])
    units, value = over("unit", after.channels), "pixel[unit]"
    if before.kind == "real":
        value = f"in[unit * {before.positions} + {at}]"
        body = ["float largest = -FLT_MAX;", *loops, f"if ({value} > largest)", f"    largest = {value};", "}"]
        return indent([*_over_image(after), units], [*body, f"out[unit * {after.positions} + at] = largest;"])
    least = {"uint8_t": "0", "int8_t": "INT8_MIN"}.get(before.type, "INT32_MIN")
    largest = []
    if falling is not None:  # whose order is turned round by their complements
        turned = f" ^ {frame.array('falling', np.where(falling, -1, 0).astype(before.kind))}[unit]"
        value, largest = (
            f"({after.type})(pixel[unit]{turned})",
            [units, f"    to[unit] = ({after.type})(to[unit]{turned});"],
        )
    body = [  # all channels of a pixel at once, as vectors
        f"{after.type} *to = out + at * {after.channels};",
        *(units, f"    to[unit] = {least};"),
        *(*loops, f"const {before.type} *pixel = in + ({at}) * {before.channels};"),
        *(units, f"    to[unit] = {value} > to[unit] ? {value} : to[unit];", "}"),
        *largest,
    ]
    return indent(_over_image(after), body)


def _whole_sum(operation: WholeSum, frame: Frame) -> str:
    before, after, (low, high), divisor = frame.before, frame.after, operation.bounds, operation.divisor
    clipped = f"value < {low} ? {low} : value > {high} ? {high} : value"
    if operation.pool is None:
        shift, lift = divisor.bit_length() - 1, max(2 * divisor, EXACT)  # what is shifted is positive
        rounded = f"((raised + {divisor // 2 - 1} + (raised >> {shift} & 1)) >> {shift}) - {lift >> shift}"
        lines, offset, inputs = list[str](), 0, iter(enumerate(frame.inputs))
        for factors in operation.factors:
            values = [(*next(inputs), factor) for factor in factors]
            channels = values[0][1].channels
            terms = " + ".join(f"{input_name(at)}[at * {channels} + unit] * {factor}" for at, _, factor in values)
            lines += [
                f"{over('unit', channels)} {{",
                f"const int32_t raised = {terms} + {lift};",
                f"const int32_t value = {rounded if shift else f'raised - {lift}'};",
                f"out[at * {after.channels} + {offset} + unit] = ({after.type})({clipped});",
                "}",
            ]
            offset += channels
        if len(operation.factors) == 1:
            frame.distances = dict.fromkeys(range(len(frame.inputs)), 0)
        return indent([over("at", after.positions)], lines)
    window = operation.pool.window_for((before.channels, *before.image[-operation.pool.dimensions :]))
    size, loops, at = _window(window, frame)
    terms = " + ".join(
        f"{input_name(k)}[({at}) * {before.channels} + unit] * {factor}"
        for k, factor in enumerate(operation.factors[0])
    )
    body = ["int32_t sum = 0, count = 0;", *loops, f"sum += {terms};", "count++;", "}"]
    body += [f"count = {math.prod(size)};"] if operation.pool.counts_padding else []
    body += [
        f"const int32_t value = rounded(sum, count * {divisor});",
        f"out[at * {after.channels} + unit] = ({after.type})({clipped});",
    ]
    return indent([*_over_image(after), over("unit", after.channels)], body)


def _average_pool(operation: AveragePool, frame: Frame) -> str:
    before, after = frame.before, frame.after
    window = operation.window_for((before.channels, *before.image[-operation.dimensions :]))
    size, loops, at = _window(window, frame)
    value = f"in[unit * {before.positions} + {at}]"
    body = ["float sum = 0.0f;", "int32_t count = 0;", *loops, f"sum += {value};", "count++;", "}"]
    if operation.counts_padding:
        body += [f"count = {math.prod(size)};"]
    body += [f"out[unit * {after.positions} + at] = sum / (float)count;"]
    return indent([*_over_image(after), over("unit", before.channels)], body)


STEPS: Statements = {
    ops.Dense: _layer,
    Convolution: _layer,
    ops.Sign: _sign,
    ops.Spins: _spins,
    Threshold: _epilogue,
    Quantize: _quantize,
    Requantize: _epilogue,
    Scale: _scale,
    ops.Clip: _clip,
    MaxPool: _max_pool,
    AveragePool: _average_pool,
    MixedPool: _max_pool,
    WholeSum: _whole_sum,
    ops.Reshape: _reshape,
}
"""The operations of this file."""
