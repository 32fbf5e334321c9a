"""Gain, bias, batch norm and sign behind a layer of bits, as one whole number per unit.

The sums of a layer with weights and inputs ±1 are whole numbers, so that everything up to the next sign is a comparison
with a level. The level is found by torch's own arithmetic on every possible sum, so that it rounds as torch does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qpsbgd.deploy.operations import Array, Threshold
from qpsbgd.nn.layers import BinaryLayer, BinaryLinear

_AT_ONCE = 2**22  # numbers


def threshold(layer: BinaryLayer, between: Sequence[nn.Module], *, name: str) -> Threshold:
    """The levels for which a comparison of the sum gives the sign that torch computes.

    Args:
        layer: With one plane of weights.
        between: Batch norms and monotone activations between the layer and the sign.
        name: Of the operation.

    Raises:
        ValueError: The signs are not those of a comparison, which happens if parameters are not finite.
    """
    fan_in = layer.weight[0].numel()
    sums = torch.arange(-fan_in, fan_in + 1, device=layer.weight.device)
    rows = max(1, _AT_ONCE // len(layer.weight))
    with torch.no_grad():
        signs = np.concatenate([_signs(layer, between, part) for part in torch.split(sums, rows)])
    flipped = signs[0] & ~signs[-1]
    rising = signs ^ flipped
    levels = np.count_nonzero(~rising, axis=0) - fan_in
    if not np.array_equal(np.arange(-fan_in, fan_in + 1)[:, None] >= levels, rising):
        raise ValueError(f"{name}: gain, bias or batch norm are not finite; train the model again")
    return Threshold(name, levels.astype(np.int32), flipped)


def _signs(layer: BinaryLayer, between: Sequence[nn.Module], sums: Tensor) -> Array:
    """Whether torch's sign is +1 (sums, units), in the layout in which torch computes the layer's outputs."""
    values = sums.to(layer.weight.dtype)
    grid = values[:, None].expand(-1, len(layer.weight))
    if not isinstance(layer, BinaryLinear):
        grid = grid.T[None]  # (1, units, positions), as of images
    output = grid.contiguous()
    if layer.scale is not None:
        output = output * layer.scale.reshape(-1, *(1,) * (output.ndim - 2))
    output = layer.gain * output
    if layer.bias is not None:
        output = output + (layer.bias if output.ndim == 2 else layer.bias[:, None])
    for module in between:
        output = batch_norm(module, output) if isinstance(module, nn.modules.batchnorm._BatchNorm) else module(output)
    signs: Array = (output >= 0).cpu().numpy()
    return signs if signs.ndim == 2 else signs[0].T


def batch_norm(norm: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    """What the norm computes in evaluation mode, whatever its mode is."""
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
