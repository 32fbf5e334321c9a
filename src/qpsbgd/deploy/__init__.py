"""Trained networks for use: one bit per weight, inference without torch, C99 and ONNX.

Torch is loaded only where a torch model is given; `load_packed` needs numpy, numba and safetensors (extra `deploy`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from qpsbgd.deploy.packed_model import PackedModel

if TYPE_CHECKING:
    from torch import nn

__all__ = ["PackedModel", "load_packed", "pack"]


def pack(model: nn.Module | PackedModel, path: str | os.PathLike[str] | None = None) -> PackedModel:
    """The model with one bit per binary weight, ready to run without torch; written to `path` where one is given.

    What it computes is what the model computes in evaluation mode. Between a layer whose inputs are ±1 and the next
    sign, gain, bias and batch norm become one whole number per unit, and all signs are exactly torch's. Elsewhere they
    become one factor and one offset per unit.

    Args:
        model: A chain of layers, in any mode, on any device; it stays as it is.
        path: A file for `load_packed`; by convention it ends in .safetensors.

    Raises:
        ValueError: The model has a layer that cannot be expressed; the message names it.
    """
    packed = packed_form(model)
    if path is not None:
        from qpsbgd.deploy.packed_file import save

        save(packed.operations, Path(path))
    return packed


def load_packed(path: str | os.PathLike[str]) -> PackedModel:
    """The model that `pack` wrote: a function of numpy rows (B, …) that returns outputs (B, …) in float32.

    Raises:
        ValueError: The file is not a packed model, of another version, or damaged.
        OSError: It cannot be read.
    """
    from qpsbgd.deploy.packed_file import load

    return PackedModel(load(Path(path)))


def packed_form(model: nn.Module | PackedModel) -> PackedModel:
    """The packed model of a torch model; a packed model as it is."""
    if isinstance(model, PackedModel):
        return model
    from qpsbgd.deploy.reading import read

    return PackedModel(read(model))
