"""A torch model as operations; what they cannot express is refused with the layer's name and line."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

import qpsbgd.deploy.modules as kinds
from qpsbgd.deploy.functions import BATCH, OPERATIONS, Functions, module_of
from qpsbgd.deploy.operations import Array, Clip, MaxPool, Operation, Reshape, Shape, Sign, Spins, Value
from qpsbgd.deploy.tensor_operations import Activation, Combine
from qpsbgd.deploy.thresholds import VANISHING, LayerSums, steps_of, vanishes_at
from qpsbgd.deploy.tracing import Traced, constant, name_of, place_of, refusal, trace
from qpsbgd.deploy.unit_operations import Quantize, Scale, Steps
from qpsbgd.nn.activations import QuantActivation, SignActivation
from qpsbgd.nn.layers import BinaryLayer

_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
"""Functions that change their first argument."""


def read(model: nn.Module, input_shape: Shape | None = None) -> tuple[Operation, ...]:
    """The operations that compute what the model computes in evaluation mode; the model itself stays as it is.

    Args:
        model: A module whose forward does the same for every input.
        input_shape: Of one sample; needed where the forward asks for sizes or counts dimensions from the end.

    Raises:
        ValueError: Something cannot be expressed, or holds numbers that are not finite; the message names it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module or a packed model, got {type(model).__name__}")
    reader = Reader(input_shape)
    if isinstance(model, kinds.SUPPORTED):
        return reader.finished(reader.apply("the model", model, reader.input))
    return reader.finished(_followed(model, reader))


def _followed(model: nn.Module, reader: Reader) -> Any:
    """What the model's forward returns, step by step."""
    known: dict[fx.Node, Any] = {}
    for node in trace(model, (*kinds.SUPPORTED, BinaryLayer)).nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        if node.op == "output":
            return args[0]
        try:
            result = _result(node, args, kwargs, model=model, reader=reader)
        except (TypeError, ValueError) as error:
            where = place_of(node)
            raise ValueError(f"{error}{f' (in {where})' if where else ''}") from error
        if args and isinstance(result, Traced) and _changes_its_input(node, kwargs, model):
            for other in [key for key, value in known.items() if value is args[0]]:
                known[other] = result
        known[node] = result
    raise AssertionError("torch.fx ends every graph by an output")


def _changes_its_input(node: fx.Node, kwargs: dict[str, Any], model: nn.Module) -> bool:
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    named = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = node.target in _IN_PLACE or (named.endswith("_") and not named.endswith("__"))
    return in_place or bool(kwargs.get("inplace"))


def _result(node: fx.Node, args: Any, kwargs: Any, *, model: nn.Module, reader: Reader) -> Any:
    name = name_of(node)
    if node.op == "placeholder":
        if node.prev.op == "root":
            return reader.input
        if not node.args:
            raise ValueError(f"the model must take one input, but it takes {name}, too")
        return None
    if node.op == "get_attr":
        return constant(model, str(node.target))
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        if type(module) not in kinds.SUPPORTED:
            supported = ", ".join(sorted(kind.__name__ for kind in kinds.SUPPORTED))
            if isinstance(module, nn.MultiheadAttention):
                raise refusal(name, module, "cannot be expressed; put qpsbgd.nn.ProjectedAttention.of(it) in its place")
            raise refusal(name, module, f"cannot be expressed; supported are {supported}, and functions between them")
        if len(args) != 1 or kwargs or not isinstance(args[0], Traced):
            raise refusal(name, module, "must be called with one tensor")
        return reader.apply(name, module, args[0])
    target: Any = node.target
    given = tree_leaves((args, kwargs))
    if not any(isinstance(one, Traced) for one in given):
        return _constant(name, target, args, kwargs, batch=any(one is BATCH for one in given))
    made = module_of(target, args[1:], kwargs)
    if made is not None:
        return reader.apply(name, made, args[0])
    if target not in OPERATIONS:
        called = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        raise ValueError(f"{name} calls {called}, which cannot be expressed")
    return getattr(Functions(reader, name), OPERATIONS[target])(*args, **kwargs)


def _constant(name: str, target: Any, args: Any, kwargs: Any, *, batch: bool) -> Any:
    """What a function makes of sizes and constants alone."""
    if getattr(target, "__name__", "").startswith("_assert"):
        return None  # of arguments that have their default
    if batch and target is not operator.getitem:
        raise ValueError(f"{name} computes with the size of the batch, which must stay free")
    with torch.no_grad():
        return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)


