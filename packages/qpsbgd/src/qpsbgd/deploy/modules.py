"""Single modules of torch and of this library as operations, and the functions of which there is a module."""

import math
import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qpsbgd_runtime.operations as ops
from qpsbgd.deploy.resampling import adaptive_pool, interpolate_operations, pad_operations
from qpsbgd.nn.activations import QuantActivation, SignActivation
from qpsbgd.nn.convolutions import BinaryConv1d, BinaryConv2d, padded_sides
from qpsbgd.nn.layers import BinaryLayer
from qpsbgd.nn.linear import BinaryLinear
from qpsbgd_runtime.image_operations import AveragePool, Convolution, MaxPool, Window
from qpsbgd_runtime.operations import Array, Operation, Shape
from qpsbgd_runtime.tensor_operations import Activation, Embedding, Normalize, Softmax
from qpsbgd_runtime.unit_operations import Scale

DENSE = (BinaryLinear, nn.Linear)
CONVOLUTIONS = (BinaryConv1d, BinaryConv2d, nn.Conv1d, nn.Conv2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
CLIPS = (nn.ReLU, nn.ReLU6, nn.Hardtanh)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d)
SKIPPED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
_AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d)
_ADAPTIVE_AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_ADAPTIVE_POOLS = (*_ADAPTIVE_AVERAGES, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d)
_PADS: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.ConstantPad1d, nn.ConstantPad2d, nn.ZeroPad1d, nn.ZeroPad2d), "constant"),
    **dict.fromkeys((nn.ReflectionPad1d, nn.ReflectionPad2d), "reflect"),
    **dict.fromkeys((nn.ReplicationPad1d, nn.ReplicationPad2d), "replicate"),
    **dict.fromkeys((nn.CircularPad1d, nn.CircularPad2d), "circular"),
}
_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.Hardsigmoid: "hard sigmoid",
    nn.Hardswish: "hard swish",
    nn.LeakyReLU: "leaky relu",
    nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
    nn.Tanh: "tanh",
    nn.GELU: "gelu",
}


def refusal(name: str, module: nn.Module, reason: str) -> ValueError:
    """The error about a module."""
    return ValueError(f"{name or 'the model'} ({type(module).__name__}) {reason}")


def operations_of(name: str, module: nn.Module, shape: Shape | None) -> list[Operation]:
    """The operations of a supported module other than a layer with weights, a sign or a batch norm, in order."""
    if getattr(module, "return_indices", False):
        raise refusal(name, module, "returns indices, which is not supported; build it without return_indices")
    operations = _OPERATIONS[type(module)](name, module, shape)
    return operations if isinstance(operations, list) else [operations]


_REFUSED: dict[type[nn.Module], str] = {
    nn.MultiheadAttention: "put qpsbgd.nn.ProjectedAttention.of(it) in its place",
    **dict.fromkeys((nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Mish, nn.PReLU), "write nn.SiLU() or nn.LeakyReLU()"),
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), "write nn.Conv1d layers over time: deployed networks keep no state"),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d), "write nn.GroupNorm(channels, channels)"),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d), "write nn.Upsample() and nn.Conv2d"),
    nn.Conv3d: "write nn.Conv2d, with one dimension among the channels",
}
"""Advice for some modules that cannot be expressed."""


def unsupported_error(name: str, module: nn.Module) -> ValueError:
    """The error about a module that cannot be expressed."""
    supported = ", ".join(sorted(kind.__name__ for kind in SUPPORTED))
    others = f"supported are {supported}, and functions between them"
    if nn.utils.parametrize.is_parametrized(module, "weight"):
        others = 'put its weight in place first: nn.utils.parametrize.remove_parametrizations(layer, "weight")'
    return refusal(name, module, f"cannot be expressed; {_REFUSED.get(type(module), others)}")


def axis_of(name: str, dim: Any) -> int:
    """A dimension of torch's, with the batch first, as one of a sample's."""
    if not is_whole_number(dim) or dim == 0:
        raise ValueError(f"{name} must leave the batch dimension 0 as it is, got dimension {dim!r}")
    return int(dim) - 1 if dim > 0 else int(dim)


