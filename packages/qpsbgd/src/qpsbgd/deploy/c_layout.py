"""Generated C as a folder for a tool: an Arduino or PlatformIO library, a CMake project, or plain files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from qpsbgd.deploy.c_steps import fixed_point, input_steps
from qpsbgd.deploy.c_values import float_text
from qpsbgd_runtime.operations import Array, Operation, Reshape, Shape
from qpsbgd_runtime.packed_model import PackedModel
from qpsbgd_runtime.unit_operations import Scale, per_unit

Layout = Literal["plain", "arduino", "platformio", "cmake"]
SAMPLES = 3
"""Samples of a self-test."""


def file_names(name: str, layout: str) -> tuple[str, ...]:
    """The files of a layout: header, source, self-test, then what the layout adds."""
    if layout not in get_args(Layout):
        raise ValueError(f"layout must be one of {', '.join(get_args(Layout))}, got {layout!r}")
    sources = (f"{name}.h", f"{name}.c", f"{name}_test.c")
    if layout == "arduino":
        example = f"examples/{name}_example/{name}_example.ino"
        return (*(f"src/{file}" for file in sources), "library.properties", example)
    if layout == "platformio":
        return (*(f"src/{file}" for file in sources), "library.json", "examples/example.cpp")
    return (*sources, f"{name}_main.c", *(["CMakeLists.txt"] if layout == "cmake" else []))


def added_texts(layout: str, *, name: str, prefix: str, input: str, program: str, mathematics: bool) -> list[str]:
    """The texts of the files after header, source and self-test, in the order of `file_names`."""
    sketch = SKETCH.format(name=name, prefix=prefix, input=input)
    if layout == "arduino":
        return [PROPERTIES.format(name=name), sketch]
    if layout == "platformio":
        return [json.dumps(MANIFEST | {"name": name, "headers": f"{name}.h"}, indent=2) + "\n", sketch]
    link = f"target_link_libraries({name} PUBLIC m)\n" if mathematics else ""
    return [program, *([CMAKE.format(name=name, link=link)] if layout == "cmake" else [])]


def self_test(operations: Sequence[Operation], shape: Shape, *, integer: bool, rows: int | None, **common: str) -> str:
    """C that runs stored samples and compares the outputs: equal in integers, to four digits in floating point.

    Args:
        operations: The network.
        shape: The shape of a sample.
        integer: Whether the C code is integer-only.
        rows: The rows of the tables in which inputs are looked up, None if they are not.
        common: `name`, `prefix`, and the C types `input` and `output`.
    """
    generator, size = np.random.default_rng(0), (SAMPLES, *shape)
    steps = input_steps(operations)
    scale = np.float32(1)
    stored: Array
    if integer and steps is not None:
        stored, scale = generator.integers(steps.low, steps.high, size, endpoint=True), np.float32(steps.scale)
    elif integer:
        stored = generator.choice([-1, 1], size)
    else:
        stored = generator.integers(-128, 128, size) / 64 if rows is None else generator.integers(0, rows, size)
    inputs = stored.astype(np.float32) * scale
    expected = _whole_outputs(operations, shape, inputs) if integer else PackedModel(operations, shape)(inputs)
    compare = "output[k] != outputs[sample][k]"
    if not integer:
        bound = float_text(1e-4 * max(1e-2, float(abs(expected).max())))
        difference = "(output[k] - outputs[sample][k])"
        compare = f"!({difference} <= {bound} && {difference} >= -{bound})"
    return SELF_TEST.format(
        **common,
        samples=SAMPLES,
        inputs=_rows(stored, integer),
        outputs=_rows(expected, integer),
        compare=compare,
    )


def _whole_outputs(operations: Sequence[Operation], shape: Shape, inputs: Array) -> Array:
    """The outputs (samples, …) of a network of integers in C, in units of its output step."""
    while isinstance(operations[-1], Reshape):
        operations = operations[:-1]
    last = operations[-1]
    if not isinstance(last, Scale):  # signs
        return PackedModel(operations, shape)(inputs).astype(np.int64)
    sums = PackedModel(operations[:-1], shape)(inputs).astype(np.int64)
    shift, _ = fixed_point(last)
    if shift is None:
        return sums
    factor, offset = (
        per_unit(np.rint(np.ldexp(values.astype(np.float64), shift)).astype(np.int64), last.axis, sums.shape[1:])
        for values in (last.factor, last.offset)
    )
    return factor * sums + offset


def _rows(values: Array, integer: bool) -> str:
    """The rows of a C array of samples."""
    lines = []
    for row in values.reshape(SAMPLES, -1):
        items = [f"INT64_C({v})" if abs(v) >= 2**31 else str(v) for v in row.tolist()] if integer else []
        items = items or [float_text(value) for value in row.tolist()]
        body = ",\n     ".join(", ".join(items[at : at + 16]) for at in range(0, len(items), 16))
        lines.append(f"    {{{body}}},\n")
    return "".join(lines)


SELF_TEST = """\
/* Made by qpsbgd: {samples} random samples and the outputs that {name}_run must give; see {name}.h. */
#include "{name}.h"

