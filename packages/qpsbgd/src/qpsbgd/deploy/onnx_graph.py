"""Networks as ONNX graphs; binary weights are stored as bits and unpacked by the graph itself."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qpsbgd_runtime.operations as ops
import qpsbgd_runtime.tensor_operations as tensors
from qpsbgd_qubo.files.atomic import writing
from qpsbgd_runtime.image_operations import AveragePool, Convolution, MaxPool, Window
from qpsbgd_runtime.operations import Array, Operation, Shape
from qpsbgd_runtime.stages import walk
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Scale, Steps, Threshold, per_unit

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise ImportError("ONNX files need onnx: pip install 'qpsbgd[onnx]'") from error

OPSET, IR_VERSION = 19, 9  # 19: padding mode "wrap". Both are read by onnxruntime since 1.16

QONNX = "qonnx.custom_op.general"  # the domain of QONNX's operators

_PADDING = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def write_onnx(operations: Sequence[Operation], path: Path, *, input_shape: Shape, form: str) -> None:
    """Write the graph; its batch dimension is free."""
    if form not in ("bits", "float32", "qonnx"):
        raise ValueError(f"weights must be bits, float32 or qonnx, got {form!r}")
    graph = _Graph(form)
    values, stages = ["input"], walk(operations, input_shape)
    for operation, sources, before, _ in stages:
        values.append(graph.add(operation, [values[source] for source in sources], before[0].shape))
    graph.node("Identity", [values[-1]], output="output")
    shape = stages[-1].after.shape if stages else input_shape
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *sizes])
        for name, sizes in (("input", input_shape), ("output", shape))
    ]
    made = helper.make_graph(graph.nodes, "qpsbgd", ends[:1], ends[1:], graph.initializers)
    opsets = [helper.make_opsetid("", OPSET), *([helper.make_opsetid(QONNX, 1)] if form == "qonnx" else [])]
    model = helper.make_model(made, producer_name="qpsbgd", ir_version=IR_VERSION, opset_imports=opsets)
    onnx.checker.check_model(model)
    with writing(path) as file:
        file.write(model.SerializeToString())


class _Graph:
    """Nodes and constants. Bits and sums are float32 in the graph: integers up to 2²⁴ are exact there."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def node(self, kind: str, inputs: list[str], output: str | None = None, **options: Any) -> str:
        """Add a node with one output; returns its name."""
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """Add a constant; returns its name."""
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def add(self, operation: Operation, inputs: list[str], shape: Shape) -> str:
        """Add the nodes of an operation on values, the first of this shape; returns the name of the result."""
        if (nodes := _NODES.get(type(operation))) is None:
            raise ValueError(f"{operation} cannot be written as ONNX; use packed or C")
        return nodes(self, operation, inputs[0], shape, inputs[1:])

    def _dense(self, operation: ops.Dense, x: str, shape: Shape) -> str:
        weights = self._weights(operation.weights)
        if len(shape) == 1:
            return self.node("Gemm", [x, weights], transB=1)
        return self.node("MatMul", [x, self.node("Transpose", [weights], perm=[1, 0])])

    def _quantize(self, steps: Steps, x: str) -> str:
        rounded = self.node("Round", [self.node("Div", [x, self.constant(steps.scale)])])  # ties to even
        return self._mark(self.node("Clip", [rounded, *map(self.constant, (steps.low, steps.high))]), steps)

    def _scale(self, operation: Scale, x: str, shape: Shape) -> str:
        # Without nodes that change nothing: onnxruntime 1.31 may fail at those beside a product x · x.
        for kind, values, nothing in (("Mul", operation.factor, 1), ("Add", operation.offset, 0)):
            if (values != nothing).any():
                x = self.node(kind, [x, self.constant(per_unit(values, operation.axis, shape))])
        return x

    def _clip(self, operation: ops.Clip, x: str) -> str:
        limits = (operation.low, operation.high)
        if limits == (0, np.inf):  # which onnxruntime computes within the convolution and the sum before it
            return self.node("Relu", [x])
        return self.node("Clip", [x, *(self.constant(limit) if np.isfinite(limit) else "" for limit in limits)])

    def _average_pool(self, operation: AveragePool, x: str) -> str:
        if operation.window is None:
            return self.node("GlobalAveragePool", [x])
        return self.node(
            "AveragePool", [x], **_window(operation.window), count_include_pad=int(operation.counts_padding)
        )

    def _normalize(self, operation: tensors.Normalize, x: str, rank: int) -> str:
        if operation.centred:
            x = self.node("Sub", [x, self._mean(x, [rank])])
        spread = self.node("Add", [self._mean(self.node("Mul", [x, x]), [rank]), self.constant(operation.eps)])
        return self.node("Div", [x, self.node("Sqrt", [spread])])

    def _slice(self, operation: tensors.Slice, x: str, shape: Shape) -> str:
        place = self.constant([operation.dimension(shape) + 1], np.int64)
        ends = [self.constant([end], np.int64) for end in (operation.start, operation.stop)]
        part = self.node("Slice", [x, *ends, place])
        return part if operation.keep else self.node("Squeeze", [part, place])

    def _combine(self, operation: tensors.Combine, x: str, others: list[str]) -> str:
        others = others if operation.constant is None else [self.constant(operation.constant)]
        return self.node({"add": "Add", "subtract": "Sub", "multiply": "Mul"}[operation.how], [x, *others])

    def _reshape(self, x: str, shape: Shape) -> str:
        return self.node("Reshape", [x, self.constant([0, *shape], np.int64)])  # 0 keeps the batch dimension

    def _embed(self, operation: tensors.Embedding, x: str) -> str:
        return self.node("Gather", [self.constant(operation.table), self.node("Cast", [x], to=TensorProto.INT64)])

    def _take(self, operation: tensors.Take, x: str, shape: Shape) -> str:
        axis = operation.dimension(shape)
        places = np.where(operation.places < 0, shape[axis], operation.places)  # one number more, to be filled in
        if (operation.places < 0).any():
            pads = [0] * (len(shape) + 1) + [int(at == axis + 1) for at in range(len(shape) + 1)]
            x = self.node("Pad", [x, self.constant(pads, np.int64), self.constant(operation.fill)])
        return self.node("Gather", [x, self.constant(places, np.int64)], axis=axis + 1)

    def _mean(self, x: str, axes: list[int], *, keep: bool = True) -> str:
        return self.node("ReduceMean", [x, self.constant(axes, np.int64)], keepdims=int(keep))

    def _activation(self, operation: tensors.Activation, x: str) -> str:
        match operation.function:
            case "leaky relu":
                return self.node("LeakyRelu", [x], alpha=operation.slope)
            case "sigmoid" | "silu" as function:  # onnxruntime's own Sigmoid is 0 below −17.3
                powers = self.node("Exp", [self.node("Neg", [x])])
                above = x if function == "silu" else self.constant(1)
                return self.node("Div", [above, self.node("Add", [powers, self.constant(1)])])
            case "hard sigmoid":
                return self.node("HardSigmoid", [x], alpha=1 / 6, beta=0.5)
            case "gelu":
                half = self.node("Mul", [x, self.constant(np.sqrt(0.5))])
                inner = self.node("Erf", [half])
            case "gelu tanh":
                cube = self.node("Mul", [self.node("Mul", [x, x]), self.node("Mul", [x, self.constant(0.044715)])])
                inner = self.node("Mul", [self.node("Add", [x, cube]), self.constant(np.sqrt(2 / np.pi))])
                inner = self.node("Tanh", [inner])
            case function:
                return self.node({"hard swish": "HardSwish", "tanh": "Tanh"}[function], [x])
        share = self.node("Mul", [self.node("Add", [inner, self.constant(1)]), self.constant(0.5)])
        return self.node("Mul", [x, share])

    def _threshold(self, operation: Threshold, x: str, shape: Shape) -> str:
        flips = np.where(operation.flipped, -1, 1)
        turns = self.constant(per_unit(flips, operation.axis, shape))
        levels = per_unit(operation.levels, operation.axis, shape)
        if self.form == "qonnx":  # an integer less a half is never zero, so that turning it keeps ties as they are
            above = self.node("Sub", [x, self.constant(levels - 0.5)])
            return self._bipolar(self.node("Mul", [above, turns]))
        return self.node("Mul", [self._signs(x, self.constant(levels)), turns])

    def _requantize(self, operation: Requantize, x: str, shape: Shape) -> str:
        """⌊(factor · x + offset) / 2^shift⌋ within bounds, in int64; the division truncates, so it is of positives."""

        def constant(values: Array, dtype: Any = np.int64) -> str:
            return self.constant(per_unit(values, operation.axis, shape), dtype)

        least, unit = operation.steps.low, np.int64(1) << operation.shift
        line = self.node("Mul", [self.node("Cast", [x], to=TensorProto.INT64), constant(operation.factors)])
        line = self.node("Add", [line, constant(operation.offsets - least * unit)])
        bounds = [constant((bound - least) * unit) for bound in (operation.lows, operation.highs.astype(np.int64))]
        line = self.node("Min", [self.node("Max", [line, bounds[0]]), bounds[1]])
        steps = self.node("Cast", [self.node("Div", [line, self.constant(unit, np.int64)])], to=TensorProto.FLOAT)
        results = self.node("Add", [steps, self.constant(least)])
        exceptions: dict[int, list[Any]] = {}
        for number, *one in reversed(operation.exceptions):
            exceptions.setdefault(number, []).append(one)
        for ones in itertools.zip_longest(*exceptions.values()):  # one of every unit that has some left
            at, result = np.full(len(operation.factors), 0.5), np.zeros(len(operation.factors))  # no sum is a half
            for number, one in zip(exceptions, ones, strict=True):
                at[number], result[number] = one or (0.5, 0)
            hit = self.node("Equal", [x, constant(at, np.float32)])
            results = self.node("Where", [hit, constant(result, np.float32), results])
        return results

    def _mark(self, x: str, steps: Steps) -> str:
        """Integers, marked as such for hardware compilers."""
        if self.form != "qonnx":
            return x
        bits = (steps.high - steps.low).bit_length()
        given = [self.constant(number) for number in (1, 0, bits)]
        options: dict[str, Any] = {"signed": int(steps.low < 0), "narrow": 0, "rounding_mode": "ROUND"}
        return self.node("Quant", [x, *given], domain=QONNX, **options)

    def _sign(self, x: str) -> str:
        return self._bipolar(x) if self.form == "qonnx" else self._signs(x, self.constant(0))

    def _signs(self, x: str, level: str) -> str:
        above = self.node("GreaterOrEqual", [x, level])
        return self.node("Where", [above, self.constant(1), self.constant(-1)])

    def _bipolar(self, x: str) -> str:
        return self.node("BipolarQuant", [x, self.constant(1)], domain=QONNX)

    def _weights(self, weights: ops.Weights) -> str:
        """The weights in float32; from bits, Σ_b c_b · (2 · bit − 1)."""
        if self.form == "float32" or not weights.binary:
            return self.constant(weights.values())
        if self.form == "qonnx":
            parts = [self._bipolar(self.constant(np.where(plane, 1, -1))) for plane in weights.array]
            if len(parts) == 1:
                return parts[0]
            pairs = zip(parts, self._factors(weights), strict=True)
            return self.node("Sum", [self.node("Mul", [x, self.constant(c)]) for x, c in pairs])
        count = weights.array.size
        packed = self.constant(np.packbits(weights.array)[:, None], np.uint8)
        shifts = self.constant(np.arange(7, -1, -1)[None], np.uint8)
        shifted = self.node("BitShift", [packed, shifts], direction="RIGHT")
        bits = self.node("BitwiseAnd", [shifted, self.constant(1, np.uint8)])
        flat = self.node("Reshape", [bits, self.constant([-1], np.int64)])
        ends = [self.constant([end], np.int64) for end in (0, count)]
        number = self.node("Cast", [self.node("Slice", [flat, *ends])], to=TensorProto.FLOAT)
        signs = self.node("Sub", [self.node("Mul", [number, self.constant(2)]), self.constant(1)])
        if len(weights.coefficients) == 1:
            return self.node("Reshape", [signs, self.constant(weights.shape, np.int64)])
        stacked = self.node("Reshape", [signs, self.constant(weights.array.shape, np.int64)])
        scaled = self.node("Mul", [stacked, self.constant(self._factors(weights))])
        return self.node("ReduceSum", [scaled, self.constant([0], np.int64)], keepdims=0)

    def _factors(self, weights: ops.Weights) -> Array:
        """Coefficients (bits, units or 1, 1, …)."""
        return np.reshape(weights.coefficients, (len(weights.array), -1, *(1,) * (len(weights.shape) - 1)))

    def _max_pool(self, window: Window, x: str) -> str:
        options = _window(window)
        if any(max(sides) >= size for sides, size in zip(window.sides, window.size, strict=True)):
            # More than onnxruntime's pools add, as behind gaps under ceil_mode.
            x = self.node("Pad", [x, self._pads(window), self.constant(np.finfo(np.float32).min)])
            options["pads"] = [0] * len(options["pads"])
        return self.node("MaxPool", [x], **options)

    def _pads(self, window: Window) -> str:
        """What a window adds to an image, for a node Pad."""
        before, after = zip(*window.sides, strict=True)
        return self.constant([0, 0, *before, 0, 0, *after], np.int64)

    def _convolution(self, operation: Convolution, x: str) -> str:
        window, options = operation.window, _window(operation.window)
        if window.mode != "zeros" and any(options["pads"]):
            x = self.node("Pad", [x, self._pads(window)], mode=_PADDING[window.mode])
            options["pads"] = [0] * len(options["pads"])
        return self.node("Conv", [x, self._weights(operation.weights)], **options, group=operation.groups)


