"""The sign as an activation, for networks whose weights and activations are both ±1."""

from __future__ import annotations

from torch import Tensor, nn

from qpsbgd.nn.layers import sign


class SignActivation(nn.Module):
    """sign(x) with sign(0) = +1; the gradient passes straight through where |x| ≤ width and is zero elsewhere.

    Args:
        width: Half the width of the window of the gradient; `math.inf` lets all of it pass.
    """

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        if isinstance(width, bool) or not isinstance(width, int | float) or not width > 0:
            raise ValueError(f"width must be a positive number, got {width!r}")
        self.width = float(width)

    def forward(self, x: Tensor) -> Tensor:
        """±1 in the shape of x."""
        return sign(x.clamp(-self.width, self.width))

    def extra_repr(self) -> str:
        """The arguments that make this module, for `repr`."""
        return "" if self.width == 1 else f"width={self.width:g}"