class Reader:
    """Collects operations. What belongs together, such as a layer, its norm and a sign, becomes one operation.

    Attributes:
        input: The model's input.
    """

    def __init__(self, input_shape: Shape | None) -> None:
        self.input = Traced(real=0)
        self._operations: list[Operation] = []
        self._values = None if input_shape is None else [Value("real", input_shape)]

    def apply(self, name: str, module: nn.Module, value: Traced) -> Traced:
        """The result of a supported module."""
        if isinstance(module, kinds.SKIPPED):
            return value
        if isinstance(module, (*kinds.DENSE, *kinds.CONVOLUTIONS)):
            factors = getattr(module, "input_scale", None)
            if factors is not None:
                axis = -1 if isinstance(module, kinds.DENSE) else 0
                scale = Scale(name, kinds.to_numpy(factors, name, module), np.zeros(1, np.float32), axis)
                value = self.emit(scale, value)
            integer = value.small is not None and isinstance(module, BinaryLayer) and module.bits == 1
            source = value.small if integer and value.small is not None else self.real(value)
            steps = value.steps if integer else None
            sums = self._append(kinds.weighted(name, module, integer=integer), source)
            return Traced(name, module, sums=sums, steps=steps)
        if isinstance(module, SignActivation | QuantActivation):
            return self._activated(name, module, value)
        if isinstance(module, (*kinds.NORMS, *kinds.CLIPS)) or (
            isinstance(module, kinds.MAX_POOLS) and value.small is None
        ):
            if isinstance(module, kinds.NORMS):
                kinds.norm_scale(name, module)  # raises if it has no statistics
            return Traced(name, module, parent=value)
        for operation in kinds.operations_of(name, module, self.shape(value)):
            value = self.emit(operation, value)
        return value

    def emit(self, operation: Operation, *values: Traced) -> Traced:
        """The result of an operation: of bits or numbers of 8 bits where it moves those, otherwise of real numbers."""
        small, steps = values[0].small, values[0].steps
        if small is None or not isinstance(operation, Reshape | MaxPool):
            return Traced(real=self._append(operation, *map(self.real, values)))
        if isinstance(operation, Reshape) and isinstance(self._operations[small - 1], Sign | Quantize):
            first = self._operations[small - 1]  # real numbers are easier to move than bits
            return Traced(small=self._append(first, self._append(operation, *first.inputs)), steps=steps)
        return Traced(small=self._append(operation, small), steps=steps)

    def real(self, value: Traced) -> int:
        """The number of the value in real numbers."""
        if value.real is None:
            if value.small is not None:
                value.real = self._append(_as_real(value.steps), value.small)
            elif value.sums is not None or isinstance(value.module, kinds.NORMS):
                value.real = self._scaled(value)
            else:
                assert value.module is not None and value.parent is not None
                (operation,) = kinds.operations_of(value.name, value.module, None)
                value.real = self._append(operation, self.real(value.parent))
        return value.real

    def shape(self, value: Traced) -> Shape | None:
        """The shape of a result for one sample, where it is known."""
        if self._values is None:
            return None
        number = next((n for n in (value.small, value.sums) if n is not None), None)
        return self._values[self.real(value) if number is None else number].shape

    def finished(self, output: Any) -> tuple[Operation, ...]:
        """The operations that the output needs; real numbers come out of the last one."""
        if not isinstance(output, Traced):
            raise ValueError(f"the model must return one tensor, got {type(output).__name__}")
        last = self.real(output)
        needed, numbers = {last} - {0}, {0: 0}
        for number in range(last, 0, -1):
            if number in needed:
                needed |= {*self._operations[number - 1].inputs} - {0}
        kept = []
        for place, number in enumerate(sorted(needed), 1):
            operation, numbers[number] = self._operations[number - 1], place
            inputs = tuple(numbers[source] for source in operation.inputs)
            kept.append(replace(operation, inputs=() if inputs == (place - 1,) else inputs))
        return tuple(kept)

    def _append(self, operation: Operation, *sources: int) -> int:
        operation = replace(operation, inputs=sources)
        if self._values is not None:
            self._values.append(operation.result(*(self._values[source] for source in operation.inputs)))
        self._operations.append(operation)
        return len(self._operations)

    def _scaled(self, value: Traced) -> int:
        """A layer's sums or another value, with all norms behind it as one scale in double precision."""
        norms = []
        while isinstance(value.module, kinds.NORMS):
            norms.append(value)
            assert value.parent is not None
            value = value.parent
        scales = [(one.name, *kinds.norm_scale(one.name, one.module)) for one in reversed(norms)]  # type: ignore[arg-type]
        axis: int | None = 0
        if value.sums is None:
            number, integer = self.real(value), False
        else:
            assert value.module is not None
            number, integer = value.sums, self._integer(value)
            axis = _axis(value.module, bool(norms))
            gain, bias = kinds.gain_and_bias(value.name, value.module)
            scales.insert(0, (value.name, gain * (1.0 if value.steps is None else value.steps.scale), bias))
        name, factor, offset = scales[0]
        for _, more, added in scales[1:]:
            factor, offset = more * factor, more * offset + added
        if not (integer or (factor != 1).any() or offset.any()):
            return number
        return self._append(Scale(name, _single(factor), _single(offset), axis), number)

    def _integer(self, value: Traced) -> bool:
        """Whether a value has integer sums."""
        return value.sums is not None and bool(getattr(self._operations[value.sums - 1], "integer", False))

    def _activated(self, name: str, module: SignActivation | QuantActivation, value: Traced) -> Traced:
        """A sign or whole numbers; behind a layer with integer sums, as one operation with what stands between."""
        if isinstance(module, SignActivation) and value.small is not None and value.steps is None:
            return value
        between: list[Traced] = []
        source = value
        while source.sums is None and source.parent is not None:
            between.insert(0, source)
            source = source.parent
        if isinstance(source.module, BinaryLayer) and self._integer(source) and (pools := _placed_pools(between)):
            return self._folded(module, source, between, pools)
        if isinstance(module, SignActivation):
            return Traced(small=self._append(Sign(name), self._same_sign(name, self.real(value))))
        kinds.to_numpy(module.log2_scale, name, module)  # raises if it is not finite
        steps = steps_of(module)
        return Traced(small=self._append(Quantize(name, steps), self.real(value)), steps=steps)

    def _same_sign(self, name: str, number: int) -> int:
        """The value, or x · (x − z) of a function that is negative for z < x < 0 alone, as torch rounds it."""
        last = self._operations[number - 1] if number else None
        if not isinstance(last, Activation) or last.function not in VANISHING:
            return number
        zero = np.array([vanishes_at(last.function)])
        clipped = self._append(Clip(name, -256.0, 256.0), *last.inputs)  # products do not overflow
        moved = self._append(Scale(name, np.ones(1, np.float32), -zero), clipped)
        return self._append(Combine(name, "multiply"), clipped, moved)

    def _folded(
        self, module: SignActivation | QuantActivation, sums: Traced, between: list[Traced], pools: _Pools
    ) -> Traced:
        assert isinstance(sums.module, BinaryLayer) and sums.sums is not None
        modules = [
            one.module for one in between if one.module is not None and not isinstance(one.module, kinds.MAX_POOLS)
        ]
        all_ = LayerSums(sums.module, modules, sums.name, sums.steps)
        made = all_.requantize(module) if isinstance(module, QuantActivation) else all_.threshold()
        axis = _axis(sums.module, any(isinstance(module, kinds.NORMS) for module in modules))
        number = sums.sums
        for operation in (*map(_pool, pools[0]), replace(made, axis=axis), *map(_pool, pools[1])):
            number = self._append(operation, number)
        return Traced(small=number, steps=steps_of(module) if isinstance(module, QuantActivation) else None)


