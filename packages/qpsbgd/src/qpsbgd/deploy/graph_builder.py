"""The graph of operations that a torch model becomes, built value by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import qpsbgd.deploy.modules as kinds
from qpsbgd.deploy.modules import REAL_TYPES
from qpsbgd.deploy.thresholds import VANISHING, LayerSums, steps_of, vanishes_at
from qpsbgd.nn.activations import QuantActivation, SignActivation
from qpsbgd.nn.layers import BinaryLayer
from qpsbgd_runtime.image_operations import MaxPool
from qpsbgd_runtime.operations import Array, Clip, Operation, Reshape, Shape, Sign, Spins, Value
from qpsbgd_runtime.stages import needed
from qpsbgd_runtime.tensor_operations import Activation, Combine, Softmax
from qpsbgd_runtime.unit_operations import Quantize, Scale, Steps

LOWEST = -3e38  # stands for −∞ before a softmax: finite in float32, and nothing is left of it behind


@dataclass(eq=False)
class Traced:
    """A result of the model. It becomes numbered values of the network when they are asked for, and not before."""

    name: str = ""  # of the module that computes it
    module: nn.Module | None = None  # what is applied to `parent`, or the layer whose sums `sums` are
    operation: Operation | None = None  # the same as an operation: a pool or a clip, but not a norm
    parent: Traced | None = None  # what `module` is applied to
    sums: int | None = None  # the value with the sums of a layer, without gain and bias
    real: int | None = None  # the value in real numbers
    small: int | None = None  # the value in bits, or in integers of up to 8 bits
    steps: Steps | None = None  # what such integers count, or those that a layer with integer sums takes; None for bits
    hidden: Array | None = None  # where −∞ stands, which only a softmax takes: a constant (…) of booleans


class GraphBuilder:
    """Collects operations. What belongs together, such as a layer, its norm and a sign, becomes one operation.

    `types` are those that values may be cast to: the model's own, and float32 and more.
    """

    def __init__(self, input_shape: Shape | None, types: frozenset[torch.dtype] = REAL_TYPES) -> None:
        self.input = Traced(real=0)
        self.types = types
        self._operations: list[Operation] = []
        self._values = None if input_shape is None else [Value("real", input_shape)]

    def apply(self, name: str, module: nn.Module, value: Traced) -> Traced:
        """The result of a supported module."""
        if isinstance(module, kinds.SKIPPED):
            return value
        if isinstance(module, (*kinds.DENSE, *kinds.CONVOLUTIONS)):
            small = value.small if isinstance(module, BinaryLayer) and module.bits == 1 else None
            source = self.real(value) if small is None else small
            sums = self._append(kinds.weighted_sum(name, module, integer=small is not None), source)
            return Traced(name, module, sums=sums, steps=None if small is None else value.steps)
        if isinstance(module, SignActivation | QuantActivation):
            return self._activation(name, module, value)
        if isinstance(module, kinds.NORMS):
            kinds.norm_scale(name, module)  # raises if it has no statistics
            return Traced(name, module, parent=value)
        operations = kinds.operations_of(name, module, self.shape(value))
        if isinstance(module, kinds.CLIPS) or (isinstance(module, kinds.MAX_POOLS) and value.small is None):
            return Traced(name, module, operations[0], value)
        return self.chain(operations, value)

    def emit(self, operation: Operation, *values: Traced) -> Traced:
        """The result of an operation: of bits or numbers of 8 bits where it moves those, otherwise of real numbers."""
        small, steps, hidden = values[0].small, values[0].steps, values[0].hidden
        if isinstance(operation, Softmax) and hidden is not None:
            self.check_rows(
                operation.name, hidden, kinds.need_shape(operation.name, self.shape(values[0])), operation.axis
            )
            values = (replace(values[0], hidden=None),)
        if small is None or not isinstance(operation, Reshape | MaxPool):
            return Traced(real=self._append(operation, *map(self.real, values)))
        if isinstance(operation, Reshape) and isinstance(self._operations[small - 1], Sign | Quantize):
            first = self._operations[small - 1]  # real numbers are easier to move than bits
            return Traced(small=self._append(first, self._append(operation, *first.inputs)), steps=steps)
        return Traced(small=self._append(operation, small), steps=steps)

    def check_rows(self, name: str, hidden: Array, shape: Shape, axis: int) -> None:
        """Refuse a mask with rows of which nothing is left for a softmax."""
        if np.broadcast_to(hidden, shape).all(axis).any():
            raise ValueError(
                f"{name} has rows of which all numbers are masked by -inf, which torch makes NaN or 0; leave one "
                "number in every row, or mask by -1e9"
            )

    def chain(self, operations: Sequence[Operation], value: Traced) -> Traced:
        """The result of operations one after the other."""
        for operation in operations:
            value = self.emit(operation, value)
        return value

    def real(self, value: Traced) -> int:
        """The number of the value in real numbers."""
        if value.hidden is not None:
            raise ValueError(
                "a value that is masked by -inf must go into a softmax, as the next operation; mask it by -1e9 instead"
            )
        if value.real is None:
            if value.small is not None:
                ones = np.ones(1, np.float32)
                whole = None if value.steps is None else Scale("output", value.steps.scale * ones, 0 * ones)
                value.real = self._append(whole or Spins("output"), value.small)
            elif value.operation is not None and value.parent is not None:
                value.real = self._apply_in_turn([value], self.real(value.parent))
            else:
                value.real = self._with_norms(value)
        return value.real

    def shape(self, value: Traced) -> Shape | None:
        """The shape of a result for one sample, where it is known."""
        if self._values is None:
            return None
        number = next((n for n in (value.small, value.sums, value.real) if n is not None), None)
        if number is not None:
            return self._values[number].shape
        assert value.parent is not None
        before = self.shape(value.parent)
        return before if before is None or value.operation is None else value.operation.shape_after(before)

    def finish(self, output: Any) -> tuple[Operation, ...]:
        """The operations that the output needs; real numbers come out of the last one."""
        if not isinstance(output, Traced):
            raise ValueError(f"the model must return one tensor, got {type(output).__name__}")
        return needed(self._operations, self.real(output))

    def _append(self, operation: Operation, *sources: int) -> int:
        operation = replace(operation, inputs=sources)
        if self._values is not None:
            self._values.append(operation.result(*(self._values[source] for source in sources)))
        self._operations.append(operation)
        return len(self._operations)

    def _with_norms(self, value: Traced) -> int:
        """A layer's sums or another value, with all norms after it as one scale in double precision."""
        norms = []
        while isinstance(value.module, kinds.NORMS):
            norms.append(value)
            assert value.parent is not None
            value = value.parent
        scales = [(norm.name, *kinds.norm_scale(norm.name, norm.module)) for norm in reversed(norms)]  # type: ignore[arg-type]
        axis: int | None = 0
        if value.sums is None:
            number, integer = self.real(value), False
        else:
            assert value.module is not None
            number, integer = value.sums, self._integer(value)
            gain, bias = kinds.gain_and_bias(value.name, value.module)
            layer = (value.name, gain * (1.0 if value.steps is None else value.steps.scale), bias)
            if self._normed_rows(value, [norm.module for norm in norms]):
                number, integer = self._scale([layer], -1, number, needed=integer), False
            else:
                axis = _axis(value.module, bool(norms))
                scales.insert(0, layer)
        return self._scale(scales, axis, number, needed=integer)

    def _scale(self, scales: Sequence[tuple[str, Array, Array]], axis: int | None, number: int, *, needed: bool) -> int:
        """The value with a number behind scales, which become one, or none if they change nothing."""
        name, factor, offset = scales[0]
        for _, more, added in scales[1:]:
            factor, offset = more * factor, more * offset + added
        if not (needed or (factor != 1).any() or offset.any()):
            return number
        return self._append(Scale(name, _single(factor), _single(offset), axis), number)

    def _normed_rows(self, value: Traced, norms: Sequence[Any]) -> bool:
        """Whether batch norms after a dense layer take another dimension for units than the layer, as of rows."""
        if not norms or not isinstance(value.module, kinds.DENSE):
            return False
        if {norm.num_features for norm in norms} != {len(value.module.weight)}:
            kinds.need_shape(value.name, self.shape(value))
        return len(self.shape(value) or ()) > 1

    def _integer(self, value: Traced) -> bool:
        """Whether a value has integer sums."""
        return value.sums is not None and bool(getattr(self._operations[value.sums - 1], "integer", False))

    def _activation(self, name: str, module: SignActivation | QuantActivation, value: Traced) -> Traced:
        """A sign or integers; after a layer with integer sums, as one operation with what lies between."""
        if isinstance(module, SignActivation) and value.small is not None and value.steps is None:
            return value
        number = self._fuse(module, value)
        if isinstance(module, SignActivation):
            if number is None:
                number = self._append(Sign(name), self._same_sign(name, self.real(value)))
            return Traced(small=number)
        if number is None:
            kinds.to_numpy(module.log2_scale, name, module)  # raises if it is not finite
            number = self._append(Quantize(name, steps_of(module)), self.real(value))
        return Traced(small=number, steps=steps_of(module))

    def _fuse(self, module: SignActivation | QuantActivation, value: Traced) -> int | None:
        """The value of an activation as one operation with all since the layer before it; None without integer sums."""
        layer, between = _since_layer(value)
        pools = _placed_pools(between)
        modules = [
            step.module for step in between if step.module is not None and not isinstance(step.operation, MaxPool)
        ]
        norms = [step for step in modules if isinstance(step, kinds.NORMS)]
        if self._normed_rows(layer, norms) or pools is None or layer.sums is None or not self._integer(layer):
            return None
        assert isinstance(layer.module, BinaryLayer)
        sums = LayerSums(layer.module, modules, layer.name, layer.steps)
        operation = sums.requantize(module) if isinstance(module, QuantActivation) else sums.threshold()
        number = self._apply_in_turn(pools[0], layer.sums)
        number = self._append(replace(operation, axis=_axis(layer.module, bool(norms))), number)
        return self._apply_in_turn(pools[1], number)

    def _same_sign(self, name: str, number: int) -> int:
        """The value, or x · (x − z) of a function that is negative for z < x < 0 alone, as torch rounds it."""
        last = self._operations[number - 1] if number else None
        if not isinstance(last, Activation) or last.function not in VANISHING:
            return number
        zero = np.array([vanishes_at(last.function)])
        clipped = self._append(Clip(name, -256.0, 256.0), *last.inputs)  # products do not overflow
        moved = self._append(Scale(name, np.ones(1, np.float32), -zero), clipped)
        return self._append(Combine(name, "multiply"), clipped, moved)

    def _apply_in_turn(self, waiting: Sequence[Traced], number: int) -> int:
        """The value after modules that waited, pools or clips, of the value with a number."""
        for step in waiting:
            assert step.operation is not None
            number = self._append(step.operation, number)
        return number


