"""Functions and methods of which there is a module that computes the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def _clamp(min: Any = None, max: Any = None) -> nn.Module:
    return nn.Hardtanh(-math.inf if min is None else float(min), math.inf if max is None else float(max))


def _layer_norm(normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> nn.Module:
    made = nn.LayerNorm(normalized_shape, eps, elementwise_affine=weight is not None, bias=bias is not None)
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None:
            setattr(made, name, nn.Parameter(values, requires_grad=False))
    return made


def _cast(dtype: Any = None, **_: Any) -> nn.Module:
    if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
        raise ValueError(f"values are real numbers, which cannot become {dtype}; leave the conversion out")
    return nn.Identity()


_POOL, _AVERAGE = ("kernel_size", "stride", "padding"), ("ceil_mode", "count_include_pad", "divisor_override")
_ENDS = ("start_dim", "end_dim")
_MAXIMUM = (*_POOL, "dilation", "ceil_mode", "return_indices")
_MODULES: tuple[tuple[Callable[..., nn.Module], tuple[Any, ...], tuple[str, ...]], ...] = (
    (nn.ReLU, (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"), ()),
    (nn.ReLU6, (F.relu6,), ()),
    (nn.Hardtanh, (F.hardtanh, F.hardtanh_), ("min_val", "max_val")),
    (nn.LeakyReLU, (F.leaky_relu, F.leaky_relu_), ("negative_slope",)),
    (nn.Tanh, (F.tanh, torch.tanh, "tanh", "tanh_"), ()),
    (nn.Sigmoid, (F.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_"), ()),
    (nn.SiLU, (F.silu,), ()),
    (nn.GELU, (F.gelu,), ("approximate",)),
    (nn.Hardswish, (F.hardswish,), ()),
    (nn.Hardsigmoid, (F.hardsigmoid,), ()),
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
    (lambda **_: nn.Identity(), (F.dropout, F.dropout1d, F.dropout2d), ("p", "training")),
    (nn.Identity, ("contiguous", "clone", "detach", "float", torch.clone), ()),
    (_cast, ("to", "type"), ("dtype", "other")),
)
_MODULE_OF = {target: (make, names) for make, targets, names in _MODULES for target in targets}
_WITHOUT_MEANING = ("inplace", "_stacklevel", "memory_format")


def module_of(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> nn.Module | None:
    """The module that computes the same as a function or method, given its arguments behind the first; None if none."""
    make, names = _MODULE_OF.get(target, (None, ()))
    if make is None:
        return None
    options = dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k not in _WITHOUT_MEANING}
    if options.get("dtype", torch.float32) in (None, torch.float32):
        options.pop("dtype", None)
    return make(**options)
