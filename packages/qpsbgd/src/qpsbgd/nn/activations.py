"""Activations of few bits: the sign, for networks whose weights and activations are both ±1, and integers."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from qpsbgd.nn.layers import call_as_node
from qpsbgd.nn.straight_through import sign
from qpsbgd_qubo.options import POSITIVE, Number

_BITS = Number(whole=True, least=2, most=8)
_SCALE = Number(least=2.0**-60, most=2.0**60)


class SignActivation(nn.Module):
    """sign(x) with sign(0) = +1; the gradient passes straight through where |x| ≤ width and is zero elsewhere.

    Args:
        width: Largest |x| at which the gradient passes; `math.inf` for no limit.

    Examples:
        >>> import torch
        >>> from qpsbgd.nn import SignActivation
        >>> SignActivation()(torch.tensor([-0.5, 0.0, 2.0]))
        tensor([-1.,  1.,  1.])
    """

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        self.width: float = width if width == math.inf else POSITIVE.checked("width", width)

    def forward(self, x: Tensor) -> Tensor:
        """±1 in the shape of x."""
        return sign(x.clamp(-self.width, self.width))

    def extra_repr(self) -> str:
        """The arguments that make this module, for `repr`."""
        return "" if self.width == 1 else f"width={self.width:g}"


class QuantActivation(nn.Module):
    """x rounded to an integer of `bits` bits times a scale: clamp(round(x / scale), low, high) · scale.

    The scale is a power of two, 2^round(log2_scale), with a real-valued parameter `log2_scale`. Integers times a
    power of two, and their sums with weights ±1, are exact in float32, so that a deployed network computes with
    integers and matches torch. A batch norm before the activation fits its input to the scale.

    The gradient passes straight through within the range, and is zero outside. The scale's gradient is LSQ's
    (Esser et al., 2020): round(x / scale) − x / scale within the range, low or high outside, times 1 / √(N · high) for
    N inputs; it passes straight through the exponent's rounding, as in TQT (Jain et al., 2020).

    Args:
        bits: 2 to 8; for one bit there is `SignActivation`.
        signed: Whether the range is −2^(bits−1) to 2^(bits−1) − 1; otherwise 0 to 2^bits − 1, which includes a ReLU.
        scale: Initial scale, rounded to a power of two: 1 / 256 for pixels that are k / 256. By default numbers up
            to 4 are within the range.
        learned: Whether to train the scale.
    """

    def __init__(
        self,
        bits: int = 8,
        *,
        signed: bool = False,
        scale: float | None = None,
        learned: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        bits = _BITS.checked("bits", bits)
        if not isinstance(signed, bool) or not isinstance(learned, bool):
            raise TypeError(f"signed and learned must be True or False, got {signed!r} and {learned!r}")
        self.bits, self.signed = bits, signed
        self.low: int = -(2 ** (bits - 1)) if signed else 0
        self.high: int = self.low + 2**bits - 1
        self._initial_exponent = math.log2(4.0 / (self.high + 1) if scale is None else _SCALE.checked("scale", scale))
        self.log2_scale = nn.Parameter(torch.empty((), device=device, dtype=dtype), requires_grad=learned)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial scale."""
        nn.init.constant_(self.log2_scale, self._initial_exponent)

    @property
    def scale(self) -> Tensor:
        """The scale, a power of two; the gradient passes straight through its rounding."""
        exponent = self.log2_scale.float()
        fixed = exponent.detach()
        return torch.exp2(fixed.round() + (exponent - fixed))

    def forward(self, x: Tensor) -> Tensor:
        """Integers times the scale, in the shape of x."""
        if isinstance(x, Proxy):  # torch.fx traces: the activation becomes one node of the graph
            return call_as_node(self, x)
        scale = self.scale
        part = scale / math.sqrt(max(x.numel(), 1) * self.high)
        scale = (scale.detach() + (part - part.detach())).to(x.dtype)
        inside = (x / scale).clamp(self.low, self.high)
        fixed = inside.detach()
        return (fixed.round() + (inside - fixed)) * scale

    def extra_repr(self) -> str:
        """The arguments that make this module, for `repr`."""
        exponent = round(self.log2_scale.item())
        return f"bits={self.bits}, signed={self.signed}, scale=2**{exponent}"
