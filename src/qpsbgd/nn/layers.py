"""Layers with weights ±1: real latent weights behind a sign with straight-through gradient."""

from __future__ import annotations

import json
import math
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.modules.module import register_module_module_registration_hook

from qpsbgd.nn.tape import Tape

Gain = float | Literal["fan_in"]
"""Constant factor on a layer's output; "fan_in" is 1/√n for n inputs."""
Scale = Literal["learned", "magnitude"] | None
"""Scale per output and bit: trained, the mean size of the latent weights, or none."""
MARK = "weight_is_latent_of_binary_layer"
"""Name of the buffer that tells a binary layer's weight from a real one in every saved state: what a real-valued model
reports as unexpected, and what `qpsbgd.load` makes binary layers from."""


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
    The optimisers bound them (`clip`): QP-SBGD at twice their initial range by default, others at ±1. The bias is
    real-valued and belongs to an ordinary optimiser.

    With several bits the weights are Σ_b c_b · sign(Ω_b), and the planes Ω_b are the second dimension of `weight`.
    X then holds the inputs once per plane, times c_b, so that the layer is one of bits · n binary weights per column.
    With several groups, every group is a layer of its own, with its share of the columns of X and of the output units:
    the columns of X come in the order (group, bit, input).

    With `scale="learned"` the factors c_b are parameters of their own for every output unit, and a layer may also have
    a factor per input: R_j = gain · Σ_b scale_jb · sign(Ω_jb)ᵀ (input_scale ∘ x). With `scale="magnitude"` they follow
    the latent weights, scale_jb = c_b · unit · mean|Ω_jb| (XNOR-Net, BitNet), and the gradient passes straight through
    both the sign and the scale: such a layer can be trained by any torch optimiser.

    Attributes:
        gain: Constant factor on the output. It folds into the threshold of the activation that follows.
        scaling: The kind of scale.
        unit: Weight that a latent weight of one stands for, in a layer with scale="magnitude", whose gain is 1.
        groups: Parts of the inputs and outputs that are not connected to each other.
        bits: Planes of binary weights.
        coefficients: c_b ~ 2^(bits−1−b) with Σ c_b² = 1, so that weights have variance one at any number of bits.
        scale: Learned scales (m, bits), which stand for the coefficients; real-valued, like the bias.
        input_scale: A constant factor per input or input channel, or None.
        latent_forward: Train with the real weights in the forward pass, as ProxQuant does; evaluation always
            uses the binary ones.
        tape: Where the layer records its inputs and output gradients for an optimiser, in training mode only.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    scale: nn.Parameter | None
    input_scale: Tensor | None
    unit: Tensor | None

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        *,
        gain: Gain,
        bias: bool,
        device: Any,
        dtype: Any,
        groups: int = 1,
        bits: int = 1,
        scale: Scale = None,
    ) -> None:
        super().__init__()
        if min(weight_shape) < 1:
            raise ValueError(f"every dimension of a layer must be at least 1, got weights of shape {weight_shape}")
        if not isinstance(bias, bool):
            raise TypeError(f"bias must be True or False, got {bias!r}; the gain is a keyword: gain={bias!r}")
        if not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= 8:
            raise ValueError(f"bits must be a whole number from 1 to 8, got {bits!r}")
        if scale not in (None, "learned", "magnitude"):
            raise ValueError(f'scale must be None, "learned" or "magnitude", got {scale!r}')
        out_units, *rest = weight_shape
        self.gain = _gain_value(gain, math.prod(rest))
        self.scaling = scale
        self.groups, self.bits = groups, bits
        powers = [2.0**power for power in reversed(range(bits))]
        self.coefficients = tuple(power / math.hypot(*powers) for power in powers)
        self.latent_forward = False
        self.tape: Tape | None = None
        shape = weight_shape if bits == 1 else (out_units, bits, *rest)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_units, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        if scale == "learned":
            self.scale = nn.Parameter(torch.empty(out_units, bits, device=device, dtype=dtype))
        else:
            self.register_parameter("scale", None)
        # The first buffer: torch.export 2.13 miscounts those after one that is None.
        self.register_buffer(MARK, torch.empty(0, dtype=torch.uint8, device=device))
        self.register_buffer("unit", None)
        if scale == "magnitude":
            # Fresh latent weights have the mean size initial_bound / 2.
            unit = self.gain / (self.initial_bound / 2) if gain == "fan_in" else self.gain
            self.gain, self.unit = 1.0, torch.tensor(unit, device=device, dtype=dtype)
        self.register_buffer("input_scale", None)
        self._set_mark()
        self.reset_parameters()
        _LAYERS.add(self)

    @property
    def initial_bound(self) -> float:
        """√(1.5/(n + m)), the bound of fresh latent weights; n and m of one group and one bit."""
        fan_in = self.weight[0].numel() // self.bits
        return math.sqrt(1.5 / (fan_in + len(self.weight) // self.groups))

    def reset_parameters(self) -> None:
        """Draw latent weights uniformly within ±`initial_bound`; the bias becomes zero, scales the coefficients."""
        nn.init.uniform_(self.weight, -self.initial_bound, self.initial_bound)
        if self.scale is not None:
            with torch.no_grad():
                self.scale.copy_(self.scale.new_tensor(self.coefficients))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def binary_weight(self) -> Tensor:
        """The planes ±1 behind the weights, in the shape of `weight`; sign(0) = +1."""
        return sign(self.weight.detach())

    @property
    def quantized_weight(self) -> Tensor:
        """The weights that the layer computes with, Σ_b c_b · sign(Ω_b), in the shape of torch's own layer."""
        return self._effective_weight(latent=False).detach()

    @property
    def plane_scales(self) -> Tensor | None:
        """The scale of every output and bit (m, bits), learned or by magnitude; None where outputs share `gain`."""
        if self.unit is None:
            return self.scale
        sizes = self.weight.detach().abs().reshape(len(self.weight), self.bits, -1).mean(-1)
        if self.bits > 1:
            sizes = torch.stack([c * one for c, one in zip(self.coefficients, sizes.unbind(1), strict=True)], 1)
        return self.unit * sizes

    def forward(self, x: Tensor) -> Tensor:
        """R for inputs x, recorded on the tape if there is one."""
        if isinstance(x, Proxy):  # torch.fx traces: the layer becomes one node of the graph
            return traced(self, x)
        if x.is_nested:
            raise TypeError(
                f"{type(self).__name__} does not accept nested tensors; build nn.TransformerEncoder "
                "with enable_nested_tensor=False"
            )
        if self.input_scale is not None:
            x = x * self._per_channel(self.input_scale)
        weight = self._effective_weight(latent=self.latent_forward and self.training)
        if self.gain == 1:
            output = self._map(x, weight, self.bias)
        else:  # not folded into the weights: sums of ±1 are exact
            output = self.gain * self._map(x, weight)
            if self.bias is not None:
                output = output + self._per_channel(self.bias)
        if self.tape is not None and self.training and self.weight.requires_grad:
            count = self.num_rows(output.shape)
            self.tape.watch(output, rows=self._unchanged_rows(x), grad_rows=self.grad_rows, count=count)
        return output

    def __prepare_scriptable__(self) -> nn.Module:
        # torch.jit.script calls this method of every module, and would report an annotation that it cannot read.
        raise TypeError(
            f"torch.jit.script cannot compile {type(self).__name__}, whose weights are signs of latent ones; use "
            "torch.jit.trace(model.eval(), inputs), torch.export.export, or qpsbgd.deploy"
        )

    def _unchanged_rows(self, x: Tensor) -> Callable[..., Tensor]:
        """A function that returns `input_rows(x, at)`, and raises if x has been changed by then."""
        version = None if x.is_inference() else x._version

        def rows(at: Tensor | None = None) -> Tensor:
            # Autograd notices a changed input itself, but not under autocast, where it keeps a copy.
            if version is not None and x._version != version:
                raise RuntimeError(
                    f"the input of {self} must not change before backward, but was modified in place; "
                    "write x = x + y instead of x += y"
                )
            return self.input_rows(x, at)

        return rows

    def num_rows(self, output_shape: Sequence[int]) -> int:
        """B, the number of rows that an output of this shape stands for."""
        return math.prod(output_shape) // len(self.weight)

    def input_rows(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """The rows X (B, groups · bits · n) that the inputs stand for; with `at`, only the rows of these numbers."""
        return self._per_plane(self.plain_rows(x, at))

    @abstractmethod
    def plain_rows(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """The same for one plane, without its factor: (B, groups · n)."""

    @abstractmethod
    def grad_rows(self, grad: Tensor, at: Tensor | None = None) -> Tensor:
        """The output's gradient as rows (B, m), in the order of `input_rows`; with `at`, only these."""

    @abstractmethod
    def _map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def _per_channel(self, values: Tensor) -> Tensor:
        """One number per input or output channel, in a shape that goes with inputs or outputs."""
        return values

    def _effective_weight(self, *, latent: bool) -> Tensor:
        """Σ_b c_b · sign(Ω_b) without the dimension of the bits, or with Ω_b itself where `latent`."""
        planes = self.weight if latent else sign(self.weight)
        scales = self.plane_scales
        if scales is not None:
            scales = scales.reshape(*scales.shape, *(1,) * len(self._kernel_shape))
            whole = planes.reshape(len(planes), self.bits, *self._kernel_shape)
            if self.unit is None:
                return (scales * whole).sum(1)
            # The value of the scaled planes, with the gradient of unit · Ω.
            through = self.unit * self.weight.reshape(whole.shape)
            if latent:
                return through.sum(1)
            return (through + (scales * whole - through).detach()).sum(1)
        if self.bits == 1:
            return planes
        scaled = [c * plane for c, plane in zip(self.coefficients, planes.unbind(1), strict=True)]
        return torch.stack(scaled).sum(0)

    def _per_plane(self, rows: Tensor) -> Tensor:
        """Rows (B, groups · n) with the inputs of every group once per plane, times c_b."""
        if self.bits == 1:
            return rows
        grouped = rows.reshape(len(rows), self.groups, rows.shape[1] // self.groups)
        # All outputs share their rows: planes with scales of their own count by the root mean square of these.
        scales = self.plane_scales
        scale = None if scales is None else scales.detach().square().mean(0).sqrt().to(rows)
        return torch.stack([c * grouped for c in (self.coefficients if scale is None else scale)], dim=2).flatten(1)

    @property
    def _kernel_shape(self) -> tuple[int, ...]:
        """The shape of one output unit's weights, without the bits."""
        shape = tuple(self.weight.shape[1:])
        return shape if self.bits == 1 else shape[1:]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (reason := self._misfit(state_dict, prefix)) is not None:
            args[-1].append(f"{prefix.rstrip('.') or type(self).__name__}: {reason}")  # the list of errors
            return
        name = f"{prefix}input_scale"
        if self.input_scale is None and name in state_dict:  # a layer that `binarize` made, into a fresh one
            self.input_scale = torch.empty_like(state_dict[name], device=self.weight.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def options(self) -> dict[str, Any]:
        """What must be the same in a layer that takes this one's state: bits, the kind of scale, and the gain."""
        return {"bits": self.bits, "scale": self.scaling, "gain": self.gain}

    def _set_mark(self) -> None:
        setattr(self, MARK, getattr(self, MARK).new_tensor(list(json.dumps(self.options).encode())))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self._set_mark()  # `to_empty` has left it without content
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _misfit(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        """Why a state with a weight for this layer is not a state of such a layer; None where it is."""
        if prefix + "weight" not in state_dict:
            return None
        if prefix + MARK not in state_dict:
            return (
                "the state must hold the latent weights of a binary layer, but holds those of a real-valued one; load "
                "it into the real-valued model, and convert or binarize that"
            )
        there, here = saved_options(state_dict[prefix + MARK]), self.options
        if there == here:
            return None
        shown = [", ".join(f"{name}={value!r}" for name, value in options.items()) for options in (there, here)]
        return (
            f"the state is of a binary layer with {shown[0]}, but the layer has {shown[1]}; "
            "build it with the same options, or take qpsbgd.load, which does"
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copied or pickled layer is not recorded; a copied optimiser attaches its own tapes (see optim/).
        return {**self.__dict__, "tape": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _LAYERS.add(self)


def saved_options(mark: Tensor) -> dict[str, Any]:
    """What a layer's mark says of it: its bits, the kind of its scale, and its gain."""
    options: dict[str, Any] = json.loads(bytes(mark.tolist()))
    return options


def traced(module: nn.Module, x: Any) -> Any:
    """The module as one node of the graph that torch.fx traces."""
    names = {inner: name for name, inner in x.tracer.root.named_modules()}
    return x.tracer.create_proxy("call_module", names[module], (x,), {})


def _guard_fused_paths(module: nn.Module, name: str, child: nn.Module | None) -> None:
    """Called by torch whenever a module becomes part of another one.

    Raises:
        TypeError: `child` is a binary layer in an attention module, which would compute with its latent weights.
    """
    if not isinstance(child, BinaryLayer):
        return
    if isinstance(module, nn.MultiheadAttention):
        raise TypeError(
            f"nn.MultiheadAttention reads {name}.weight directly, which in a binary layer is the real-valued latent "
            "weight; use F.scaled_dot_product_attention between binary layers instead"
        )
    if isinstance(module, nn.TransformerEncoderLayer):
        # Turns off the fused evaluation path, which also reads .weight; the other path calls the layers.
        module.activation_relu_or_gelu = 0


register_module_module_registration_hook(_guard_fused_paths)

_LAYERS: weakref.WeakSet[BinaryLayer] = weakref.WeakSet()
"""The binary layers that exist: what `layers_of` searches. A weight may be replaced, so the layers are kept."""


def layers_of(parameters: Iterable[Tensor]) -> dict[Tensor, BinaryLayer]:
    """The binary layers whose weights are among the parameters, by weight and in the order of the parameters.

    Raises:
        ValueError: A weight belongs to several layers.
    """
    found: dict[Tensor, list[BinaryLayer]] = {parameter: [] for parameter in parameters}
    for layer in list(_LAYERS):
        weight = layer._parameters.get("weight")
        if weight is not None and weight in found:
            found[weight].append(layer)
    check_unshared([layer for layers in found.values() for layer in layers])
    return {weight: layers[0] for weight, layers in found.items() if layers}


def check_unshared(layers: Iterable[BinaryLayer]) -> None:
    """Raise ValueError if two layers share one weight."""
    shared = [p for p, count in Counter(layer.weight for layer in layers).items() if count > 1]
    if shared:
        raise ValueError(
            f"{len(shared)} weight(s) belong to more than one layer; call one layer several times instead of sharing "
            "its weight"
        )


class BinaryLinear(BinaryLayer):
    """Linear layer with weights ±1: R = gain · x Wᵀ + bias, for x of shape (…, in_features).

    Args:
        in_features: n.
        out_features: m.
        gain: "fan_in" for 1/√n, which keeps deep nets out of saturation, or a number; the paper uses 1.
        bias: Add a real bias, to be trained by an ordinary optimiser.
        bits: Planes of binary weights, 1 to 8.
        scale: "learned" for a trained scale per output and bit, "magnitude" for the mean size of its latent weights.
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

    def count_rows(self, x: Tensor) -> int:
        """B for inputs x."""
        return x.numel() // self.in_features

    def grad_rows(self, grad: Tensor, at: Tensor | None = None) -> Tensor:
        """All leading dimensions flattened: (…, m) → (B, m)."""
        rows = grad.reshape(-1, self.out_features)
        return rows if at is None else rows[at]

    def _map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    def extra_repr(self) -> str:
        """The arguments that make this layer, for `repr`."""
        bits = "" if self.bits == 1 else f", bits={self.bits}"
        scale = "" if self.scaling is None else f", scale={self.scaling!r}"
        bias = self.bias is not None
        return f"{self.in_features}, {self.out_features}, gain={self.gain:.4g}, bias={bias}{bits}{scale}"


def _gain_value(gain: Gain, fan_in: int) -> float:
    if gain == "fan_in":
        return 1 / math.sqrt(fan_in)
    number = isinstance(gain, int | float | np.number) and not isinstance(gain, bool)
    if not number or not (math.isfinite(gain) and gain > 0):
        raise ValueError(f'gain must be "fan_in" or a positive number, got {gain!r}')
    return float(gain)
