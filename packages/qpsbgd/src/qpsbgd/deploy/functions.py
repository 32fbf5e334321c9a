"""Functions and methods between the layers, as operations or as a module that computes the same."""

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qpsbgd.deploy.graph_builder import LOWEST, GraphBuilder, Traced
from qpsbgd.deploy.modules import axis_of, is_whole_number, module_of, need_shape, to_numpy
from qpsbgd.deploy.resampling import interpolate_operations, pad_operations
from qpsbgd_runtime.operations import Dense, Reshape, Shape, Weights
from qpsbgd_runtime.tensor_operations import Combine, Concatenate, Mean, Product, Slice, Softmax, Take, Transpose
from qpsbgd_runtime.unit_operations import Scale

BATCH = object()  # the size of the batch dimension, which stays free


class _Functions:
    """The functions and methods that have no module, under torch's names, as methods that add operations to a graph."""

    def __init__(self, builder: GraphBuilder, name: str) -> None:
        self.builder, self.name = builder, name

    def div(self, left: Any, right: Any) -> Traced:
        if isinstance(right, Traced):
            raise ValueError(f"{self.name} divides by a value that the network computes, which cannot be expressed")
        return self._combine("multiply", left, 1 / torch.as_tensor(right, dtype=torch.float64))

    def neg(self, value: Any) -> Traced:
        return self._scale(value, -1.0, 0.0)

    def _combine(self, how: str, left: Any, right: Any) -> Traced:
        if isinstance(left, Traced) and isinstance(right, Traced):
            return self.builder.emit(Combine(self.name, how), left, right)
        swapped = isinstance(right, Traced)
        value, other = (right, left) if swapped else (left, right)
        shape = self.builder.shape(value)
        if isinstance(other, Tensor) and shape is not None and other.ndim > 1 + len(shape):
            raise ValueError(
                f"{self.name} adds dimensions before the batch: a constant of {1 + len(shape)} dimensions at most, got "
                f"shape {tuple(other.shape)}"
            )
        if isinstance(other, Tensor) and other.numel() > 1:
            constant = to_numpy(other, self.name, nn.Module())
            while constant.shape[0] == 1:  # the batch dimension, or one that is repeated anyway
                constant = constant[0]
            if how == "subtract":
                value, constant = (self.neg(value), constant) if swapped else (value, -constant)
            return self.builder.emit(Combine(self.name, "multiply" if how == "multiply" else "add", constant), value)
        number = float(other)
        if not math.isfinite(number):
            raise ValueError(f"{self.name} must have a finite number, got {number}")
        difference = (-1.0, number) if swapped else (1.0, -number)
        return self._scale(value, *{"multiply": (number, 0.0), "add": (1.0, number), "subtract": difference}[how])

    add = functools.partialmethod(_combine, "add")
    sub = functools.partialmethod(_combine, "subtract")
    mul = functools.partialmethod(_combine, "multiply")

    def _scale(self, value: Any, factor: float, offset: float) -> Traced:
        scale = Scale(self.name, np.full(1, factor, np.float32), np.full(1, offset, np.float32))
        return self.builder.emit(scale, value)

    def cat(self, tensors: Any, dim: int = 0) -> Traced:
        axis = axis_of(self.name, dim)
        tensors = [value for value in tensors if not (isinstance(value, Tensor) and value.numel() == 0)]
        traced = [value for value in tensors if isinstance(value, Traced)]
        joint = traced[0] if len(traced) == 1 else self.builder.emit(Concatenate(self.name, axis), *traced)
        return joint if len(traced) == len(tensors) else self._among_constants(joint, tensors, axis)

    def _among_constants(self, joint: Traced, values: Sequence[Any], axis: int) -> Traced:
        """Values that have been joined, with constants (1, …) in their places between them: a sum of both."""
        shape = self._shape(joint)
        axis, places, parts = axis % len(shape), list[int](), list[Tensor]()
        for value in values:
            constant = isinstance(value, Tensor)
            size = value.shape[axis + 1] if constant else self._shape(value)[axis]
            if constant and len(value) != 1:
                raise ValueError(
                    f"{self.name} must join constants (1, …) that are the same for every sample, got "
                    f"{tuple(value.shape)}; write constant.expand(x.shape[0], …)"
                )
            first = len([place for place in places if place >= 0])
            places += [-1] * size if constant else range(first, first + size)
            parts.append(value[0] if constant else torch.zeros((*shape[:axis], size, *shape[axis + 1 :])))
        taken = self.builder.emit(Take(self.name, axis, np.array(places, np.int32)), joint)
        return self._combine("add", taken, torch.cat(parts, axis))

    def stack(self, tensors: Any, dim: int = 0) -> Traced:
        return self.cat([self.unsqueeze(value, dim) for value in tensors], dim)

    def matmul(self, left: Any, right: Any) -> Traced:
        if isinstance(right, Tensor) and right.ndim == 2:
            return self.builder.emit(Dense(self.name, Weights(to_numpy(right.T, self.name, nn.Module()))), left)
        if not (isinstance(left, Traced) and isinstance(right, Traced)):
            raise ValueError(f"{self.name} must multiply two values, or a value by a constant matrix")
        return self.builder.emit(Product(self.name), left, right)

    def linear(self, value: Any, weight: Any, bias: Any = None) -> Traced:
        if not (isinstance(value, Traced) and isinstance(weight, Tensor) and weight.ndim == 2):
            raise ValueError(f"{self.name} must multiply a value by a constant matrix; write left @ right for two")
        product = self.matmul(value, weight.T)
        return product if bias is None else self._combine("add", product, bias)

    def transpose(self, value: Any, dim0: int, dim1: int) -> Traced:
        order = list(range(len(self._shape(value))))
        first, second = (axis_of(self.name, dim) % len(order) for dim in (dim0, dim1))
        order[first], order[second] = order[second], order[first]
        return self.builder.emit(Transpose(self.name, tuple(order)), value)

    def permute(self, value: Any, *dims: Any) -> Any:
        wanted = [dim if dim >= 0 else dim + len(_as_list(dims)) for dim in _as_list(dims)]
        if wanted[1:2] == [0]:  # the parts along the first dimension, as of qkv.permute(2, 0, 3, 1, 4)
            rest = [dim - (dim > wanted[0]) for dim in wanted[1:]]
            return [self.permute(part, rest) for part in self.unbind(value, wanted[0])]
        if wanted[:1] != [0]:
            raise ValueError(
                f"{self.name} must leave the batch dimension first, or second for parts that are taken one by one, got "
                f"the order {wanted}"
            )
        return self.builder.emit(Transpose(self.name, tuple(dim - 1 for dim in wanted[1:])), value)

    def reshape(self, value: Any, *sizes: Any, shape: Any = None) -> Traced:
        batch, *rest = _as_list(sizes if shape is None else (shape,))
        known_shape = self.builder.shape(value) if batch == -1 and -1 not in rest else None
        free = batch == -1 and -1 not in rest and (known_shape is None or math.prod(known_shape) == math.prod(rest))
        if not (batch is BATCH or free) or not all(map(is_whole_number, rest)):
            raise ValueError(
                f"{self.name} must keep the batch dimension first: x.view(x.shape[0], …) or x.flatten(1), not its size "
                "as a number or as a part of a product"
            )
        return self.builder.emit(Reshape(self.name, tuple(map(int, rest))), value)

    def squeeze(self, value: Any, dim: int | None = None) -> Traced:
        shape = self._shape(value)
        gone = {at for at, size in enumerate(shape) if size == 1}
        if dim is not None:
            gone &= {axis_of(self.name, dim) % len(shape)}
        return self.builder.emit(Reshape(self.name, tuple(s for at, s in enumerate(shape) if at not in gone)), value)

    def unsqueeze(self, value: Any, dim: int) -> Traced:
        shape = list(self._shape(value))
        axis = axis_of(self.name, dim)
        shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
        return self.builder.emit(Reshape(self.name, tuple(shape)), value)

    def mean(self, value: Any, dim: Any = None, keepdim: bool = False) -> Traced:
        if dim is None:
            raise ValueError(f"{self.name} must say which dimensions: x.mean((2, 3))")
        axes = tuple(axis_of(self.name, axis) for axis in _as_list((dim,)))
        return self.builder.emit(Mean(self.name, axes, bool(keepdim)), value)

    def sum(self, value: Any, dim: Any = None, keepdim: bool = False) -> Traced:
        shape, mean = self._shape(value), self.mean(value, dim, keepdim)
        return self._scale(mean, math.prod(shape) / math.prod(self._shape(mean)), 0.0)

    def amax(self, value: Any, dim: Any = None, keepdim: bool = False) -> Traced:
        if dim is None or isinstance(dim, Traced):
            raise ValueError(f"{self.name} must say which dimension: x.amax(2) or x.max(2)[0]")
        shape = self._shape(value)
        axes = sorted({axis_of(self.name, axis) % len(shape) for axis in _as_list((dim,))})
        order = (*(at for at in range(len(shape)) if at not in axes), *axes)
        count = math.prod(shape[at] for at in axes)
        rows = Reshape(self.name, (math.prod(shape) // count, count))
        value = self.builder.chain([Transpose(self.name, order), rows], value)
        kept = tuple(1 if at in axes else size for at, size in enumerate(shape) if keepdim or at not in axes)
        return self.builder.emit(Reshape(self.name, kept), self.builder.apply(self.name, nn.MaxPool1d(count), value))

    def max(self, value: Any, dim: Any = None, keepdim: bool = False) -> list[Any]:
        return [self.amax(value, dim, keepdim), None]  # no place: whatever takes it is refused

    def size(self, value: Any, dim: int | None = None) -> Any:
        sizes = _Sizes(self.name)  # a value of known shape has answered itself
        return sizes if dim is None else sizes[dim]

    def getattr(self, value: Any, name: str) -> Any:
        if name == "values" and isinstance(value, list):
            return value[0]
        if name != "shape":
            raise ValueError(f"{self.name} reads .{name}, which cannot be expressed without input_shape, if at all")
        return self.size(value)

    def dim(self, value: Any) -> int:
        return 1 + len(self._shape(value))

    def getitem(self, value: Any, index: Any) -> Any:
        if isinstance(value, list):
            return value[index]
        index = index if isinstance(index, tuple) else (index,)
        if ... in index:
            at, named = index.index(...), len([part for part in index if part is not None]) - 1
            index = (*index[:at], *(slice(None),) * (1 + len(self._shape(value)) - named), *index[at + 1 :])
        if index[0] != slice(None):
            raise ValueError(f"{self.name} must take the whole batch: x[:, …]")
        if len([part for part in index if isinstance(part, list) or (isinstance(part, Tensor) and part.ndim)]) > 1:
            raise ValueError(f"{self.name} must have at most one list of numbers; take one after the other: x[:, …][…]")
        axis = 0
        for part in index[1:]:
            rank = len(self._shape(value)) if isinstance(part, Tensor | list) else 0
            if part is None:
                value = self.unsqueeze(value, axis + 1)
            elif part != slice(None):
                value = self._part(value, axis, part)
            axis += len(self._shape(value)) - rank + 1 if rank else part is None or isinstance(part, slice)
        return value

    def _part(self, value: Any, axis: int, index: Any) -> Traced:
        if is_whole_number(index):
            start = int(index) if index >= 0 else int(index) + self._shape(value)[axis]
            return self.builder.emit(Slice(self.name, axis, start, start + 1, False), value)
        if not isinstance(index, slice | Tensor | list):
            raise ValueError(f"{self.name} must take numbers, ranges or constant lists of numbers, got {index!r}")
        shape = self._shape(value)
        size = shape[axis]
        if isinstance(index, slice) and (taken := range(size)[index]).step == 1:
            return self.builder.emit(Slice(self.name, axis, taken.start, taken.stop), value)
        if isinstance(index, Tensor) and index.dtype == torch.uint8:  # a mask, as torch still takes them
            index = index.bool()
        places = np.arange(size, dtype=np.int32)[index if isinstance(index, slice) else np.asarray(index)]
        taken_values = self.builder.emit(Take(self.name, axis, places.ravel()), value)
        if places.ndim == 1:
            return taken_values
        return self.builder.emit(Reshape(self.name, (*shape[:axis], *places.shape, *shape[axis + 1 :])), taken_values)

    def index_select(self, value: Any, dim: int, index: Tensor) -> Traced:
        return self._part(value, axis_of(self.name, dim), index)

    def pad(self, x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Traced:
        return self.builder.chain(pad_operations(self.name, self._shape(x), pad, mode=mode, value=value), x)

    def interpolate(self, x: Any, *args: Any, **options: Any) -> Traced:
        return self.builder.chain(interpolate_operations(self.name, self._shape(x), *args, **options), x)

    def pow(self, value: Any, exponent: Any = 2) -> Traced:
        if not isinstance(value, Traced) or exponent not in (1, 2, 3, 4):
            raise ValueError(f"{self.name} must have a power of 1 to 4, got {exponent!r}; write it as products")
        return functools.reduce(self.mul, [value] * int(exponent))

    def chunk(self, value: Any, chunks: int, dim: int = 0) -> list[Traced]:
        axis = axis_of(self.name, dim)
        return self.split(value, -(-self._shape(value)[axis] // chunks), dim)

    def split(self, value: Any, size: Any, dim: int = 0) -> list[Traced]:
        axis = axis_of(self.name, dim)
        count = self._shape(value)[axis]
        ends = itertools.accumulate(size) if isinstance(size, list | tuple) else [*range(size, count, size), count]
        return [self.builder.emit(Slice(self.name, axis, a, b), value) for a, b in itertools.pairwise([0, *ends])]

    def unbind(self, value: Any, dim: int = 0) -> list[Traced]:
        if isinstance(value, list) and dim == 0:
            return value
        axis = axis_of(self.name, dim)
        return [self._part(value, axis, at) for at in range(self._shape(value)[axis])]

    def masked_fill(self, value: Any, mask: Tensor, number: float) -> Traced:
        if not isinstance(mask, Tensor):
            raise ValueError(f"{self.name} must have a constant mask: a buffer")
        hidden, fill = mask.to(torch.bool), float(number)
        if fill == -math.inf:
            return self._hidden(value, hidden)
        if not math.isfinite(fill):
            raise ValueError(f"{self.name} must fill in a finite number or -inf, got {fill}")
        return self._combine("add", self._combine("multiply", value, (~hidden).float()), hidden * fill)

    def _hidden(self, value: Any, mask: Tensor) -> Traced:
        """A value with −∞ where a constant mask is true."""
        hidden = mask.numpy(force=True)
        while hidden.ndim and len(hidden) == 1:  # the batch dimension, or one that is repeated anyway
            hidden = hidden[0]
        if value.hidden is not None:
            value, hidden = replace(value, hidden=None), hidden | value.hidden
        return replace(self._combine("add", value, mask * LOWEST), hidden=hidden)

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Traced:
        if dropout_p:
            raise ValueError(f"{self.name} must have dropout_p=0 in evaluation, got {dropout_p}")
        rows, columns = self._shape(query)[-2], self._shape(key)[-2]
        factor = 1 / math.sqrt(self._shape(query)[-1]) if scale is None else scale
        scores = self.mul(self.matmul(query, self.transpose(key, -2, -1)), factor)
        if is_causal:
            attn_mask = torch.ones(rows, columns, dtype=torch.bool).tril()
        if isinstance(attn_mask, Tensor) and attn_mask.dtype == torch.bool:
            scores = self.masked_fill(scores, ~attn_mask, -math.inf)
        elif isinstance(attn_mask, Tensor):
            hidden, shape = (attn_mask == -math.inf).numpy(force=True), self._shape(scores)
            scores = self._combine("add", scores, attn_mask.clamp(min=LOWEST))
            self.builder.check_rows(self.name, hidden.reshape(hidden.shape[-len(shape) :]), shape, -1)
        elif attn_mask is not None:
            scores = self._combine("add", scores, attn_mask)
        return self.matmul(self.builder.emit(Softmax(self.name, -1), scores), value)

    def _shape(self, value: Any) -> Shape:
        return need_shape(self.name, self.builder.shape(value))


class _Sizes:
    """The shape of a value of which only the batch is known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, index: Any) -> Any:
        return BATCH if index == 0 else need_shape(self._name, None)


def _as_list(values: Sequence[Any]) -> list[Any]:
    """Sizes or dimensions given as one sequence or one by one."""
    return list(values[0]) if len(values) == 1 and isinstance(values[0], tuple | list) else list(values)


_OTHER_SPELLINGS: dict[str, tuple[Any, ...]] = {
    "add": (operator.iadd, "add_"),
    "sub": (operator.isub, "sub_"),
    "mul": (operator.imul, "mul_"),
    "div": (operator.truediv, operator.itruediv, "div_"),
    "cat": (torch.concat, torch.concatenate),
    "matmul": (torch.bmm, "bmm"),
    "transpose": (torch.swapaxes, "swapaxes"),
    "reshape": ("view",),
    "pow": (operator.ipow, torch.square, "square"),
    "getattr": (getattr,),
    # torch_geometric puts a function of its own in the place of torch.index_select, which calls this one.
    "index_select": (torch._VF.index_select,),
}
_METHODS: dict[Any, str] = {
    target: name
    for name in vars(_Functions)
    if not name.startswith("_")
    for namesakes in [[getattr(space, name) for space in (operator, torch, F) if hasattr(space, name)]]
    for target in (name, *namesakes, *_OTHER_SPELLINGS.get(name, ()))
}


_SAME = "a deployed forward must do the same for every input; compute both sides and choose outside the network"
_ADVICE = {
    **dict.fromkeys(("gt", "lt", "ge", "le", "eq", "ne", "bool", "item", "where"), _SAME),
    **dict.fromkeys(("einsum", "bmm", "baddbmm"), "write it as transpose and left @ right"),
    **dict.fromkeys(("exp", "log", "sqrt", "rsqrt", "erf"), "write the module around it: nn.Softmax, nn.GELU"),
    **dict.fromkeys(("cumsum", "tril", "triu"), "write x @ matrix, with a constant matrix of ones and zeros"),
    **dict.fromkeys(("expand", "repeat"), "sums and products repeat dimensions of size 1 by themselves: leave it out"),
}
_OTHERWISE = "write it with functions from the table in docs/deployment.md, or leave it outside the deployed network"


def call_function(builder: GraphBuilder, name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a function, or of a method given by its name, whose arguments include values of the graph."""
    module = module_of(target, args[1:], kwargs, types=builder.types)
    if module is not None:
        return builder.apply(name, module, args[0])
    if target not in _METHODS:
        called = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        raise ValueError(f"{name} calls {called}, which cannot be expressed; {_ADVICE.get(called, _OTHERWISE)}")
    return getattr(_Functions(builder, name), _METHODS[target])(*args, **kwargs)