static const {input} inputs[{samples}][{prefix}_INPUTS] = {{
{inputs}}};

static const {output} outputs[{samples}][{prefix}_OUTPUTS] = {{
{outputs}}};

int32_t {name}_self_test(void)
{{
    static {output} output[{prefix}_OUTPUTS];
    for (int32_t sample = 0; sample < {samples}; sample++) {{
        if ({name}_run(inputs[sample], output) < 0)
            return sample + 1;
        for (int32_t k = 0; k < {prefix}_OUTPUTS; k++)
            if ({compare})
                return sample + 1;
    }}
    return 0;
}}
"""

SKETCH = """\
/* Made by qpsbgd: tests {name} on the board, then classifies `input` every second. */
#include <Arduino.h>
#include <{name}.h>

static {input} input[{prefix}_INPUTS]; /* what {name}.h says of inputs */

void setup()
{{
    Serial.begin(115200);
    while (!Serial && millis() < 5000) {{
    }}
    const long failed = {name}_self_test();
    if (failed) {{
        Serial.print("self-test of {name} failed: other outputs than stored for sample ");
        Serial.println(failed);
    }} else
        Serial.println("self-test of {name} passed");
}}

void loop()
{{
    const unsigned long before = micros();
    const long answer = {name}_classify(input);
    const unsigned long after = micros();
    Serial.print("class ");
    Serial.print(answer);
    Serial.print(", microseconds ");
    Serial.println(after - before);
    delay(1000);
}}
"""

PROPERTIES = """\
name={name}
version=1.0.0
author=qpsbgd
maintainer=qpsbgd
sentence=A neural network with binary weights, made by qpsbgd.
paragraph=Plain C99 without a heap: {name}_run, {name}_classify and {name}_self_test.
category=Data Processing
url=https://qpsbgd.github.io
architectures=*
includes={name}.h
"""

MANIFEST = {
    "name": "",
    "version": "1.0.0",
    "description": "A neural network with binary weights, made by qpsbgd: plain C99 without a heap",
    "keywords": "neural network",
    "headers": "",
    "frameworks": "*",
    "platforms": "*",
    "examples": [{"name": "example", "base": "examples", "files": ["example.cpp"]}],
}

CMAKE = """\
# Made by qpsbgd. In a firmware: add_subdirectory(this folder), target_link_libraries(firmware {name}).
# Alone: cmake -B build, cmake --build build, ctest --test-dir build.
cmake_minimum_required(VERSION 3.13)
project({name} C)
add_library({name} STATIC {name}.c {name}_test.c)
set_target_properties({name} PROPERTIES C_STANDARD 99)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
{link}
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR AND NOT CMAKE_CROSSCOMPILING)
  add_executable({name}_main {name}_main.c)
  target_link_libraries({name}_main {name})
  enable_testing()
  add_test(NAME {name} COMMAND {name}_main --self-test)
endif()
"""
