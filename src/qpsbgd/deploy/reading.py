"""A torch model as operations; what they cannot express is refused with the layer's name."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from qpsbgd.deploy.operations import (
    Array,
    AveragePool,
    Clip,
    Convolution,
    Dense,
    MaxPool,
    Operation,
    Reshape,
    Scale,
    Shape,
    Sign,
    Spins,
    Weights,
    Window,
)
from qpsbgd.deploy.thresholds import threshold
from qpsbgd.nn.activations import SignActivation
from qpsbgd.nn.convolutions import BinaryConv1d, BinaryConv2d
from qpsbgd.nn.layers import BinaryLayer, BinaryLinear

_DENSE = (BinaryLinear, nn.Linear)
_CONVOLUTIONS = (BinaryConv1d, BinaryConv2d, nn.Conv1d, nn.Conv2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_CLIPS = (nn.ReLU, nn.ReLU6, nn.Hardtanh)
_MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d)
_AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d)
_WHOLE_AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_SHAPES = (nn.Flatten, nn.Unflatten)
_SKIPPED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
_SUPPORTED = (
    *(SignActivation, *_DENSE, *_CONVOLUTIONS, *_NORMS, *_CLIPS),
    *(*_MAX_POOLS, *_AVERAGE_POOLS, *_WHOLE_AVERAGES, *_SHAPES, *_SKIPPED),
)
_FUNCTIONS = {torch.flatten: nn.Flatten, F.relu: nn.ReLU, torch.relu: nn.ReLU, "flatten": nn.Flatten, "relu": nn.ReLU}

Named = tuple[str, nn.Module]


def read(model: nn.Module) -> tuple[Operation, ...]:
    """The operations that compute what the model computes in evaluation mode; the model itself stays as it is.

    Args:
        model: A chain of layers: nn.Sequential, nested or not, or a module whose forward calls one after the other.

    Raises:
        ValueError: A layer cannot be expressed, or holds numbers that are not finite; the message names it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module or a packed model, got {type(model).__name__}")
    modules = [pair for pair in _chain(model, "") if type(pair[1]) not in _SKIPPED]
    reader = _Reader()
    while modules:
        modules = reader.take(modules)
    return reader.finished()


