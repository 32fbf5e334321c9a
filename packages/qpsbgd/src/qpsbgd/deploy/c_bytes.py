"""The C code of layers over integers of 8 bits, and of what is done to the sums of any layer of integers.

Two results are computed at once, in the halves of a number of 32 bits: an addition serves both. Four inputs have 16
sums with signs, which are computed once for all units, and four bits of weights pick one. Windows over one channel, as
of depthwise convolutions, add and subtract instead: their tables would serve few units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpsbgd.deploy.c_real import Tables, in_blocks
from qpsbgd.deploy.c_values import Frame, indent, over
from qpsbgd_runtime.image_operations import Convolution
from qpsbgd_runtime.operations import Array, Dense, Weighted
from qpsbgd_runtime.unit_operations import Requantize, Threshold

_LARGEST = {"uint8_t": 255, "int8_t": 128}
_HALF = 2**15 - 1
"""The largest sum in half a number."""


def byte_layer(operation: Weighted, frame: Frame) -> str:
    """The statements of a layer whose inputs are integers of 8 bits."""
    before, after, signs = frame.before, frame.after, operation.weights.array[0]
    if isinstance(operation, Dense):
        rows, count = before.positions if before.rows else 1, signs.shape[1]
        if not before.rows:  # channels come last there
            signs = signs.reshape(-1, before.channels, before.positions).swapaxes(1, 2).reshape(-1, count)
        value = _pair(f"in[{{}} * {count} + block * {frame.word} + k]", rows)
        of_block = [
            *("for (int32_t k = 0; k < COUNT; k++)", f"    patch[k] = {value};"),
            *(["for (int32_t k = COUNT; k < (COUNT + 3) / 4 * 4; k++)", "    patch[k] = 0;"] if count % 4 else []),
        ]
        return _sums_by_tables(signs[None], rows, frame, of_block=of_block)
    assert isinstance(operation, Convolution)
    groups, taps = operation.groups, operation.window.rows_and_columns(before.image[-len(operation.window.size) :])
    frame.follow_windows(*taps)
    inputs, units = before.channels // groups, after.channels // groups
    signs = signs.reshape(groups, units, inputs, -1).swapaxes(2, 3)  # channels come last there
    if groups > 1 and inputs == 1:
        return _sums_by_adding(signs.reshape(groups * units, -1), taps, frame)
    places = ("first", "last")[: 1 + (after.positions > 1)]
    gather = [
        "int32_t *to = patch;",
        *_over_pixels(taps, places, frame, offset=f" + group * {inputs}" if groups > 1 else "", inputs=inputs),
        *(over("k", inputs), f"    *to++ = {_pair('{}_pixel[k]', after.positions)};", "}"),
    ]
    return _sums_by_tables(signs.reshape(groups, units, -1), after.positions, frame, gather=gather)


def _pair(value: str, positions: int) -> str:
    """The value of the first position, and of the last one in the upper half."""
    return value.format("first") + (f" + {value.format('last')} * 65536" if positions > 1 else "")


def _over_pixels(
    taps: tuple[Array, Array], places: Sequence[str], frame: Frame, *, inputs: int, offset: str = ""
) -> list[str]:
    """Loops over a window, one brace open, with pointers to the pixels that it sees at the positions `places`."""
    before, (high, wide), (rows, columns) = frame.before, (taps[0].shape[1], taps[1].shape[1]), frame.taps(*taps)
    inside, image_wide = "", frame.after.image[1]
    if min(taps[0].min(), taps[1].min()) < 0:
        inside = f"{{0}}_y < 0 || {{0}}_x < 0 ? {frame.array('zeros', np.zeros(inputs, before.type[:-2]))} : "
    lines = [over("dy", high), f"{over('dx', wide)} {{"]
    for at in places:
        lines += [
            f"const int32_t {at}_y = {rows}[{at} / {image_wide} * {high} + dy];",
            f"const int32_t {at}_x = {columns}[{at} % {image_wide} * {wide} + dx];",
            f"const {before.type} *const {at}_pixel = {inside.format(at)}"
            f"in + ({at}_y * {before.image[1]} + {at}_x) * {before.channels}{offset};",
        ]
    return lines


def _sums_by_tables(
    signs: Array, positions: int, frame: Frame, *, gather: Sequence[str] = (), of_block: Sequence[str] = ()
) -> str:
    """Sums with signs (groups, units, inputs), of one or two positions.

    `gather` puts all their inputs into `patch`, or `of_block` those of one block.
    """
    groups, units, count = signs.shape
    pairs, padded, sums = positions > 1, -(-min(count, frame.word if of_block else count) // 4) * 4, groups * units
    more = padded + (units + 2 * sums if pairs else sums)
    tables = Tables(frame, inputs=count, whole=True, more=more)
    words, blocks = frame.array("weights", in_blocks(signs.swapaxes(1, 2), frame.word)), -(-count // frame.word)
    full = max(1, _HALF // (_LARGEST[frame.before.type] * frame.word))  # blocks that may fill half a number
    target, offset = f"sums + group * {units}" if groups > 1 else "sums", "group * {blocks} + " if groups > 1 else ""
    use = [f"LOOK_UP({words} + ({offset.format(blocks=blocks)}block) * {units}, {units}, {target});"]
    split = list[str]()
    if pairs:
        frame.constants.helpers["split"] = _SPLIT
        use = [use[0].replace(f"{target});", "halves);")]
        split = [f"split(halves, {units}, {target}, {sums});"]
        use += [f"if (block % {full} == {full - 1})", f"    {split[0]}"] if blocks > full else []
    setup, store = store_result(frame.epilogue, frame)
    halves = f", *halves = sums + {2 * sums}" if pairs else ""
    body = [
        f"int32_t *patch = scratch + {tables.numbers}, *sums = patch + {padded}{halves};",
        f"const int32_t last = {f'first + 1 < {positions} ? first + 1 : ' if pairs else ''}first;",
        *(over("k", more - padded), "    sums[k] = 0;"),
        *([f"{over('group', groups)} {{"] if groups > 1 else []),
        *(*gather, *(f"patch[{k}] = 0;" for k in range(count, padded))),
        *tables.calls(source="patch", use=use, gather=of_block),
        *(*split, *(["}"] if groups > 1 else [])),
        f"for (int32_t at = first; at <= last; at++, sums += {sums}) {{",
        *(f"{over('unit', sums)} {{", "const int32_t sum = sums[unit];", *store, "}", "}"),
    ]
    return indent([f"for (int32_t first = 0; first < {positions}; first += 2)"], body, before=setup)


def _sums_by_adding(signs: Array, taps: tuple[Array, Array], frame: Frame) -> str:
    """Sums with signs (units, pixels) of windows over one channel each, number by number."""
    channels, word, count = frame.before.channels, frame.word, signs.shape[1]
    words, width = frame.array("weights", signs), -(-count // frame.word)
    setup, store = store_result(frame.epilogue, frame)
    share = len(signs) // channels
    channel = f"unit / {share}" if share > 1 else "unit"
    masks = [f"const word w{k} = {words}[unit * {width} + {k}];" for k in range(width)]
    sums = []
    for k in range(count):
        value = f"pixels[{k}][{channel}]"
        sums += [f"sum += w{k // word} >> {k % word} & 1 ? {value} : -{value};"]
    body = [
        f"const {frame.before.type} *pixels[{count}];",
        "int32_t window = 0;",
        *_over_pixels(taps, ("at",), frame, inputs=channels),
        *("pixels[window++] = at_pixel;", "}"),
        *(f"{over('unit', len(signs))} {{", *masks, "int32_t sum = 0;", *sums, *store, "}"),
    ]
    return indent([over("at", frame.after.positions)], body, before=setup)


def store_result(
    operation: Threshold | Requantize | None, frame: Frame, *, most: int | None = None
) -> tuple[list[str], list[str]]:
    """Statements before loops over positions `at` and units, and in them, which store a result.

    The sum is in `sum`, or `most` less what is in `lost`.
    """
    after, word, place = frame.after, frame.word, f"out[at * {frame.after.channels} + unit]"
    sums = [] if most is None else [f"const int32_t sum = {most} - lost;"]
    if operation is None:
        return [], [*sums, f"{place} = sum;"]
    if isinstance(operation, Threshold):
        units, words = after.channels, after.words(word)
        flipped = f" ^ {frame.array('flipped', operation.flipped)}[unit / {word}]" if operation.flipped.any() else ""
        if most is None:
            reached = f"sum >= {frame.array('levels', operation.levels)}[unit]"
        else:
            limits = (most - operation.levels.astype(np.int64)).clip(-(2**31) + 1, 2**31 - 1).astype(np.int32)
            reached = f"lost <= {frame.array('limits', limits)}[unit]"
        full = "!mask" if units % word == 0 else f"!mask || unit == {units - 1}"
        return ["word bits = 0, mask = 1;"], [
            *(f"bits |= {reached} ? mask : 0;", "mask <<= 1;"),
            *(f"if ({full}) {{", f"out[at * {words} + unit / {word}] = bits{flipped};", "bits = 0;", "mask = 1;", "}"),
        ]
    # What is shifted is positive: C leaves shifts of negative numbers to compilers.
    least, most, shift = operation.steps.low, operation.steps.high - operation.steps.low, operation.shift
    raised = operation.offsets.astype(np.int64) - (np.int64(least) << shift)
    factors, offsets = frame.array("factors", operation.factors.astype(np.int64)), frame.array("offsets", raised)
    low, high = (
        f"{values[0]}" if (values == values[0]).all() else f"{frame.array(what, values)}[unit]"
        for what, values in (("lows", operation.lows), ("highs", operation.highs))
    )
    above = "line < 0 ? 0 : " + (
        f"line >> {shift}" if shift >= 32 else f"line >> {shift} > {most} ? {most} : line >> {shift}"
    )
    lines = [
        *sums,
        f"const int64_t line = {factors}[unit] * sum + {offsets}[unit];",
        f"int32_t value = (int32_t)({above}) + {least};",
        f"value = value < {low} ? {low} : value > {high} ? {high} : value;",
    ]
    if operation.exceptions:
        units, sums, results = np.array(operation.exceptions, np.int32).T
        begins = frame.array("begins", np.searchsorted(units, np.arange(after.channels + 1)).astype(np.int32))
        lines += [
            f"for (int32_t k = {begins}[unit]; k < {begins}[unit + 1]; k++)",
            f"    value = sum == {frame.array('sums', sums)}[k] ? {frame.array('results', results)}[k] : value;",
        ]
    return [], [*lines, f"{place} = ({after.type})value;"]


_SPLIT = """
/* Adds both halves of sums to two rows of sums, and clears them. */
static void split(int32_t *halves, int32_t units, int32_t *sums, int32_t apart)
{
    for (int32_t unit = 0; unit < units; unit++) {
        const int32_t half = halves[unit], low = ((half & 0xffff) ^ 0x8000) - 0x8000;
        sums[unit] += low;
        sums[unit + apart] += (half - low) / 65536;
        halves[unit] = 0;
    }
}
"""
