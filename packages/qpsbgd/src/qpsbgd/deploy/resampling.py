"""Pads, interpolation and adaptive pools as operations along one dimension after the other.

Places and weights are what torch's own functions make of the numbers 0, 1, … and of an identity matrix.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qpsbgd_runtime.image_operations import AveragePool, MaxPool, Window
from qpsbgd_runtime.operations import Dense, Operation, Shape, Weights
from qpsbgd_runtime.tensor_operations import Take, Transpose


def pad_operations(name: str, shape: Shape, pad: Sequence[int], *, mode: str, value: Any) -> list[Operation]:
    """F.pad, for samples of a shape."""
    if len(pad) % 2 or any(pad[2 * len(shape) :]):
        raise ValueError(f"{name} must leave the batch as it is: pad the last {len(shape)} dimensions, got {pad}")
    fill = 0.0 if value is None else float(value)
    if not math.isfinite(fill):
        raise ValueError(f"{name} must pad with a finite number, got {fill}; write value=-3e38 for what no pool takes")
    operations: list[Operation] = []
    for at, sides in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        if any(sides):
            numbers = torch.arange(shape[-at], dtype=torch.float64)[None, None]
            kept = {"value": -1.0} if mode == "constant" else {}
            operations.append(Take(name, -at, _whole(F.pad(numbers, sides, mode, **kept)), fill))
    return operations


def interpolate_operations(
    name: str, shape: Shape, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **options: Any
) -> list[Operation]:
    """F.interpolate, for images (channels, …) of one or two dimensions."""
    images = len(shape) - 1
    options = {key: value for key, value in options.items() if value not in (None, False)}
    if mode not in ("nearest", "nearest-exact", "linear", "bilinear") or images not in (1, 2) or "antialias" in options:
        raise ValueError(
            f"{name} must interpolate lines or images by nearest, nearest-exact, linear or bilinear without antialias, "
            f"got {mode!r} of {images} dimensions; write F.interpolate(x, scale_factor=2, mode='nearest')"
        )

    def along(axis: int) -> dict[str, Any]:
        wanted = {"size": size, "scale_factor": scale_factor}
        parts = {key: value[axis] if isinstance(value, tuple | list) else value for key, value in wanted.items()}
        return {**options, **parts, "mode": mode if mode.startswith("nearest") else "linear"}

    if not mode.startswith("nearest"):
        return _apply_along_axes(name, shape, lambda axis, value: F.interpolate(value, **along(axis)))
    numbers = [torch.arange(count, dtype=torch.float64)[None, None] for count in shape[1:]]
    return [Take(name, axis + 1, _whole(F.interpolate(value, **along(axis)))) for axis, value in enumerate(numbers)]


def adaptive_pool(name: str, shape: Shape, output_size: Any, *, largest: bool) -> list[Operation]:
    """An adaptive pool, of means or largest values, for images (channels, …)."""
    images = shape[1:]
    wanted = output_size if isinstance(output_size, tuple | list) else (output_size,) * len(images)
    sizes = tuple(old if new is None else int(new) for old, new in zip(images, wanted, strict=True))
    if not any(old % new for old, new in zip(images, sizes, strict=True)):
        steps = tuple(old // new for old, new in zip(images, sizes, strict=True))
        window = Window(steps, steps, ((0, 0),) * len(images), (1,) * len(images))
        return [MaxPool(name, window) if largest else AveragePool(name, window, True, len(images))]
    if largest:
        raise ValueError(
            f"{name} must have an output_size that divides the image {images}, got {sizes}; write an nn.MaxPool2d with "
            "a fixed window, or nn.AdaptiveAvgPool2d, which need not divide"
        )
    return _apply_along_axes(name, shape, lambda axis, line: F.adaptive_avg_pool1d(line, sizes[axis]))


def _apply_along_axes(name: str, shape: Shape, function: Callable[[int, Tensor], Tensor]) -> list[Operation]:
    """A linear function of lines (1, n, n) → (1, n, m) that is applied along every dimension of an image."""
    rank, operations = len(shape), list[Operation]()
    for axis in range(rank - 2, -1, -1):
        matrix = function(axis, torch.eye(shape[axis + 1], dtype=torch.float64)[None])[0].T
        turned = [*range(axis + 1), *range(axis + 2, rank), axis + 1]  # this dimension to the end, and back
        back = [turned.index(at) for at in range(rank)]
        weights = Dense(name, Weights(np.ascontiguousarray(matrix.numpy(), np.float32)))
        last = axis == rank - 2
        operations += [weights] if last else [Transpose(name, tuple(turned)), weights, Transpose(name, tuple(back))]
    return operations


def _whole(places: Tensor) -> np.ndarray[Any, Any]:
    return places[0, 0].round().to(torch.int32).numpy()
