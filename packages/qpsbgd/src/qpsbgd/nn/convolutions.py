"""Convolutions with weights ±1: every patch of the input is a row."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from qpsbgd.nn.layers import BinaryLayer, Gain, Scale
from qpsbgd_qubo.options import AT_LEAST_ONE, COUNT, Number

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class BinaryConvNd(BinaryLayer):
    """Convolution over N dimensions with weights ±1, arguments and attributes as those of torch's.

    Row i of the map is patch i of the input, counted image by image and position by position: in every group
    n = in_channels / groups · (size of the kernel) numbers.

    Args:
        in_channels: Channels of the input (batch, channels, …); the batch dimension may be missing, as in torch.
        out_channels: m.
        kernel_size: Size of the patches.
        stride: Step between patches.
        padding: What is added on each side, "valid" for nothing, or "same" for an output as large as the input.
        dilation: Step between the pixels of a patch.
        groups: Parts of the channels that are not connected to one another; `in_channels` for a depthwise convolution.
        bias: Add a real bias, to be trained by an ordinary optimiser.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        gain: "fan_in" for 1/√n, or a number.
        bits: Planes of binary weights, 1 to 8.
        scale: "learned" for a trained scale per output and bit, "magnitude" for the mean size of its latent weights.
    """

    dimensions: ClassVar[int]
    _convolve: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: PaddingMode = "zeros",
        *,
        gain: Gain = "fan_in",
        bits: int = 1,
        scale: Scale = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        groups = AT_LEAST_ONE.checked("groups", groups)
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % groups:
                raise ValueError(f"{name} must be divisible by groups, got {channels} channels and {groups} groups")
        if padding_mode not in get_args(PaddingMode):
            raise ValueError(f"padding_mode must be one of {', '.join(get_args(PaddingMode))}, got {padding_mode!r}")
        kernel = self._sizes(kernel_size, "kernel_size", AT_LEAST_ONE)
        shape = (out_channels, in_channels // groups, *kernel)
        options: dict[str, Any] = {"device": device, "dtype": dtype, "groups": groups, "bits": bits, "scale": scale}
        super().__init__(shape, gain=gain, bias=bias, **options)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel
        self.stride = self._sizes(stride, "stride", AT_LEAST_ONE)
        self.dilation = self._sizes(dilation, "dilation", AT_LEAST_ONE)
        self.padding = padding if isinstance(padding, str) else self._sizes(padding, "padding", COUNT)
        self.padding_mode = padding_mode
        if self.padding == "same" and any(step != 1 for step in self.stride):
            raise ValueError(f"padding='same' is not supported for strided convolutions, got stride {self.stride}")
        if isinstance(self.padding, str) and self.padding not in ("same", "valid"):
            raise ValueError(f"padding must be numbers, 'same' or 'valid', got {self.padding!r}")
        self._sides = padded_sides(self)

    def _sizes(self, value: int | tuple[int, ...], name: str, rule: Number) -> tuple[int, ...]:
        """One integer per dimension."""
        sizes = tuple(value) if isinstance(value, tuple | list) else (value,) * self.dimensions
        if len(sizes) != self.dimensions:
            raise ValueError(f"{name} must be {rule} or a tuple of {self.dimensions}, got {value!r}")
        return tuple(rule.checked(name, size) for size in sizes)

    def _pad(self, x: Tensor) -> Tensor:
        sides = [size for before_after in reversed(self._sides) for size in before_after]
        if not any(sides):
            return x
        return F.pad(x, sides, mode="constant" if self.padding_mode == "zeros" else self.padding_mode)

    def plain_rows(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """One row per patch: (N, C, …) → (N · positions, groups · n)."""
        # Channels last, then a view of all patches (N, …positions, C, …kernel); only the patches at `at` are copied.
        patches = self._channels_last(self._pad(x)).contiguous()
        for dim, (size, step, gap) in enumerate(zip(self.kernel_size, self.stride, self.dilation, strict=True), 1):
            patches = patches.unfold(dim, gap * (size - 1) + 1, step)[..., ::gap]
        return self._rows(patches, at)

    def grad_rows(self, grad: Tensor, at: Tensor | None = None) -> Tensor:
        """One row per patch: (N, m, …) → (N · positions, m)."""
        return self._rows(self._channels_last(grad), at)

    def _channels_last(self, images: Tensor) -> Tensor:
        """(N, C, …) or (C, …) → (N, …, C)."""
        return (images if images.ndim == self.dimensions + 2 else images[None]).movedim(1, -1)

    def _rows(self, images: Tensor, at: Tensor | None) -> Tensor:
        """(N, …positions, …rest) → (N · positions, rest), or the rows with the numbers `at`."""
        positions, rest = images.shape[1 : self.dimensions + 1], images.shape[self.dimensions + 1 :]
        if at is None:
            return images.reshape(-1, rest.numel())
        index: list[Tensor] = []
        for size in reversed(positions):
            index.insert(0, at % size)
            at = at // size
        return images[(at, *index)].flatten(1)

    def _map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        zeros = tuple(before for before, _ in self._sides)
        if self.padding_mode != "zeros" or any(before != after for before, after in self._sides):
            x, zeros = self._pad(x), (0,) * self.dimensions
        return type(self)._convolve(x, weight, bias, self.stride, zeros, self.dilation, self.groups)

    def _per_channel(self, values: Tensor) -> Tensor:
        return values.reshape(-1, *(1,) * self.dimensions)

    def extra_repr(self) -> str:
        """The arguments that make this layer, for `repr`."""
        sizes = f"{self.in_channels}, {self.out_channels}, {self.kernel_size}, stride={self.stride}"
        return self._description(f"{sizes}, padding={self.padding!r}, dilation={self.dilation}", padding_mode="zeros")


def padded_sides(layer: Any) -> tuple[tuple[int, int], ...]:
    """The padding before and after every dimension; "same" puts the larger half after, as torch does."""
    if layer.padding == "same":
        totals = [gap * (size - 1) for gap, size in zip(layer.dilation, layer.kernel_size, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    sizes = (0,) * len(layer.kernel_size) if layer.padding == "valid" else layer.padding
    return tuple((size, size) for size in sizes)


class BinaryConv1d(BinaryConvNd):
    """1-D convolution with weights ±1, of (N, C, L) or (C, L); see `BinaryConvNd` for the arguments.

    Examples:
        >>> import torch
        >>> from qpsbgd.nn import BinaryConv1d
        >>> BinaryConv1d(2, 4, 3, padding=1)(torch.ones(1, 2, 8)).shape
        torch.Size([1, 4, 8])
    """

    dimensions = 1
    _convolve = staticmethod(F.conv1d)


class BinaryConv2d(BinaryConvNd):
    """2-D convolution with weights ±1, of (N, C, H, W) or (C, H, W); see `BinaryConvNd` for the arguments.

    Examples:
        >>> import torch
        >>> from qpsbgd.nn import BinaryConv2d
        >>> BinaryConv2d(3, 8, 3, padding=1)(torch.ones(1, 3, 6, 6)).shape
        torch.Size([1, 8, 6, 6])
    """

    dimensions = 2
    _convolve = staticmethod(F.conv2d)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def on_units(tensor: Tensor) -> Tensor:  # with their bits: torch.channels_last is for four dimensions
            if tensor.ndim != 5:
                return fn(tensor)
            return fn(tensor.flatten(0, 1)).unflatten(0, tensor.shape[:2])  # type: ignore[no-untyped-call]

        return super()._apply(on_units, recurse)  # type: ignore[no-untyped-call]
