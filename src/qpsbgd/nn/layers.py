"""Layers with weights ±1: real latent weights behind a sign with straight-through gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qpsbgd.nn.tape import Tape

Gain = float | Literal["fan_in"]


def sign(latent: Tensor) -> Tensor:
    """The signs ±1, with +1 for zero; the gradient passes straight through."""
    fixed = latent.detach()
    signs = torch.where(fixed >= 0, 1.0, -1.0).to(latent.dtype)
    if not latent.requires_grad:
        return signs
    # Exactly ±1 + 0. Plain operations, unlike a custom autograd function, can be traced, saved and mapped over.
    return signs + (latent - fixed)


class BinaryLayer(nn.Module, ABC):
    """A layer R = gain · X W + bias with W = sign(`weight`), seen as rows X (B, n) and columns of W (n, m).

    `weight` holds the real latent weights; its first dimension is the output unit, as in torch's own layers.
    The optimisers keep them within [−1, 1]. The bias is real-valued and belongs to an ordinary optimiser.

    Attributes:
        gain: Constant factor on the output. It folds into the threshold of the activation that follows.
        latent_forward: Train with the real weights in the forward pass, as ProxQuant does; evaluation always
            uses the binary ones.
        tape: Where the layer records its inputs and output gradients for an optimiser, in training mode only.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, weight_shape: tuple[int, ...], *, gain: Gain, bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        if min(weight_shape) < 1:
            raise ValueError(f"every dimension of a layer must be at least 1, got weights of shape {weight_shape}")
        if not isinstance(bias, bool):
            raise TypeError(f"bias must be True or False, got {bias!r}; the gain is a keyword: gain={bias!r}")
        fan_in = math.prod(weight_shape[1:])
        self.gain = _gain_value(gain, fan_in)
        self.latent_forward = False
        self.tape: Tape | None = None
        self.weight = nn.Parameter(torch.empty(weight_shape, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.zeros(weight_shape[0], device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw latent weights uniformly within ±√(1.5/(n + m)); the bias becomes zero."""
        out_units, fan_in = self.weight.shape[0], self.weight[0].numel()
        bound = math.sqrt(1.5 / (fan_in + out_units))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def binary_weight(self) -> Tensor:
        """The weights ±1 that the layer computes with, in the shape of `weight`; sign(0) = +1."""
        return sign(self.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """R for inputs x, recorded on the tape if there is one."""
        if x.is_nested:
            raise TypeError(
                f"{type(self).__name__} does not accept nested tensors; build nn.TransformerEncoder "
                "with enable_nested_tensor=False"
            )
        weight = self.weight if self.latent_forward and self.training else sign(self.weight)
        output = self.gain * self._map(x, weight)
        if self.bias is not None:
            output = self._add_bias(output, self.bias)
        if self.tape is not None and self.training and self.weight.requires_grad:
            self.tape.watch(output, rows=self._unchanged_rows(x), grad_rows=self.grad_rows)
        return output

    def _unchanged_rows(self, x: Tensor) -> Callable[[], Tensor]:
        """A function that returns `input_rows(x)`, and raises if x has been changed by then."""
        version = None if x.is_inference() else x._version

        def rows() -> Tensor:
            # Autograd notices a changed input itself, but not under autocast, where it keeps a copy.
            if version is not None and x._version != version:
                raise RuntimeError(
                    f"the input of {self} must not change before backward, but was modified in place; "
                    "write x = x + y instead of x += y"
                )
            return self.input_rows(x)

        return rows

    @abstractmethod
    def input_rows(self, x: Tensor) -> Tensor:
        """The rows X (B, n) that this layer's inputs stand for."""

    @abstractmethod
    def grad_rows(self, grad: Tensor) -> Tensor:
        """The output's gradient as rows (B, m), in the order of `input_rows`."""

    @abstractmethod
    def _map(self, x: Tensor, weight: Tensor) -> Tensor: ...

    @abstractmethod
    def _add_bias(self, output: Tensor, bias: Tensor) -> Tensor: ...

    def __getstate__(self) -> dict[str, Any]:
        # A copied or pickled layer is not recorded; a copied optimiser attaches its own tapes (see optim/).
        return {**self.__dict__, "tape": None}


class BinaryLinear(BinaryLayer):
    """Linear layer with weights ±1: R = gain · x Wᵀ + bias, for x of shape (…, in_features).

    Args:
        in_features: n.
        out_features: m.
        gain: "fan_in" for 1/√n, which keeps deep nets out of saturation, or a number; the paper uses 1.
        bias: Add a real bias, to be trained by an ordinary optimiser.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        gain: Gain = "fan_in",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__((out_features, in_features), gain=gain, bias=bias, device=device, dtype=dtype)
        self.in_features, self.out_features = in_features, out_features

    def input_rows(self, x: Tensor) -> Tensor:
        """All leading dimensions flattened: (…, n) → (B, n)."""
        return x.reshape(-1, self.in_features)

    def grad_rows(self, grad: Tensor) -> Tensor:
        """All leading dimensions flattened: (…, m) → (B, m)."""
        return grad.reshape(-1, self.out_features)

    def _map(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    def _add_bias(self, output: Tensor, bias: Tensor) -> Tensor:
        return output + bias

    def extra_repr(self) -> str:
        """The arguments that make this layer, for `repr`."""
        return f"{self.in_features}, {self.out_features}, gain={self.gain:.4g}, bias={self.bias is not None}"


class BinaryConv2d(BinaryLayer):
    """2-D convolution with weights ±1; every patch is a row of n = in_channels · kernel height · kernel width.

    Args:
        in_channels: Channels of the input (N, C, H, W).
        out_channels: m.
        kernel_size: Height and width of the patches.
        stride: Step between patches.
        padding: Zeros added on each side.
        dilation: Step between the pixels of a patch.
        gain: "fan_in" for 1/√n, or a number.
        bias: Add a real bias, to be trained by an ordinary optimiser.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        gain: Gain = "fan_in",
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = (out_channels, in_channels, *_pair(kernel_size, "kernel_size", least=1))
        super().__init__(shape, gain=gain, bias=bias, device=device, dtype=dtype)
        self.stride = _pair(stride, "stride", least=1)
        self.padding = _pair(padding, "padding", least=0)
        self.dilation = _pair(dilation, "dilation", least=1)

    def input_rows(self, x: Tensor) -> Tensor:
        """One row per patch: (N, C, H, W) → (N · L, n)."""
        batch = x if x.ndim == 4 else x[None]
        patches = F.unfold(batch, tuple(self.weight.shape[2:]), self.dilation, self.padding, self.stride)
        return patches.transpose(1, 2).reshape(-1, patches.shape[1])

    def grad_rows(self, grad: Tensor) -> Tensor:
        """One row per patch: (N, m, H', W') → (N · L, m)."""
        batch = grad if grad.ndim == 4 else grad[None]
        return batch.flatten(2).transpose(1, 2).reshape(-1, self.weight.shape[0])

    def _map(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, None, self.stride, self.padding, self.dilation)

    def _add_bias(self, output: Tensor, bias: Tensor) -> Tensor:
        return output + bias[:, None, None]

    def extra_repr(self) -> str:
        """The arguments that make this layer, for `repr`."""
        out_channels, in_channels, height, width = self.weight.shape
        return (
            f"{in_channels}, {out_channels}, ({height}, {width}), stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, gain={self.gain:.4g}, bias={self.bias is not None}"
        )


def _pair(value: int | tuple[int, int], name: str, *, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2 or not all(isinstance(number, int) and number >= least for number in pair):
        raise ValueError(f"{name} must be a whole number of at least {least} or a pair of them, got {value!r}")
    return pair


def _gain_value(gain: Gain, fan_in: int) -> float:
    if gain == "fan_in":
        return 1 / math.sqrt(fan_in)
    number = isinstance(gain, int | float | np.number) and not isinstance(gain, bool)
    if not number or not (math.isfinite(gain) and gain > 0):
        raise ValueError(f'gain must be "fan_in" or a positive number, got {gain!r}')
    return float(gain)
