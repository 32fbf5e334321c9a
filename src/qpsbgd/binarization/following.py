"""What a layer should give in a network that is partly binary: what it gave in the float network, and what is missing.

    minimise Σᵢ (tᵢ − ŵᵀ x̂ᵢ)²,   t = wᵀ x + (r − r̂) / d

x and x̂ are the layer's inputs in the float network and in the binary one. Where its output, times the scale d of a norm
behind it, is added to another term, r and r̂ are that term in both: so errors do not add up along residual branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qpsbgd.binarization.layer_fit import RIDGE
from qpsbgd.binarization.moments import Moments
from qpsbgd.binarization.passes import Passes
from qpsbgd.nn.convolutions import BinaryConvNd
from qpsbgd.nn.linear import BinaryLinear


@dataclass(frozen=True)
class Reference:
    """The float network beside the one that becomes binary.

    Attributes:
        passes: Of the calibration batches through the float network.
        layers: Its layers, by name.
    """

    passes: Passes
    layers: dict[str, nn.Module]

    def moments(
        self,
        ours: Passes,
        layer: nn.Module,
        *,
        name: str,
        reader: BinaryLinear | BinaryConvNd,
        rows: Callable[[Any, int, Tensor], tuple[Tensor | None, Tensor | None]],
    ) -> Moments | None:
        """The moments of a layer's inputs and targets; None where no batch reaches it.

        Args:
            ours: The passes through the network that becomes binary.
            layer: The layer there, still real-valued.
            name: Its name in both.
            reader: Makes rows of inputs and outputs.
            rows: The mask of the tokens that count, and which of their rows do, for a batch, its number and the input.
        """
        other = self.layers[name]
        groups = reader.groups
        moments = Moments(groups, reader.weight[0].numel() // reader.bits)
        for number, batch in enumerate(ours.batches):
            here, there = ours.seen(layer, number), self.passes.seen(other, number)
            if here is None or there is None:
                continue
            with torch.no_grad():
                wanted = type(other).forward(other, there.x)  # not through `passes`, which would look for what is kept
                if here.branch is not None and here.other is not None and there.other is not None:
                    wanted = wanted + here.branch.undone(there.other - here.other)
            mask, at = rows(batch, number, here.x)
            x, wanted = (here.x, wanted) if mask is None else (here.x[mask], wanted[mask])
            moments.add(reader.plain_rows(x, at), reader.grad_rows(wanted, at))
        return moments if moments.count else None


def target_weights(metrics: Tensor, cross: Tensor, weights: Tensor) -> Tensor:
    """The real weights (groups, n, m) that come nearest to the targets, with a pull towards the weights as they are.

    Args:
        metrics: Q̂, of the inputs in the binary network, (groups, n, n).
        cross: The mean of x̂ tᵀ, (groups, n, m).
        weights: Those of the float network, (groups, n, m).
    """
    unit = metrics.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    pull = torch.where(unit > 0, RIDGE * unit, 1.0)
    system = metrics + pull * torch.eye(metrics.shape[1], dtype=metrics.dtype, device=metrics.device)
    found: Tensor = torch.linalg.solve(system, cross + pull * weights)
    return found