def _window(window: Window) -> dict[str, Any]:
    sizes = {"kernel_shape": [*window.size], "strides": [*window.stride], "dilations": [*window.dilation]}
    return {**sizes, "pads": [side[end] for end in (0, 1) for side in window.sides]}


_NODES: dict[type[Operation], Callable[[_Graph, Any, str, Shape, list[str]], str]] = {
    ops.Dense: lambda g, op, x, shape, _: g._dense(op, x, shape),
    Convolution: lambda g, op, x, shape, _: g._convolution(op, x),
    Threshold: lambda g, op, x, shape, _: g._threshold(op, x, shape),
    Quantize: lambda g, op, x, shape, _: g._quantize(op.steps, x),
    Requantize: lambda g, op, x, shape, _: g._mark(g._requantize(op, x, shape), op.steps),
    Scale: lambda g, op, x, shape, _: g._scale(op, x, shape),
    ops.Sign: lambda g, op, x, shape, _: g._sign(x),
    ops.Spins: lambda g, op, x, shape, _: x,
    ops.Clip: lambda g, op, x, shape, _: g._clip(op, x),
    MaxPool: lambda g, op, x, shape, _: g._max_pool(op.window, x),
    AveragePool: lambda g, op, x, shape, _: g._average_pool(op, x),
    ops.Reshape: lambda g, op, x, shape, _: g._reshape(x, op.shape_after(shape)),
    tensors.Activation: lambda g, op, x, shape, _: g._activation(op, x),
    tensors.Softmax: lambda g, op, x, shape, _: g.node("Softmax", [x], axis=op.dimension(shape) + 1),
    tensors.Normalize: lambda g, op, x, shape, _: g._normalize(op, x, len(shape)),
    tensors.Mean: lambda g, op, x, shape, _: g._mean(x, [at + 1 for at in op.places(shape)], keep=op.keep),
    tensors.Transpose: lambda g, op, x, shape, _: g.node("Transpose", [x], perm=[0, *(at + 1 for at in op.order)]),
    tensors.Slice: lambda g, op, x, shape, _: g._slice(op, x, shape),
    tensors.Take: lambda g, op, x, shape, _: g._take(op, x, shape),
    tensors.Embedding: lambda g, op, x, shape, _: g._embed(op, x),
    tensors.Combine: lambda g, op, x, shape, more: g._combine(op, x, more),
    tensors.Concatenate: lambda g, op, x, shape, more: g.node("Concat", [x, *more], axis=op.dimension(shape) + 1),
    tensors.Product: lambda g, op, x, shape, more: g.node("MatMul", [x, *more]),
}
