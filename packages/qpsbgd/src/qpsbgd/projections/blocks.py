"""A layer's weights as independent problems: one per group of a convolution, and several where it has many inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import pad

from qpsbgd.nn import BinaryLayer


@dataclass(frozen=True)
class Blocks:
    """How a layer with `groups` groups of n inputs and m outputs each is cut into blocks of at most `limit` inputs.

    Every block is a problem of its own: its inputs explain the gradients of its group's outputs. All blocks have the
    same width; the last one of a group is filled up with inputs that are always zero.
    """

    groups: int  # of the layer: 1 but for grouped convolutions
    inputs: int  # n
    outputs: int  # m
    parts: int  # blocks per group

    @classmethod
    def of(cls, layer: BinaryLayer, limit: int | None, outputs: int | None = None) -> Blocks:
        """The blocks of a layer, or of this many of its output units; no limit leaves every group in one piece."""
        units, *rest = layer.weight.shape
        inputs = math.prod(rest)
        parts = 1 if limit is None else math.ceil(inputs / limit)
        return cls(layer.groups, inputs, (units if outputs is None else outputs) // layer.groups, parts)

    @property
    def width(self) -> int:
        """Inputs of a block."""
        return math.ceil(self.inputs / self.parts)

    @property
    def count(self) -> int:
        """Blocks of the layer."""
        return self.groups * self.parts

    def rows(self, rows: Tensor) -> Tensor:
        """The layer's input rows (B, groups · n) by block: (count, B, width)."""
        cut = self._pad(rows.reshape(len(rows), self.groups, self.inputs))
        return cut.reshape(len(rows), self.count, self.width).transpose(0, 1)

    def columns(self, columns: Tensor) -> Tensor:
        """Rows of the outputs (B, groups · m) by block: (count, B, m)."""
        cut = columns.reshape(len(columns), self.groups, 1, self.outputs).expand(-1, -1, self.parts, -1)
        return cut.reshape(len(columns), self.count, self.outputs).transpose(0, 1)

    def weights(self, weight: Tensor) -> Tensor:
        """A tensor of the weight's shape by block: (count, m, width)."""
        if self.parts == 1:
            return weight.reshape(self.groups, self.outputs, self.inputs)
        cut = self._pad(weight.reshape(self.groups, self.outputs, self.inputs))
        cut = cut.reshape(self.groups, self.outputs, self.parts, self.width).transpose(1, 2)
        return cut.reshape(self.count, self.outputs, self.width)

    def rejoin(self, blocks: Tensor, like: Tensor) -> Tensor:
        """The inverse of `weights`: (count, m, width) in the shape of `like`."""
        if self.parts == 1:
            return blocks.reshape(like.shape)
        whole = blocks.reshape(self.groups, self.parts, self.outputs, self.width).transpose(1, 2)
        return whole.reshape(self.groups, self.outputs, -1)[..., : self.inputs].reshape(like.shape)

    def _pad(self, tensor: Tensor) -> Tensor:
        missing = self.parts * self.width - self.inputs
        return pad(tensor, (0, missing)) if missing else tensor
