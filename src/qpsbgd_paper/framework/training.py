"""What the training loops of the experiments share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from qpsbgd.nn import BinaryLinear, Gain


class BinaryMLP(nn.Module):
    """Binary linear layers with hardtanh between them.

    Args:
        widths: Of the input, the hidden layers and the output.
        gain: Of every layer.
        constant: Give every layer one more input that is always 1, in place of a bias: its weights are ±1 too.
    """

    def __init__(self, widths: Sequence[int], *, gain: Gain, constant: bool = False) -> None:
        super().__init__()
        self.constant = constant
        self.layers = nn.ModuleList(BinaryLinear(n + constant, m, gain=gain) for n, m in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, last width) for inputs (B, first width)."""
        for count, layer in enumerate(self.layers):
            x = nn.functional.hardtanh(x) if count else x
            x = torch.cat([x, x.new_ones(len(x), 1)], dim=1) if self.constant else x
            x = layer(x)
        return x


def batches(num_rows: int, batch: int, steps: int) -> Iterator[Tensor]:
    """Row numbers of `steps` batches: every row once in random order, then all anew."""
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(num_rows)
        yield order[:batch]
        order = order[batch:]


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of rows whose largest output is the target's."""
    return (outputs.argmax(1) == targets).double().mean().item()