class _Reader:
    """Collects operations; `bits` tells whether the last one gives bits."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.bits = False
        self.factor: Array | None = None  # of a scale that may still take up a batch norm, in double precision
        self.offset: Array | None = None

    def take(self, modules: list[Named]) -> list[Named]:
        """Read the first of these modules, and those that become one operation with it; returns the rest."""
        (name, module), *rest = modules
        if isinstance(module, BinaryLayer | nn.Linear | nn.Conv1d | nn.Conv2d):
            if self.bits and isinstance(module, BinaryLayer) and module.bits == 1:
                self._append(_weighted(name, module, integer=True))
                folded = _folded(name, module, rest)
                if folded is not None:
                    self.operations += folded[0]
                    return folded[1]
                self.bits = False
            else:
                self._real(name)
                self._append(_weighted(name, module, integer=False))
            self._scale(name, *_gain_and_bias(module))
        elif isinstance(module, _NORMS):
            self._real(name)
            self._scale(name, *_norm_scale(name, module))
        elif isinstance(module, SignActivation):
            if not self.bits:
                self._append(Sign(name))
            self.bits = True
        elif isinstance(module, _SHAPES):
            self._append(_reshape(name, module))
            if len(self.operations) > 1 and isinstance(self.operations[-2], Sign):  # real numbers are easier to move
                self.operations[-2:] = reversed(self.operations[-2:])
        elif isinstance(module, _MAX_POOLS):
            self._append(_max_pool(name, module))
        else:
            self._real(name)
            self._append(_elementwise_or_average(name, module))
        return rest

    def finished(self) -> tuple[Operation, ...]:
        """All operations; real numbers come out of the last one."""
        self._real("output")
        self._finish_scale()
        return tuple(self.operations)

    def _append(self, operation: Operation) -> None:
        self._finish_scale()
        self.operations.append(operation)

    def _real(self, name: str) -> None:
        if self.bits:
            self._append(Spins(name))
        self.bits = False

    def _scale(self, name: str, factor: Array, offset: Array) -> None:
        if self.factor is None or self.offset is None:
            self.factor, self.offset, self.name = factor, offset, name
        else:
            self.factor, self.offset = factor * self.factor, factor * self.offset + offset

    def _finish_scale(self) -> None:
        if self.factor is None or self.offset is None:
            return
        factor, offset = self.factor, self.offset
        self.factor = self.offset = None
        last = self.operations[-1] if self.operations else None
        sums_of_bits = isinstance(last, Dense | Convolution) and last.integer
        if sums_of_bits or (factor != 1).any() or offset.any():
            self.operations.append(Scale(self.name, _single(factor), _single(offset)))


def _single(values: Array) -> Array:
    """In float32, and as one number where all are equal."""
    values = values.astype(np.float32)
    return values[:1] if (values == values[0]).all() else values


def _chain(module: nn.Module, name: str) -> Iterator[Named]:
    """The layers in the order in which they are called."""
    if module._forward_hooks or module._forward_pre_hooks:
        raise _refusal(name, module, "has forward hooks, which cannot be expressed; remove them")
    if type(module) in _SUPPORTED:
        yield name or "the model", module
    elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for child_name, child in module._modules.items():
            assert child is not None
            yield from _chain(child, f"{name}.{child_name}".lstrip("."))
    elif any(True for _ in module.children()):
        yield from _traced(module, name)
    else:
        raise _refusal(
            name, module, "cannot be expressed; supported are " + ", ".join(sorted(k.__name__ for k in _SUPPORTED))
        )


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(module: nn.Module, name: str) -> Iterator[Named]:
    """The layers that a module's forward calls, if it calls one after the other."""
    advice = "make it an nn.Sequential, or a forward that passes one tensor from layer to layer (nn.Flatten for views)"
    try:
        graph = _Tracer().trace(module)
    except Exception as error:
        raise _refusal(name, module, f"could not be traced ({error}); {advice}") from error
    last: Any = None
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
            continue
        if node.op != "output" and (not node.args or node.args[0] is not last):
            raise _refusal(name, module, f"is not a chain at {node.name}; {advice}")
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            child_name = f"{name}.{node.target}".lstrip(".")
            yield from _chain(operator.attrgetter(str(node.target))(module), child_name)
        elif node.op in ("call_function", "call_method") and node.target in _FUNCTIONS:
            made = _FUNCTIONS[node.target]
            options = {"start_dim": 0} | dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | node.kwargs
            options.pop("inplace", None)
            yield f"{name}.{node.name}".lstrip("."), made(**options) if made is nn.Flatten else made()
        elif node.op != "output" or node.args[0] is not last:
            raise _refusal(name, module, f"calls {node.name}, which cannot be expressed; {advice}")
        last = node


def _refusal(name: str, module: nn.Module, reason: str) -> ValueError:
    return ValueError(f"{name or 'the model'} ({type(module).__name__}) {reason}")


def _numpy(values: Tensor, name: str, module: nn.Module, dtype: Any = np.float32) -> Array:
    if not values.isfinite().all():
        raise _refusal(name, module, "holds NaN or infinite numbers; train the model again")
    array: Array = values.detach().to("cpu", torch.float64).numpy()
    return array.astype(dtype)