def _since_layer(value: Traced) -> tuple[Traced, list[Traced]]:
    """The last layer, or another value that waits for nothing, and the modules since, in order."""
    between: list[Traced] = []
    while value.sums is None and value.parent is not None:
        between.insert(0, value)
        value = value.parent
    return value, between


def _placed_pools(between: Sequence[Traced]) -> tuple[list[Traced], list[Traced]] | None:
    """The pools that go before and after the threshold that a sign becomes; None if one can go nowhere.

    A pool commutes with the sign and with clipping, but not with a norm of negative weight: so it goes after the
    threshold if no norm comes after it, and before the threshold if no norm comes before it.
    """
    norms = [place for place, step in enumerate(between) if isinstance(step.module, kinds.NORMS)]
    pools = [(place, step) for place, step in enumerate(between) if isinstance(step.operation, MaxPool)]
    before = [step for place, step in pools if place < min(norms, default=0)]
    after = [step for place, step in pools if place > max(norms, default=-1)]
    return (before, after) if len(before) + len(after) == len(pools) else None


def _axis(layer: nn.Module, normed: bool) -> int | None:
    """Where the units of a layer are, of which a batch norm takes the first dimension for units."""
    if not isinstance(layer, kinds.DENSE):
        return 0
    return None if normed else -1


def _single(values: Array) -> Array:
    """In float32, and as one number where all are equal."""
    with np.errstate(over="ignore"):  # infinite numbers are refused later
        values = values.astype(np.float32)
    return values[:1] if (values == values[0]).all() else values
