"""Gain, bias, batch norm and an activation after a layer of integers, as integers per unit.

The sums of weights ±1 times bits or integers of 8 bits are integers, and everything up to the next activation
rises or falls with them: so a sign is a comparison with a level, and a quantised activation is one with every step.
Such boundaries are found by torch's own arithmetic, so that they are where torch's rounding puts them.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from qpsbgd.nn.activations import QuantActivation
from qpsbgd.nn.layers import BinaryLayer
from qpsbgd.nn.linear import BinaryLinear
from qpsbgd_runtime.operations import Array
from qpsbgd_runtime.unit_operations import Requantize, Steps, Threshold

_Function = Callable[[Tensor], Tensor]
_MOST_EXCEPTIONS = 4096  # of a layer, whose line fits all but a few sums; a batch norm far off its inputs may have more


@dataclass(frozen=True)
class LayerSums:
    """The sums of a layer, whose inputs count `steps` (None for bits), and the norms and activations after it."""

    layer: BinaryLayer
    between: Sequence[nn.Module]
    name: str
    steps: Steps | None

    @property
    def most(self) -> int:
        """The largest sum that can occur."""
        largest = 1 if self.steps is None else max(-self.steps.low, self.steps.high)
        return self.layer.weight[0].numel() * largest

    def threshold(self) -> Threshold:
        """The comparison that gives the signs that torch computes."""
        boundaries, flipped = self._boundaries(lambda output: (output >= 0).to(torch.float64), np.ones(1))
        levels = np.where(flipped, 1 - boundaries[0], boundaries[0])
        return Threshold(self.name, levels.astype(np.int32), flipped)

    def requantize(self, activation: QuantActivation) -> Requantize:
        """The operation whose integers, times the scale, are those of torch's activation."""
        steps = steps_of(activation)
        wanted = np.arange(steps.low + 1, steps.high + 1)
        boundaries, flipped = self._boundaries(lambda x: activation(x).to(torch.float64) / activation.scale, wanted)
        lows, highs = (steps.low + (boundaries <= end).sum(0) for end in (-self.most, self.most))
        inner = (boundaries > -self.most) & (boundaries <= self.most)
        slopes, starts = _line(wanted[:, None], boundaries, inner)
        slopes, starts = np.where(inner.any(0), slopes, 0), np.where(inner.any(0), starts, lows + 0.5)
        shift = 61 - int(np.ceil(np.log2((slopes * self.most + abs(starts) + 512).max())))
        factors, offsets = (np.rint(np.ldexp(values, shift)).astype(np.int64) for values in (slopes, starts))
        exceptions, ties = [], True
        for unit, sign in enumerate(np.where(flipped, -1, 1).tolist()):
            edges, factor, offset = boundaries[:, unit], int(factors[unit]), int(offsets[unit])
            for k in np.flatnonzero(inner[:, unit]).tolist():
                first = -((offset - (int(wanted[k]) << shift)) // factor)  # the line's own boundary
                between = range(min(first, int(edges[k])), max(first, int(edges[k])))
                exceptions += [
                    (unit, sign * s, steps.low + int((edges <= s).sum())) for s in between if abs(s) <= self.most
                ]
                ties = ties and len(between) <= 1
                if len(exceptions) > _MOST_EXCEPTIONS:
                    raise self._too_many_exceptions(ties=ties)
        factors = np.where(flipped, -factors, factors)
        least, largest = (values.astype(np.int32) for values in (lows, highs))
        return Requantize(self.name, factors, offsets, shift, least, largest, tuple(sorted({*exceptions})), steps)

    def _too_many_exceptions(self, *, ties: bool) -> ValueError:
        """The error about a layer most of whose boundaries are not those of a line; ties miss it by one sum each."""
        dtype = str(self.layer.weight.dtype).removeprefix("torch.")
        if dtype != "float32":
            reason = f"sums have too few digits in {dtype}; deploy the model in float32: model.float()"
        elif ties:
            reason = (
                f"with the gain {self.layer.gain:.4g} many sums lie halfway between two of its steps, and ties go to "
                "the even one; put a batch norm between them, or choose a gain without such ties"
            )
        else:
            reason = "a bias or the mean of a batch norm is far larger than what it is added to; train the model again"
        return ValueError(
            f"{self.name}: the results of the next QuantActivation must follow from sums by one line per unit, with at "
            f"most {_MOST_EXCEPTIONS} exceptions for how {dtype} rounds, but {reason}"
        )

    def _boundaries(self, activation: _Function, wanted: Array) -> tuple[Array, Array]:
        """The least sums (steps, units) that give at least `wanted` (steps,), and the units that fall, negated."""
        units = len(self.layer.weight)
        ends = self._results(activation, np.repeat([[-self.most], [self.most]], units, 1))
        flipped = ends[0] > ends[1]
        low = np.full((len(wanted), units), -self.most)
        high = np.full_like(low, self.most + 1)
        while (low < high).any():
            middle = (low + high) // 2
            reached = self._results(activation, np.where(flipped, -middle, middle)) >= wanted[:, None]
            low, high = np.where(reached | (low == high), low, middle + 1), np.where(reached, middle, high)
        return low, flipped

    def _results(self, activation: _Function, sums: Array) -> Array:
        """Torch's results for sums (…, units), in the layout in which it computes the layer's outputs."""
        layer, between = self.layer, self.between
        scale = 1.0 if self.steps is None else self.steps.scale
        values = torch.from_numpy(sums).to(layer.weight.device, torch.float64) * scale
        grid = values.to(layer.weight.dtype)
        if not isinstance(layer, BinaryLinear):
            grid = grid.T[None]  # (1, units, positions), as of images
        with torch.no_grad():
            scales, units = layer.plane_scales, (-1, *(1,) * (grid.ndim - 2))
            factor = layer.gain if scales is None else (layer.gain * scales).reshape(units)
            output = factor * grid.contiguous()
            if layer.bias is not None:
                output = output + layer.bias.reshape(units)
            for module in between:
                if isinstance(module, _BatchNorm):  # as in evaluation mode, whatever its mode is
                    statistics = module.running_mean, module.running_var
                    output = F.batch_norm(output, *statistics, module.weight, module.bias, False, 0.0, module.eps)
                else:
                    output = module(output)
            if not output.isfinite().all():
                raise ValueError(f"{self.name}: gain, bias or batch norm are not finite; train the model again")
            results: Array = activation(output).cpu().numpy()
        return results if results.ndim == 2 else results[0].T


def steps_of(activation: QuantActivation) -> Steps:
    """The range and the scale of an activation's integers."""
    return Steps(activation.low, activation.high, round(activation.log2_scale.item()))


VANISHING: dict[str, _Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": functools.partial(F.gelu, approximate="tanh"),
}
"""Functions that are negative for x < 0, but −0 far below, whose sign is +1."""


def vanishes_at(function: str) -> np.float32:
    """The largest x < 0 for which torch's function, one of `VANISHING`, is −0."""
    # As integers, the bits of negative ones ascend downwards.
    above, below = (int(np.float32(x).view(np.int32)) for x in (-1.0, -250.0))
    while below - above > 1:
        middle = (above + below) // 2
        x = torch.full((64,), float(np.int32(middle).view(np.float32)))  # so many that torch uses its vectors
        above, below = (middle, below) if bool(VANISHING[function](x)[0] < 0) else (above, middle)
    return np.int32(below).view(np.float32)


def _line(levels: Array, boundaries: Array, inner: Array) -> tuple[Array, Array]:
    """Slopes a and starts c, one per unit, for which a · s + c reaches every level at its boundary s, and not before.

    With d = level − a · s over a unit's `inner` boundaries, max d ≤ c < min d + a. The slope leaves as much room as
    possible, which is a concave function of it; where float32 rounds at a boundary, there may be none.
    """

    def ends(slopes: Array) -> tuple[Array, Array]:
        distance = levels - slopes * boundaries
        return np.where(inner, distance, np.inf).min(0), np.where(inner, distance, -np.inf).max(0)

    low, high = np.zeros(boundaries.shape[1]), inner.sum(0) + 1.0
    with np.errstate(invalid="ignore"):  # units without boundaries
        for _ in range(100):
            thirds = [low + (high - low) * share for share in (0.382, 0.618)]
            left, right = (slopes - (most - least) for slopes in thirds for least, most in (ends(slopes),))
            low, high = np.where(left < right, thirds[0], low), np.where(left < right, high, thirds[1])
        slopes = (low + high) / 2
        least, most = ends(slopes)
        return slopes, (least + most + slopes) / 2