def _weighted(name: str, module: nn.Module, *, integer: bool) -> Operation:
    weight: Any = module.weight
    array = _numpy(weight, name, module)
    if isinstance(module, BinaryLayer):
        planes = array[None] if module.bits == 1 else array.swapaxes(0, 1)
        weights = Weights(planes >= 0, module.coefficients)
    else:
        weights = Weights(array)
    if isinstance(module, _DENSE):
        return Dense(name, weights, integer)
    assert isinstance(module, _CONVOLUTIONS)
    sizes: tuple[Shape, Shape, Shape] = (module.kernel_size, module.stride, module.dilation)
    kernel, stride, dilation = sizes
    if module.padding == "same":
        totals = [gap * (size - 1) for gap, size in zip(dilation, kernel, strict=True)]
        sides = tuple((total // 2, total - total // 2) for total in totals)
    elif module.padding == "valid":
        sides = ((0, 0),) * len(kernel)
    else:
        sides = tuple((int(size), int(size)) for size in module.padding)
    return Convolution(
        name, weights, Window(kernel, stride, sides, dilation, module.padding_mode), module.groups, integer
    )


def _gain_and_bias(module: nn.Module) -> tuple[Array, Array]:
    weight: Any = module.weight
    bias: Any = module.bias
    units = len(weight)
    gain = module.gain if isinstance(module, BinaryLayer) else 1.0
    return np.full(units, gain), np.zeros(units) if bias is None else _numpy(bias, "bias", module, np.float64)


def _norm_scale(name: str, norm: nn.modules.batchnorm._BatchNorm) -> tuple[Array, Array]:
    """Factor and offset of a batch norm in evaluation mode."""
    if norm.running_mean is None or norm.running_var is None:
        raise _refusal(name, norm, "has no running statistics; build it with track_running_stats=True")
    mean, variance = (_numpy(values, name, norm, np.float64) for values in (norm.running_mean, norm.running_var))
    factor = 1 / np.sqrt(variance + norm.eps)
    if norm.weight is not None:
        factor = factor * _numpy(norm.weight, name, norm, np.float64)
    offset = -mean * factor
    if norm.bias is not None:
        offset = offset + _numpy(norm.bias, name, norm, np.float64)
    return factor, offset


def _folded(name: str, layer: BinaryLayer, rest: list[Named]) -> tuple[list[Operation], list[Named]] | None:
    """What a layer of bits and the sign behind it become, and the modules after that; None if no sign follows.

    A pool may stand between them. It commutes with the sign and with clipping, but not with a norm of negative weight:
    so it goes behind the threshold if no norm comes after it, and before the threshold if no norm comes before it.
    """
    between: list[nn.Module] = []
    pools: list[tuple[int, Named]] = []
    for count, (_, module) in enumerate(rest, 1):
        if isinstance(module, SignActivation):
            break
        if isinstance(module, _MAX_POOLS):
            pools.append((len(between), rest[count - 1]))
        elif isinstance(module, (*_NORMS, *_CLIPS)):
            if isinstance(module, _NORMS):
                _norm_scale(name, module)  # raises if it has no statistics
            between.append(module)
        else:
            return None
    else:
        return None
    norms = [place for place, module in enumerate(between) if isinstance(module, _NORMS)]
    before, after = [], []
    for place, (pool_name, pool) in pools:
        if not any(norm >= place for norm in norms):
            after.append(_max_pool(pool_name, pool))
        elif not any(norm < place for norm in norms):
            before.append(_max_pool(pool_name, pool))
        else:
            return None
    return [*before, threshold(layer, between, name=name), *after], rest[count:]


def _reshape(name: str, module: nn.Module) -> Operation:
    if isinstance(module, nn.Flatten):
        if (module.start_dim, module.end_dim) != (1, -1):
            raise _refusal(
                name, module, "must keep the batch dimension and flatten all others: start_dim=1, end_dim=-1"
            )
        return Reshape(name, (-1,))
    assert isinstance(module, nn.Unflatten)
    sizes: Any = module.unflattened_size
    if module.dim != 1 or not all(isinstance(size, int) for size in sizes):
        raise _refusal(name, module, "must unflatten dimension 1 into a tuple of sizes")
    return Reshape(name, tuple(sizes))


def _sizes(value: Any, dimensions: int) -> Shape:
    return tuple(value) if isinstance(value, tuple | list) else (int(value),) * dimensions


def _pool_window(name: str, module: Any, dilation: Any = 1) -> tuple[Window, int]:
    dimensions = 1 if type(module).__name__.endswith("1d") else 2
    if module.ceil_mode:
        raise _refusal(name, module, "has ceil_mode, which is not supported; pad instead")
    size, stride, padding = (_sizes(v, dimensions) for v in (module.kernel_size, module.stride, module.padding))
    sides = tuple((one, one) for one in padding)
    return Window(size, stride, sides, _sizes(dilation, dimensions)), dimensions


def _max_pool(name: str, module: nn.Module) -> Operation:
    assert isinstance(module, _MAX_POOLS)
    if module.return_indices:
        raise _refusal(name, module, "returns indices, which is not supported")
    return MaxPool(name, _pool_window(name, module, module.dilation)[0])


def _elementwise_or_average(name: str, module: nn.Module) -> Operation:
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one, too
        return Clip(name, float(module.min_val), float(module.max_val))
    if isinstance(module, nn.ReLU):
        return Clip(name, 0.0, float("inf"))
    if isinstance(module, _AVERAGE_POOLS):
        if getattr(module, "divisor_override", None) is not None:
            raise _refusal(name, module, "has divisor_override, which is not supported")
        window, dimensions = _pool_window(name, module)
        return AveragePool(name, window, module.count_include_pad, dimensions)
    assert isinstance(module, _WHOLE_AVERAGES)
    dimensions = 1 if isinstance(module, nn.AdaptiveAvgPool1d) else 2
    sizes: Any = module.output_size
    if _sizes(sizes if sizes is not None else 0, dimensions) != (1,) * dimensions:
        raise _refusal(name, module, "must have output_size=1; use an average pool with a fixed window")
    return AveragePool(name, None, True, dimensions)
