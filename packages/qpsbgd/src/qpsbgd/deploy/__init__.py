"""Deployment of trained networks: packed files at one bit per weight, inference without torch, C99 and ONNX.

Torch is loaded only where a torch model is given; `load_packed` needs numpy and safetensors (extra `deploy`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qpsbgd.deploy.c_code import CSource, write_c
from qpsbgd.deploy.c_layout import Layout
from qpsbgd_runtime import PackedModel, load_packed
from qpsbgd_runtime.checks import check
from qpsbgd_runtime.operations import Shape

if TYPE_CHECKING:
    from torch import nn

__all__ = ["CSource", "PackedModel", "load_packed", "pack", "to_c", "to_onnx"]


def pack(
    model: nn.Module | PackedModel,
    path: str | os.PathLike[str] | None = None,
    *,
    input_shape: Sequence[int] | None = None,
) -> PackedModel:
    """The model with one bit per binary weight, ready to run without torch; written to `path` if one is given.

    It computes what the model computes in evaluation mode. Between a layer with inputs ±1 and the next sign, gain, bias
    and batch norm become one integer threshold per unit, and all signs equal torch's. Elsewhere they become one factor
    and one offset per unit.

    Args:
        model: A network without data-dependent control flow, in any mode, on any device; it is not changed.
        path: A file for `load_packed`; by convention it ends in .safetensors.
        input_shape: Shape of one sample: (3, 32, 32). Needed if `forward` reads sizes or counts dimensions from
            the end, as attention does.

    Raises:
        ValueError: The model has an unsupported operation; the message names it and its line.

    Examples:
        >>> import numpy as np
        >>> from qpsbgd.deploy import pack
        >>> from qpsbgd.nn import BinaryLinear
        >>> pack(BinaryLinear(8, 2))(np.ones((3, 8), np.float32)).shape
        (3, 2)
    """
    packed = packed_form(model, input_shape)
    if path is not None:
        from qpsbgd_runtime.packed_file import save

        save(packed, Path(path))
    return packed


def to_c(
    model: nn.Module | PackedModel,
    folder: str | os.PathLike[str],
    *,
    input_shape: Sequence[int] | None = None,
    name: str = "network",
    word_bits: int = 32,
    layout: Layout = "plain",
    ram: int | None = None,
    compiler: str | None = None,
) -> CSource:
    """Write the model as C99 without a heap: NAME.h, NAME.c, and NAME_test.c, which tests it on the device.

    A fully binary network, which begins with a `SignActivation` and has one after every layer but the last, computes
    in integers only: its inputs are int8_t, of which only the signs matter, and its outputs int64_t in fixed point.
    So does one that begins with a `QuantActivation` and has such activations in their places, residual adds and
    averages included. Other networks use float.

    Args:
        model: A torch model or a packed one.
        folder: Folder to write to; created if missing.
        input_shape: Shape of one sample: (784,) or (1, 28, 28). May be left out if the first layer is linear.
        name: Name of the files and prefix of all C names outside them, so that a firmware can hold several networks.
        word_bits: Bits of a machine word, 32 or 64.
        layout: "plain" adds NAME_main.c, a program that reads samples; "arduino" and "platformio" make the folder a
            library with an example, "cmake" a project that is a library for others.
        ram: The most bytes that static buffers may take. Where more are needed, images are computed by bands of rows,
            which takes more instructions and code; nothing is written where that is not enough either.
        compiler: The command of a gcc, "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -O2", that measures code and stack.

    Returns:
        The files, with their flash, RAM and, with a compiler, code and stack, as a whole and step by step.

    Examples:
        >>> import tempfile
        >>> from qpsbgd.deploy import to_c
        >>> from qpsbgd.nn import BinaryLinear
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sorted(file.name for file in to_c(BinaryLinear(8, 2), folder).files)
        ['network.c', 'network.h', 'network_main.c', 'network_test.c']
    """
    packed = packed_form(model, input_shape)
    shape, to = _require_input_shape(packed), Path(folder)
    options: Any = {"name": name, "word_bits": word_bits, "layout": layout, "ram": ram, "compiler": compiler}
    return write_c(packed.operations, to, input_shape=shape, **options)


def to_onnx(
    model: nn.Module | PackedModel,
    path: str | os.PathLike[str],
    *,
    input_shape: Sequence[int] | None = None,
    weights: Literal["bits", "float32", "qonnx"] = "bits",
) -> None:
    """Write the model as an ONNX graph with inputs (batch, …) and outputs (batch, …) in float32.

    Args:
        model: A torch model or a packed one.
        path: The file; by convention it ends in .onnx.
        input_shape: Shape of one sample: (784,) or (1, 28, 28). May be left out if the first layer is linear.
        weights: "bits" stores eight binary weights per byte and unpacks them in the graph; "float32" stores float
            weights, for runtimes without bitwise operators; "qonnx" does so too and marks binary weights and
            activations with QONNX's BipolarQuant, for hardware compilers.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from qpsbgd.deploy import to_onnx
        >>> from qpsbgd.nn import BinaryLinear
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_onnx(BinaryLinear(8, 2), Path(folder) / "network.onnx")
        ...     [file.name for file in Path(folder).iterdir()]
        ['network.onnx']
    """
    from qpsbgd.deploy.onnx_graph import write_onnx

    packed = packed_form(model, input_shape)
    write_onnx(packed.operations, Path(path), input_shape=_require_input_shape(packed), form=weights)


def _require_input_shape(packed: PackedModel) -> Shape:
    """The shape of a sample."""
    if packed.input_shape is None:
        raise ValueError(
            "the shape of the inputs cannot be inferred from the network; give input_shape, such as (1, 28, 28)"
        )
    return packed.input_shape


def packed_form(model: nn.Module | PackedModel, input_shape: Sequence[int] | None = None) -> PackedModel:
    """The packed model of a torch model; a packed model as it is."""
    shape = None if input_shape is None else _sizes(input_shape)
    if isinstance(model, PackedModel):
        packed = model if shape is None else PackedModel(model.operations, shape)
    else:
        from qpsbgd.deploy.reading import read

        packed = PackedModel(read(model, shape), shape)
    check(packed.operations, packed.input_shape)
    return packed


def _sizes(input_shape: Any) -> Shape:
    sizes = tuple(input_shape) if isinstance(input_shape, Iterable) else ()
    if not (sizes and all(isinstance(size, Integral) and int(size) > 0 for size in sizes)):
        raise ValueError(f"input_shape must be the positive sizes of one sample, without the batch, got {input_shape}")
    return tuple(map(int, sizes))
