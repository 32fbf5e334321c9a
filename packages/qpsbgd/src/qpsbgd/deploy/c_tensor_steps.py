"""The bodies of the C functions for operations on numbers, dimensions and several values.

Real numbers stand in the order of their dimensions, the last one fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import qpsbgd_runtime.tensor_operations as tensors
from qpsbgd.deploy.c_values import Frame, Statements, float_text, indent, input_name, over
from qpsbgd_runtime.operations import Shape

_FUNCTIONS = {
    "gelu": "0.5f * x * (1.0f + erff(0.707106781f * x))",
    "gelu tanh": "0.5f * x * (1.0f + tanhf(0.797884561f * (x + 0.044715f * x * x * x)))",
    "hard sigmoid": "(x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : (x + 3.0f) / 6.0f)",
    "hard swish": "(x <= -3.0f ? 0.0f : x >= 3.0f ? x : x * (x + 3.0f) / 6.0f)",
    "sigmoid": "1.0f / (1.0f + expf(-x))",
    "silu": "x / (1.0f + expf(-x))",
    "tanh": "tanhf(x)",
}


def _activation(operation: tensors.Activation, frame: Frame) -> str:
    leaky = operation.function == "leaky relu"
    value = f"(x < 0 ? {float_text(operation.slope)} * x : x)" if leaky else _FUNCTIONS[operation.function]
    return indent([over("k", math.prod(frame.before.shape))], ["const float x = in[k];", f"out[k] = {value};"])


def _transpose(operation: tensors.Transpose, frame: Frame) -> str:
    steps = _steps(frame.before.shape)
    return _gather(frame.after.shape, f"in[{_index([steps[at] for at in operation.order])}]")


def _slice(operation: tensors.Slice, frame: Frame) -> str:
    steps, axis = _steps(frame.before.shape), operation.dimension(frame.before.shape)
    place = f"{operation.start * steps[axis]} + " if operation.start else ""
    place += _index(steps if operation.keep else [*steps[:axis], *steps[axis + 1 :]])
    return _gather(frame.after.shape, f"in[{place}]")


def _embedding(operation: tensors.Embedding, frame: Frame) -> str:
    if frame.before.name != "input":
        raise ValueError(f"{operation} must take the network's inputs themselves in C; use packed or ONNX")
    width = operation.table.shape[1]
    row = f"const float *row = {frame.array('table', operation.table)} + (int32_t)in[k] * {width};"
    return indent([over("k", math.prod(frame.before.shape))], [row, over("d", width), "    *out++ = row[d];"])


def _steps(shape: Shape) -> list[int]:
    """How far apart neighbours along every dimension are."""
    return [math.prod(shape[at + 1 :]) for at in range(len(shape))]


def _loops(shape: Shape) -> list[str]:
    """A loop over every dimension."""
    return [over(f"d{at}", size) for at, size in enumerate(shape)] or ["{"]


def _index(steps: Sequence[int]) -> str:
    terms = [f"d{at}" if step == 1 else f"d{at} * {step}" for at, step in enumerate(steps) if step]
    return " + ".join(terms) or "0"


def _gather(shape: Shape, value: str, *before: str) -> str:
    """One number after the other, for every place of a shape; `before` are statements before each."""
    return indent(["int32_t k = 0;", *_loops(shape)], [*before, f"out[k++] = {value};"])


def _take(operation: tensors.Take, frame: Frame) -> str:
    shape = frame.before.shape
    steps, axis = _steps(shape), operation.dimension(shape)
    place = f"const int32_t from = {frame.array('places', operation.places)}[d{axis}];"
    rest = _index([0 if at == axis else step for at, step in enumerate(steps)])
    value = f"in[from * {steps[axis]} + {rest}]"
    if (operation.places < 0).any():
        value = f"from < 0 ? {float_text(operation.fill)} : {value}"
    return _gather(frame.after.shape, value, place)


def _softmax(operation: tensors.Softmax, frame: Frame) -> str:
    shape = frame.before.shape
    axis = operation.dimension(shape)
    size, inner = shape[axis], math.prod(shape[axis + 1 :])
    along = over("k", size)
    body = [
        f"const float *x = in + row * {size * inner} + at;",
        f"float *y = out + row * {size * inner} + at;",
        "float largest = x[0], sum = 0.0f;",
        f"{along} {{",
        *(f"if (x[k * {inner}] > largest)", f"    largest = x[k * {inner}];", "}"),
        f"{along} {{",
        *(f"y[k * {inner}] = expf(x[k * {inner}] - largest);", f"sum += y[k * {inner}];", "}"),
        *(along, f"    y[k * {inner}] /= sum;"),
    ]
    return indent([over("row", math.prod(shape[:axis])), over("at", inner)], body)


def _normalize(operation: tensors.Normalize, frame: Frame) -> str:
    *rows, size = frame.before.shape
    along = over("k", size)
    body = [
        f"const float *x = in + row * {size};",
        f"float *y = out + row * {size};",
        "float mean = 0.0f, square = 0.0f;",
    ]
    if operation.centred:
        body += [along, "    mean += x[k];", f"mean /= {size};"]
    body += [f"{along} {{", "y[k] = x[k] - mean;", "square += y[k] * y[k];", "}"]
    body += [f"square = sqrtf(square / {size} + {float_text(operation.eps)});", along, "    y[k] /= square;"]
    return indent([over("row", math.prod(rows))], body)


def _mean(operation: tensors.Mean, frame: Frame) -> str:
    shape = frame.before.shape
    places = operation.places(shape)
    kept = _steps(tuple(1 if at in places else size for at, size in enumerate(shape)))
    steps = [0 if at in places else step for at, step in enumerate(kept)]
    count = math.prod(shape[at] for at in places)
    total = math.prod(shape) // count
    clear = [over("k", total), "    out[k] = 0.0f;", "int32_t k = 0;"]
    divide = [f"for (k = 0; k < {total}; k++)", f"    out[k] /= {count};"]
    return indent(_loops(shape), [f"out[{_index(steps)}] += in[k++];"], before=clear, after=divide)


def _combine(operation: tensors.Combine, frame: Frame) -> str:
    sign, first = {"add": "+", "subtract": "-", "multiply": "*"}[operation.how], frame.before.shape
    if operation.constant is None:
        other, second = "in1", frame.inputs[1].shape
    else:
        other, second = frame.array("constants", operation.constant), operation.constant.shape
    if first == second:
        return indent([over("k", math.prod(second))], [f"out[k] = in[k] {sign} {other}[k];"])
    shape = frame.after.shape
    left, right = (_index(_broadcast_steps(sizes, len(shape))) for sizes in (first, second))
    return _gather(shape, f"in[{left}] {sign} {other}[{right}]")


def _broadcast_steps(shape: Shape, rank: int) -> list[int]:
    """The steps of values whose dimensions of size 1 are repeated, with dimensions added in front."""
    steps = [0 if size == 1 else step for size, step in zip(shape, _steps(shape), strict=True)]
    return [0] * (rank - len(shape)) + steps


def _concatenate(operation: tensors.Concatenate, frame: Frame) -> str:
    after, start, body = frame.after.shape, 0, list[str]()
    axis = operation.dimension(after)
    for at, values in enumerate(frame.inputs):
        size = math.prod(values.shape[axis:])
        place = f"row * {math.prod(after[axis:])} + {start} + k"
        body += [over("k", size), f"    out[{place}] = {input_name(at)}[row * {size} + k];"]
        start += size
    return indent([over("row", math.prod(after[:axis]))], body)


def _product(operation: tensors.Product, frame: Frame) -> str:
    (*batch, rows, columns), inner = frame.after.shape, frame.before.shape[-1]
    body = [
        f"const float *left = in + (matrix * {rows} + i) * {inner};",
        f"const float *right = in1 + matrix * {inner * columns} + j;",
        *("float sum = 0.0f;", over("k", inner), f"    sum += left[k] * right[k * {columns}];"),
        f"out[(matrix * {rows} + i) * {columns} + j] = sum;",
    ]
    return indent([over("matrix", math.prod(batch)), over("i", rows), over("j", columns)], body)


TENSOR_STEPS: Statements = {
    tensors.Activation: _activation,
    tensors.Softmax: _softmax,
    tensors.Normalize: _normalize,
    tensors.Mean: _mean,
    tensors.Transpose: _transpose,
    tensors.Slice: _slice,
    tensors.Take: _take,
    tensors.Embedding: _embedding,
    tensors.Combine: _combine,
    tensors.Concatenate: _concatenate,
    tensors.Product: _product,
}
"""The operations of this file."""
