"""Networks as plain C99: constant arrays and loops, no heap, and no floating point in fully binary networks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qpsbgd.atomic import writing
from qpsbgd.deploy.c_steps import Constants, Values, fixed_point, repacked, step, weighted
from qpsbgd.deploy.operations import (
    Convolution,
    Dense,
    Operation,
    Reshape,
    Scale,
    Shape,
    Sign,
    Spins,
    Threshold,
)
from qpsbgd.deploy.stages import walk


@dataclass(frozen=True)
class CSource:
    """The C code of a network; `print` tells where it is and what it needs.

    Attributes:
        files: The header, the source, and a program that reads samples from standard input.
        flash_bytes: Of all constant arrays, without the code.
        ram_bytes: Of the static buffers, without the caller's own arrays, padding between buffers and the stack.
        integer: Whether only whole numbers occur.
    """

    files: tuple[Path, ...]
    flash_bytes: int
    ram_bytes: int
    integer: bool

    def __str__(self) -> str:
        names = ", ".join(str(path) for path in self.files)
        numbers = "whole numbers only" if self.integer else "with floating point"
        return (
            f"{names}: {self.flash_bytes:,} bytes of constants (flash), {self.ram_bytes:,} bytes of buffers (RAM), "
            f"no heap, {numbers}"
        )


def write_c(operations: Sequence[Operation], folder: Path, *, input_shape: Shape, name: str, word_bits: int) -> CSource:
    """Write the header, the source and a small program into a folder, which is created where it is missing."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name must be a C identifier that begins with a letter, got {name!r}")
    if word_bits not in (32, 64):
        raise ValueError(f"word_bits must be 32 or 64, got {word_bits!r}")
    network = _Network(operations, input_shape, word_bits)
    texts = {
        f"{name}.h": network.header(name),
        f"{name}.c": network.source(name),
        f"{name}_main.c": network.program(name),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, text in texts.items():
        with writing(folder / file_name) as file:
            file.write(text.encode())
    files = tuple(folder / file_name for file_name in texts)
    return CSource(files, network.constants.bytes, network.ram_bytes, network.integer)


@dataclass(frozen=True)
class _Function:
    body: str
    before: Values
    after: Values


class _Network:
    """The functions of a network, in the order in which they are called, and their buffers."""

    def __init__(self, operations: Sequence[Operation], input_shape: Shape, word: int) -> None:
        self.constants = Constants(word)
        self.integer = _is_integer(operations)
        self.output_step = 1.0
        if len(input_shape) > 3:
            raise ValueError(f"input_shape must have at most three dimensions, got {input_shape}")
        self.functions: list[_Function] = []
        self.values = replace(Values.of("real", input_shape), type="int8_t" if self.integer else "float", name="input")
        stages = list(walk(operations, input_shape))
        place = 0
        while place < len(stages):
            operation, _, _, kind, shape = stages[place]
            place += 1
            fused = None
            if isinstance(operation, Dense | Convolution) and place < len(stages):
                following = stages[place][0]
                if isinstance(following, Threshold):
                    fused, kind = following, "bits"
                    place += 1
            self._add(operation, fused, replace(Values.of(kind, shape), type=self._type(kind)))
        if not self.functions:
            raise ValueError("the network computes nothing: it has no layers")
        last = self.functions[-1]
        after = replace(last.after, name="output", type="int64_t" if self.integer else "float")
        self.functions[-1] = replace(last, after=after)

    def _type(self, kind: str) -> str:
        return {"real": "float", "bits": "word", "ints": "int32_t"}[kind]

    def _add(self, operation: Operation, fused: Threshold | None, after: Values) -> None:
        number, before = len(self.functions) + 1, self.values
        if isinstance(operation, Reshape):
            if before.kind != "bits":
                self.values = replace(before, channels=after.channels, image=after.image)
            elif after.positions > 1 and (before.channels, before.image) != (after.channels, after.image):
                self._append(repacked(before, after, self.constants.word), after)
            return
        if isinstance(operation, Dense | Convolution):
            self._append(weighted(operation, fused, number, before, after, self.constants), after)
        elif isinstance(operation, Scale) and self.integer:
            body, self.output_step = fixed_point(operation, number, before, self.constants)
            self._append(body, after)
        else:
            self._append(step(operation, number, before, after, self.constants), after)

    def _append(self, body: str, after: Values) -> None:
        after = replace(after, name="ab"[len(self.functions) % 2])
        self.functions.append(_Function(body, self.values, after))
        self.values = after

    def _buffers(self) -> dict[str, dict[str, int]]:
        """Numbers of every C type in the buffers a and b."""
        found: dict[str, dict[str, int]] = {"a": {}, "b": {}}
        for function in self.functions[:-1]:
            sizes, values = found[function.after.name], function.after
            sizes[values.type] = max(sizes.get(values.type, 0), values.count(self.constants.word))
        return {name: sizes for name, sizes in found.items() if sizes}

    @property
    def ram_bytes(self) -> int:
        size = {"float": 4, "int32_t": 4, "word": self.constants.word // 8}
        last = self.functions[-1].after
        outputs = last.channels * last.positions * (8 if self.integer else 4)  # of NAME_classify
        align = {name: max(map(size.__getitem__, sizes)) for name, sizes in self._buffers().items()}
        return outputs + sum(
            -(-max(count * size[kind] for kind, count in sizes.items()) // align[name]) * align[name]
            for name, sizes in self._buffers().items()
        )

    def _signature(self, name: str) -> str:
        first, last = self.functions[0].before, self.functions[-1].after
        prefix = name.upper()
        return f"(const {first.type} input[{prefix}_INPUTS], {last.type} output[{prefix}_OUTPUTS])"

    def header(self, name: str) -> str:
        """The header."""
        first, last, prefix = self.functions[0].before, self.functions[-1].after, name.upper()
        if self.integer:
            takes = "Inputs count by their sign: +1 for 0 and above, -1 below."
            gives = f"Outputs are whole numbers; times {prefix}_OUTPUT_STEP they are the trained network's outputs."
        else:
            takes = (
                f"Inputs must be finite: where one is not, {name}_run returns -1 and writes no outputs, and\n"
                f"   {name}_classify returns -1. Compiled with -DQPSBGD_UNCHECKED they are not looked at, and NaN or\n"
                "   infinite inputs give arbitrary outputs."
            )
            gives = "Outputs are those of the trained network."
        step_line = f"#define {prefix}_OUTPUT_STEP {self.output_step:.17g}\n" if self.integer else ""
        return _HEADER.format(
            prefix=prefix,
            name=name,
            inputs=first.channels * first.positions,
            outputs=last.channels * last.positions,
            step=step_line,
            takes=takes,
            gives=gives,
            signature=self._signature(name),
            classify=f"(const {first.type} input[{prefix}_INPUTS])",
            flash=self.constants.bytes,
            ram=self.ram_bytes,
        )

    def source(self, name: str) -> str:
        """The source."""
        bodies = "\n".join(
            f"static void step{number}(const {one.before.type} *in, {one.after.type} *out)\n{{\n{one.body}\n}}\n"
            for number, one in enumerate(self.functions, 1)
        )
        constants = "\n".join(self.constants.texts)
        calls = "\n".join(
            f"    step{number}({_reference(one.before)}, {_reference(one.after)});"
            for number, one in enumerate(self.functions, 1)
        )
        buffers = "".join(
            "static union {\n"
            + "".join(f"    {kind} {_MEMBERS[kind]}[{count}];\n" for kind, count in sorted(sizes.items()))
            + f"}} {buffer};\n"
            for buffer, sizes in self._buffers().items()
        )
        helpers = "".join(text for word, text in _HELPERS.items() if word in bodies)
        includes = "#include <float.h>\n" if "FLT_MAX" in bodies else ""
        includes += "" if self.integer else "#include <string.h>\n"
        if "word" in bodies + constants:
            helpers = f"typedef uint{self.constants.word}_t word;\n{helpers}"
        first, last, prefix = self.functions[0].before, self.functions[-1].after, name.upper()
        popcount = "popcountll" if self.constants.word == 64 else "popcountl"
        return _SOURCE.format(
            name=name,
            includes=includes,
            helpers=helpers.replace("BUILTIN", f"__builtin_{popcount}"),
            constants=constants,
            bodies=bodies,
            buffers=buffers,
            signature=self._signature(name),
            check="" if self.integer else _CHECK.format(prefix=prefix),
            calls=calls,
            classify=f"(const {first.type} input[{prefix}_INPUTS])",
            output=last.type,
            prefix=prefix,
        )

    def program(self, name: str) -> str:
        """A program that reads samples and prints outputs."""
        first, last = self.functions[0].before, self.functions[-1].after
        read = "(int8_t)(value >= 0 ? 1 : -1)" if self.integer else "(float)value"
        show = '"%" PRId64 " ", output[k]' if self.integer else '"%.9g ", (double)output[k]'
        return _PROGRAM.format(name=name, prefix=name.upper(), input=first.type, output=last.type, read=read, show=show)


_MEMBERS = {"float": "reals", "int32_t": "sums", "word": "bits"}


def _reference(values: Values) -> str:
    return values.name if values.name in ("input", "output") else f"{values.name}.{_MEMBERS[values.type]}"


def _is_integer(operations: Sequence[Operation]) -> bool:
    """Whether real numbers occur only as inputs, of which the signs are taken, and as outputs."""
    rest = [operation for operation in operations if not isinstance(operation, Reshape)]
    if not rest or not isinstance(rest[0], Sign) or not isinstance(rest[-1], Scale | Spins):
        return False
    return not any(operation.gives == "real" or operation.takes == ("real",) for operation in rest[1:-1])


_HEADER = """\
/* Made by qpsbgd. {flash} bytes of constants, {ram} bytes of static buffers, no heap.
   {takes}
   {gives}
   Not reentrant: calls from several threads need a lock. */
#ifndef {prefix}_H
#define {prefix}_H

#include <stdint.h>

#define {prefix}_INPUTS {inputs}
#define {prefix}_OUTPUTS {outputs}
{step}
/* Compute all outputs; returns 0, or -1 if an input is refused. */
int32_t {name}_run{signature};

/* The number of the largest output, or -1 if an input is refused. */
int32_t {name}_classify{classify};

#endif
"""

_HELPERS = {
    "popcount(": """\

static int32_t popcount(word bits)
{
#if defined(__GNUC__) && !defined(QPSBGD_PORTABLE)
    return (int32_t)BUILTIN(bits);
#else
    int32_t count = 0;
    for (; bits; bits &= bits - 1)
        count++;
    return count;
#endif
}
""",
    "bit(": """\

static int32_t bit(const word *words, int32_t k)
{
    const int32_t size = (int32_t)(8 * sizeof(word));
    return (int32_t)(words[k / size] >> (k % size) & 1);
}
""",
}

_SOURCE = """\
/* Made by qpsbgd; see {name}.h. */
#include "{name}.h"

{includes}{helpers}
{constants}
{buffers}
{bodies}
int32_t {name}_run{signature}
{{
{check}{calls}
    return 0;
}}

int32_t {name}_classify{classify}
{{
    static {output} output[{prefix}_OUTPUTS];
    int32_t best = 0;
    if ({name}_run(input, output) < 0)
        return -1;
    for (int32_t k = 1; k < {prefix}_OUTPUTS; k++)
        if (output[k] > output[best])
            best = k;
    return best;
}}
"""

# By bits, so that the check also works under -ffast-math, which takes all numbers for finite.
_CHECK = """\
#ifndef QPSBGD_UNCHECKED
    for (int32_t k = 0; k < {prefix}_INPUTS; k++) {{
        uint32_t bits;
        memcpy(&bits, &input[k], sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u)
            return -1;
    }}
#endif
"""

_PROGRAM = """\
/* Made by qpsbgd: reads samples, as numbers between blanks, and prints the class and all outputs of each.
   cc -std=c99 -O2 {name}.c {name}_main.c -o {name} */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "{name}.h"

static {input} input[{prefix}_INPUTS];
static {output} output[{prefix}_OUTPUTS];

static int finite(double value)
{{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits >> 52 & 0x7ff) != 0x7ff;
}}

int main(void)
{{
    double value;
    int32_t count = 0, sample = 0, good = 1;
    while (scanf("%lf", &value) == 1) {{
        good = good && finite(value);
        input[count++] = {read};
        if (count < {prefix}_INPUTS)
            continue;
        count = 0;
        sample++;
        if (!good || {name}_run(input, output) < 0) {{
            fprintf(stderr, "sample %" PRId32 ": inputs must be finite numbers\\n", sample);
            return 2;
        }}
        printf("%" PRId32 ": ", {name}_classify(input));
        for (int32_t k = 0; k < {prefix}_OUTPUTS; k++)
            printf({show});
        printf("\\n");
    }}
    return count != 0;
}}
"""
