"""The linear layer with weights ±1."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qpsbgd.nn.layers import BinaryLayer, Gain, Scale


class BinaryLinear(BinaryLayer):
    """Linear layer with weights ±1: R = gain · x Wᵀ + bias, for x of shape (…, in_features).

    Args:
        in_features: n.
        out_features: m.
        gain: "fan_in" for 1/√n, which keeps deep nets out of saturation, or a number; the paper uses 1.
        bias: Add a real bias, to be trained by an ordinary optimiser.
        bits: Planes of binary weights, 1 to 8.
        scale: "learned" for a trained scale per output and bit, "magnitude" for the mean size of its latent weights.

    Examples:
        >>> import torch
        >>> from qpsbgd.nn import BinaryLinear
        >>> layer = BinaryLinear(4, 2, gain=1.0)
        >>> layer(torch.ones(3, 4)).shape
        torch.Size([3, 2])
        >>> bool((layer.binary_weight.abs() == 1).all())
        True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        gain: Gain = "fan_in",
        bits: int = 1,
        scale: Scale = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = (out_features, in_features)
        super().__init__(shape, gain=gain, bias=bias, bits=bits, scale=scale, device=device, dtype=dtype)
        self.in_features, self.out_features = in_features, out_features

    def plain_rows(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """All leading dimensions flattened: (…, n) → (B, n)."""
        rows = x.reshape(-1, self.in_features)
        return rows if at is None else rows[at]

    def grad_rows(self, grad: Tensor, at: Tensor | None = None) -> Tensor:
        """All leading dimensions flattened: (…, m) → (B, m)."""
        rows = grad.reshape(-1, self.out_features)
        return rows if at is None else rows[at]

    def _map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    def extra_repr(self) -> str:
        """The arguments that make this layer, for `repr`."""
        return self._description(f"{self.in_features}, {self.out_features}")


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A real-valued layer with copies of a weight (m, n) and a bias, trained where these are."""
    layer = nn.Linear(weight.shape[1], len(weight), bias is not None, "meta", weight.dtype)
    layer = layer.to_empty(device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight).requires_grad_(weight.requires_grad)
        if bias is not None:
            layer.bias.copy_(bias).requires_grad_(bias.requires_grad)
    return layer
