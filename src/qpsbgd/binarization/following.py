"""Target outputs of layers in a partly binary network: those of the float network, plus what earlier errors took away.

    minimise Σᵢ (tᵢ − ŵᵀ x̂ᵢ)²,   t = wᵀ x + (r − r̂) / d

x and x̂ are the layer's inputs in the float network and in the binary one. Where its output, times the scale d of a norm
behind it, is added to another term, r and r̂ are that term in both: so errors do not add up along residual branches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qpsbgd.binarization.layer_fit import RIDGE
from qpsbgd.binarization.passes import Passes, Seen


@dataclass(frozen=True)
class Reference:
    """The float network beside the one that becomes binary.

    Attributes:
        passes: Passes of the calibration batches through the float network.
        layers: Its layers, by name.
    """

    passes: Passes
    layers: dict[str, nn.Module]

    def targets(self, name: str, number: int, here: Seen) -> Tensor | None:
        """The target outputs of a layer for a batch; None where the batch does not reach it in the float network.

        Args:
            name: The layer's name in both networks.
            number: Number of the batch.
            here: The layer in the network that becomes binary.
        """
        layer = self.layers[name]
        there = self.passes.seen(layer, number, sums=True)
        if there is None:
            return None
        with torch.no_grad():
            wanted: Tensor = type(layer).forward(layer, there.x)  # not through `passes`, which looks for what is kept
            if here.branch is not None and here.other is not None and there.other is not None:
                wanted = wanted + here.branch.undone(there.other - here.other)
        return wanted


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