def _as_real(steps: Steps | None) -> Operation:
    """What makes real numbers of bits, or of whole numbers that count something."""
    if steps is None:
        return Spins("output")
    return Scale("output", np.full(1, steps.scale, np.float32), np.zeros(1, np.float32))


def _pool(pool: Traced) -> Operation:
    assert pool.module is not None
    return kinds.operations_of(pool.name, pool.module, None)[0]


_Pools = tuple[list[Traced], list[Traced]]


def _placed_pools(between: Sequence[Traced]) -> _Pools | None:
    """The pools that go before and behind the threshold that a sign becomes; None if one can go nowhere.

    A pool commutes with the sign and with clipping, but not with a norm of negative weight: so it goes behind the
    threshold if no norm comes after it, and before the threshold if no norm comes before it.
    """
    norms = [place for place, one in enumerate(between) if isinstance(one.module, kinds.NORMS)]
    before, after = [], []
    for place, one in enumerate(between):
        if not isinstance(one.module, kinds.MAX_POOLS):
            continue
        if not any(norm > place for norm in norms):
            after.append(one)
        elif not any(norm < place for norm in norms):
            before.append(one)
        else:
            return None
    return before, after


def _axis(layer: nn.Module, normed: bool) -> int | None:
    """Where the units of a layer are, of which a batch norm takes the first dimension for units."""
    if not isinstance(layer, kinds.DENSE):
        return 0
    return None if normed else -1


def _single(values: Array) -> Array:
    """In float32, and as one number where all are equal."""
    values = values.astype(np.float32)
    return values[:1] if (values == values[0]).all() else values