def is_whole_number(value: Any) -> bool:
    """Whether a size, a dimension or an index is an integer, of numpy's too."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def need_shape(name: str, shape: Shape | None) -> Shape:
    """The shape, or the error that asks for it."""
    if shape is None:
        raise ValueError(f"{name} depends on the shape of a sample: give input_shape, such as (1, 28, 28)")
    return shape


def to_numpy(values: Tensor, name: str, module: nn.Module, dtype: Any = np.float32) -> Array:
    """Parameters as an array; raises where they are not finite."""
    if not values.isfinite().all():
        raise refusal(name, module, "holds NaN or infinite numbers; train the model again")
    array: Array = values.detach().to("cpu", torch.float64).numpy()
    return np.ascontiguousarray(array, dtype)


def weighted_sum(name: str, module: Any, *, integer: bool) -> ops.Weighted:
    """The sums of a layer with weights, without its gain and bias."""
    array = to_numpy(module.weight, name, module)
    if isinstance(module, BinaryLayer):
        planes = array[None] if module.bits == 1 else array.swapaxes(0, 1)
        coefficients: tuple[float, ...] | Array = module.coefficients
        scales = module.plane_scales
        if scales is not None and module.bits > 1:  # of one plane they belong to what follows the sums
            coefficients = to_numpy(scales.T, name, module)
        weights = ops.Weights(planes >= 0, coefficients)
    else:
        weights = ops.Weights(array)
    if isinstance(module, DENSE):
        return ops.Dense(name, weights, integer)
    sides = tuple((int(before), int(after)) for before, after in padded_sides(module))
    size, stride, dilation = map(_ints, (module.kernel_size, module.stride, module.dilation))
    window = Window(size, stride, sides, dilation, module.padding_mode)
    return Convolution(name, weights, window, int(module.groups), integer)


def gain_and_bias(name: str, module: Any) -> tuple[Array, Array]:
    """The factor and the offset per unit that follow the sums of a layer."""
    bias, units = module.bias, len(module.weight)
    gain = np.full(units, module.gain if isinstance(module, BinaryLayer) else 1.0)
    scales = module.plane_scales if isinstance(module, BinaryLayer) else None
    if scales is not None and scales.shape[1] == 1:
        gain = gain * to_numpy(scales[:, 0], name, module, np.float64)
    return gain, np.zeros(units) if bias is None else to_numpy(bias, name, module, np.float64)


def norm_scale(name: str, norm: nn.modules.batchnorm._BatchNorm) -> tuple[Array, Array]:
    """Factor and offset of a batch norm in evaluation mode."""
    if norm.running_mean is None or norm.running_var is None:
        raise refusal(name, norm, "has no running statistics; build it with track_running_stats=True")
    mean, variance = (to_numpy(values, name, norm, np.float64) for values in (norm.running_mean, norm.running_var))
    if not (variance + norm.eps > 0).all():
        raise refusal(name, norm, "divides by a variance of 0; build it with eps=1e-5")
    factor = 1 / np.sqrt(variance + norm.eps)
    if norm.weight is not None:
        factor = factor * to_numpy(norm.weight, name, norm, np.float64)
    offset = -mean * factor
    if norm.bias is not None:
        offset = offset + to_numpy(norm.bias, name, norm, np.float64)
    return factor, offset


def _norm(name: str, module: nn.LayerNorm | nn.RMSNorm | nn.GroupNorm, shape: Shape | None) -> list[Operation]:
    weight, bias = (getattr(module, what, None) for what in ("weight", "bias"))
    factor, offset = (
        np.full(1, default, np.float32) if values is None else to_numpy(values, name, module)
        for values, default in ((weight, 1.0), (bias, 0.0))
    )
    axis = 0 if isinstance(module, nn.GroupNorm) else -1
    scale = [] if weight is None and bias is None else [Scale(name, factor.ravel(), offset.ravel(), axis)]
    if isinstance(module, nn.GroupNorm):
        groups, back = ops.Reshape(name, (int(module.num_groups), -1)), ops.Reshape(name, need_shape(name, shape))
        return [groups, Normalize(name, float(module.eps)), back, *scale]
    eps = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    normal: list[Operation] = [Normalize(name, float(eps), isinstance(module, nn.LayerNorm)), *scale]
    if (dimensions := len(module.normalized_shape)) == 1:
        return normal
    sizes = need_shape(name, shape)
    return [ops.Reshape(name, (*sizes[:-dimensions], -1)), *normal, ops.Reshape(name, sizes)]


def _reshape(name: str, module: nn.Flatten | nn.Unflatten, shape: Shape | None) -> Operation:
    if isinstance(module, nn.Flatten):
        if (module.start_dim, module.end_dim) == (1, -1):
            return ops.Reshape(name, (-1,))
        if module.start_dim == 0:
            raise refusal(name, module, "must keep the batch dimension: start_dim=1")
        sizes = need_shape(name, shape)
        first, last = (axis_of(name, dim) % len(sizes) for dim in (module.start_dim, module.end_dim))
        return ops.Reshape(name, (*sizes[:first], -1, *sizes[last + 1 :]))
    new: Any = module.unflattened_size
    if not is_whole_number(module.dim) or module.dim == 0 or not all(map(is_whole_number, new)):
        raise refusal(name, module, "must unflatten a dimension other than the batch into a tuple of sizes")
    if shape is None and module.dim == 1:  # as behind a dense layer; the operation takes no other samples
        return ops.Reshape(name, _ints(new))
    sizes = need_shape(name, shape)
    axis = axis_of(name, module.dim) % len(sizes)
    return ops.Reshape(name, (*sizes[:axis], *_ints(new), *sizes[axis + 1 :]))


def _sizes(value: Any, dimensions: int) -> Shape:
    return _ints(value) if isinstance(value, tuple | list) else (int(value),) * dimensions


def _ints(values: Sequence[Any]) -> Shape:
    return tuple(map(int, values))


def _pool_window(name: str, module: Any, shape: Shape | None) -> Window:
    dimensions = 1 if type(module).__name__.endswith("1d") else 2
    given = module.kernel_size, module.stride, module.padding, getattr(module, "dilation", 1)
    size, stride, padding, gaps = (_sizes(value, dimensions) for value in given)
    sides = tuple((value, value) for value in padding)
    if module.ceil_mode:
        images = need_shape(name, shape)[1:]
        sides = tuple(map(_up_to_the_last_pixel, images, size, stride, padding, gaps))
    return Window(size, stride, sides, gaps)


def _up_to_the_last_pixel(pixels: int, size: int, stride: int, padding: int, gap: int) -> tuple[int, int]:
    """The padding of ceil_mode along a dimension: the last window begins in the image or the padding before it."""
    span = gap * (size - 1) + 1
    last = -(-(pixels + 2 * padding - span) // stride)
    last -= last * stride >= pixels + padding
    return padding, max(padding, last * stride + span - pixels - padding)


def _average_pool(name: str, module: Any, shape: Shape | None) -> Operation:
    if getattr(module, "divisor_override", None) is not None:
        raise refusal(name, module, "has divisor_override, which is not supported; multiply its result instead")
    window = _pool_window(name, module, shape)
    longer = any(before != after for before, after in window.sides)
    if longer and module.count_include_pad and any(before for before, _ in window.sides):
        raise refusal(name, module, "counts padding under ceil_mode; build it with count_include_pad=False")
    return AveragePool(name, window, module.count_include_pad and not longer, len(window.size))


def _adaptive_pool(name: str, module: Any, shape: Shape | None) -> list[Operation]:
    dimensions = 1 if type(module).__name__.endswith("1d") else 2
    largest = not isinstance(module, _ADAPTIVE_AVERAGES)
    sizes: Any = module.output_size
    sizes = int(sizes) if is_whole_number(sizes) else sizes
    if not largest and sizes in (1, (1,) * dimensions, [1] * dimensions):  # of images of any size
        return [AveragePool(name, None, True, dimensions)]
    return adaptive_pool(name, need_shape(name, shape), sizes, largest=largest)


def _embedding(name: str, module: Any, shape: Shape | None) -> Operation:
    if module.max_norm is not None:
        raise refusal(name, module, "has max_norm, which changes the weights in use; build it without")
    return Embedding(name, to_numpy(module.weight, name, module))


def _softmax(name: str, module: Any, shape: Shape | None) -> Operation:
    if module.dim is None:
        raise refusal(name, module, "must say along which dimension: dim=-1, or dim=1 for classes")
    return Softmax(name, axis_of(name, module.dim))


def _activation(name: str, module: Any, shape: Shape | None) -> Operation:
    function = "gelu tanh" if getattr(module, "approximate", "none") == "tanh" else _ACTIVATIONS[type(module)]
    return Activation(name, function, float(getattr(module, "negative_slope", 0.01)))


def _pad(name: str, module: Any, shape: Shape | None) -> list[Operation]:
    mode, value = _PADS[type(module)], getattr(module, "value", None)
    return pad_operations(name, need_shape(name, shape), _sizes(module.padding, 2), mode=mode, value=value)


def _upsample(name: str, module: Any, shape: Shape | None) -> list[Operation]:
    options = {option: getattr(module, option) for option in ("mode", "align_corners", "recompute_scale_factor")}
    return interpolate_operations(name, need_shape(name, shape), module.size, module.scale_factor, **options)


_OPERATIONS: dict[type[nn.Module], Callable[[str, Any, Shape | None], Operation | list[Operation]]] = {
    nn.ReLU: lambda name, module, shape: ops.Clip(name, 0.0, math.inf),
    **dict.fromkeys(
        (nn.ReLU6, nn.Hardtanh),
        lambda name, module, shape: ops.Clip(name, float(module.min_val), float(module.max_val)),
    ),
    **dict.fromkeys(MAX_POOLS, lambda name, module, shape: MaxPool(name, _pool_window(name, module, shape))),
    **dict.fromkeys(_AVERAGE_POOLS, _average_pool),
    **dict.fromkeys(_ADAPTIVE_POOLS, _adaptive_pool),
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys((nn.Flatten, nn.Unflatten), _reshape),
    nn.Softmax: _softmax,
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), _norm),
    **dict.fromkeys(_PADS, _pad),
    nn.Upsample: _upsample,
    nn.Embedding: _embedding,
}
SUPPORTED: tuple[type[nn.Module], ...] = (
    *(SignActivation, QuantActivation, *DENSE, *CONVOLUTIONS, *NORMS, *SKIPPED, *_OPERATIONS),
)
"""All modules that can be expressed; a class derived from one of them cannot."""


def _clamp(min: Any = None, max: Any = None) -> nn.Module:
    return nn.Hardtanh(-math.inf if min is None else float(min), math.inf if max is None else float(max))


def _layer_norm(normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> nn.Module:
    norm = nn.LayerNorm(normalized_shape, eps, elementwise_affine=weight is not None, bias=bias is not None)
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None:
            setattr(norm, name, nn.Parameter(values, requires_grad=False))
    return norm


def _dropout(p: float = 0.5, training: bool = True) -> nn.Module:
    if training and p > 0:
        raise ValueError("dropout must end in evaluation; write F.dropout(x, p, self.training)")
    return nn.Identity()


_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)
"""Operators that change their first argument."""
_POOL, _AVERAGE = ("kernel_size", "stride", "padding"), ("ceil_mode", "count_include_pad", "divisor_override")
_ENDS = ("start_dim", "end_dim")
_MAXIMUM = (*_POOL, "dilation", "ceil_mode", "return_indices")
_MODULES: tuple[tuple[Callable[..., nn.Module], tuple[Any, ...], tuple[str, ...]], ...] = (
    (nn.ReLU, (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"), ("inplace",)),
    (nn.ReLU6, (F.relu6,), ("inplace",)),
    (nn.Hardtanh, (F.hardtanh, F.hardtanh_), ("min_val", "max_val", "inplace")),
    (nn.LeakyReLU, (F.leaky_relu, F.leaky_relu_), ("negative_slope", "inplace")),
    (nn.Tanh, (F.tanh, torch.tanh, "tanh", "tanh_"), ()),
    (nn.Sigmoid, (F.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_"), ()),
    (nn.SiLU, (F.silu,), ("inplace",)),
    (nn.GELU, (F.gelu,), ("approximate",)),
    (nn.Hardswish, (F.hardswish,), ("inplace",)),
    (nn.Hardsigmoid, (F.hardsigmoid,), ("inplace",)),
    (nn.Softmax, (F.softmax, torch.softmax, "softmax"), ("dim",)),
    (nn.MaxPool1d, (F.max_pool1d, torch.max_pool1d), _MAXIMUM),
    (nn.MaxPool2d, (F.max_pool2d, torch.max_pool2d), _MAXIMUM),
    (nn.AvgPool1d, (F.avg_pool1d,), (*_POOL, *_AVERAGE[:2])),
    (nn.AvgPool2d, (F.avg_pool2d,), (*_POOL, *_AVERAGE)),
    (nn.AdaptiveAvgPool1d, (F.adaptive_avg_pool1d,), ("output_size",)),
    (nn.AdaptiveAvgPool2d, (F.adaptive_avg_pool2d,), ("output_size",)),
    (nn.AdaptiveMaxPool1d, (F.adaptive_max_pool1d,), ("output_size", "return_indices")),
    (nn.AdaptiveMaxPool2d, (F.adaptive_max_pool2d,), ("output_size", "return_indices")),
    (_layer_norm, (F.layer_norm,), ("normalized_shape", "weight", "bias", "eps")),
    (lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim), (torch.flatten, "flatten"), _ENDS),
    (lambda dim, sizes: nn.Unflatten(dim, tuple(sizes)), (torch.unflatten, "unflatten"), ("dim", "sizes")),
    (_clamp, (torch.clamp, torch.clip, "clamp", "clip", "clamp_"), ("min", "max")),
    (_dropout, (F.dropout, F.dropout1d, F.dropout2d), ("p", "training", "inplace")),
    (nn.Identity, ("contiguous", "clone", "detach", "float", torch.clone), ()),
)
_MODULE_OF = {target: (make, names) for make, targets, names in _MODULES for target in targets}
_WITHOUT_MEANING = ("inplace", "_stacklevel", "memory_format")
_CASTS = ("to", "type")
REAL_TYPES = frozenset({torch.float32, torch.float64})


def module_of(
    target: Any, args: Sequence[Any], kwargs: dict[str, Any], *, types: frozenset[torch.dtype] = REAL_TYPES
) -> nn.Module | None:
    """The module that computes the same as a function or method, given its arguments after the first; None if none."""
    if target in _CASTS:
        return _cast(target, args, kwargs, types)
    make, names = _MODULE_OF.get(target, (None, ()))
    if make is None:
        return None
    if len(args) > len(names):
        raise ValueError(f"{_name_of(target)} must have at most {len(names)} arguments after the first, got {args}")
    options = {k: v for k, v in (_by_name(names, args) | kwargs).items() if k not in _WITHOUT_MEANING}
    if options.get("dtype", torch.float32) in (None, torch.float32):
        options.pop("dtype", None)
    return make(**options)


def works_in_place(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function or method, given its arguments after the first, changes that one."""
    _, names = _MODULE_OF.get(target, (None, ()))
    by_name = _name_of(target).endswith("_") and not _name_of(target).endswith("__")
    return target in _IN_PLACE or by_name or bool((_by_name(names, args) | kwargs).get("inplace"))


def _name_of(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _by_name(names: Sequence[str], args: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, args, strict=False))


def _cast(target: str, args: Sequence[Any], kwargs: dict[str, Any], types: frozenset[torch.dtype]) -> nn.Module:
    """Nothing, for x.to() or x.type() with whatever arguments name one of these types, or none."""
    if target == "type" and not (args or kwargs):
        raise ValueError("the type of a value cannot be queried; write x.dtype")
    for given in (*args, *kwargs.values()):
        dtype = given.dtype if isinstance(given, Tensor) else given
        if isinstance(dtype, str) and dtype.endswith("Tensor"):
            dtype = getattr(torch, dtype.rpartition(".")[2]).dtype
        if isinstance(dtype, torch.dtype) and dtype not in types:
            raise ValueError(f"values are real numbers in float32, which cannot become {dtype}; leave the cast out")
    return nn.Identity()
