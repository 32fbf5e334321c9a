"""The base of all layers with weights ±1: latent weights behind a sign, scales, the tape."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Proxy

from qpsbgd.nn.known_layers import KNOWN, watch_output
from qpsbgd.nn.planes import SharedPlanes, magnitudes, planes_of, scaled_signs
from qpsbgd.nn.straight_through import sign
from qpsbgd.nn.tape import MomentTape, Tape
from qpsbgd_qubo.options import POSITIVE, Number

Gain = float | Literal["fan_in"]
"""Constant factor on a layer's output; "fan_in" is 1/√n for n inputs."""
Scale = Literal["learned", "magnitude"] | None
"""Scale per output and bit: trained, the mean size of the latent weights, or none."""
BITS = Number(whole=True, least=1, most=8)

MARK = "weight_is_latent_of_binary_layer"
"""Name of the buffer that tells a binary layer's weight from a real one in every saved state: what a real-valued model
reports as unexpected, and what `qpsbgd.load` makes binary layers from."""


class BinaryLayer(nn.Module, ABC):
    """A layer R = gain · X W + bias with W = sign(`weight`), seen as rows X (B, n) and columns of W (n, m).

    `weight` holds the real latent weights; its first dimension is the output unit, as in torch's own layers.
    The optimisers bound them (`clip`): QP-SBGD at twice their initial range by default, others at ±1. The bias is
    real-valued and belongs to an ordinary optimiser.

    With several bits the weights are Σ_b c_b · sign(Ω_b), and the planes Ω_b are the second dimension of `weight`.
    X then holds the inputs once per plane, times c_b, so that the layer has bits · n binary weights per column.
    With several groups, every group is a separate layer, with its share of the columns of X and of the output units:
    the columns of X are in the order (group, bit, input).

    With `scale="learned"` the factors c_b are parameters, one per output unit and bit. With `scale="magnitude"`
    they are computed from the latent weights, scale_jb = c_b · unit · mean|Ω_jb| (XNOR-Net, BitNet), and the gradient
    passes straight through both the sign and the scale: such a layer can be trained by any torch optimiser.

    Attributes:
        gain: Constant factor on the output. It folds into the threshold of the activation that follows.
        scaling: The kind of scale.
        unit: The weight that corresponds to a latent weight of one, in a layer with scale="magnitude" and gain 1.
        groups: Parts of the inputs and outputs that are not connected to each other.
        bits: Planes of binary weights.
        coefficients: c_b ~ 2^(bits−1−b) with Σ c_b² = 1, so that weights have variance one at any number of bits.
        scale: Learned scales (m, bits), which stand for the coefficients; real-valued, like the bias.
        latent_forward: Train with the real weights in the forward pass, as ProxQuant does; evaluation always
            uses the binary ones.
        tape: Where the layer records moments of its inputs, or rows and output gradients, for an optimiser, in training
            mode only.
        shared: Where the layers of a model compute their signs together; None if alone.
        label: Its path in the model, such as "blocks.3.conv1", for messages; empty if unknown.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    scale: nn.Parameter | None
    unit: Tensor | None
    label: str = ""

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
        bits = BITS.checked("bits", bits)
        if scale not in (None, "learned", "magnitude"):
            raise ValueError(f'scale must be None, "learned" or "magnitude", got {scale!r}')
        out_units, *rest = weight_shape
        fan_in = gain == "fan_in"
        self.gain = 1 / math.sqrt(math.prod(rest)) if fan_in else POSITIVE.checked('gain other than "fan_in"', gain)
        self.scaling = scale
        self.groups, self.bits = groups, bits
        powers = [2.0**power for power in reversed(range(bits))]
        self.coefficients = tuple(power / math.hypot(*powers) for power in powers)
        self.latent_forward = False
        self.tape: MomentTape | Tape | None = None
        self.shared: SharedPlanes | None = None
        shape = weight_shape if bits == 1 else (out_units, bits, *rest)
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(shape, **kind))
        scales = nn.Parameter(torch.empty(out_units, bits, **kind)) if scale == "learned" else None
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_units, **kind)) if bias else None)
        self.register_parameter("scale", scales)
        # The first buffer: torch.export 2.13 miscounts those after one that is None.
        self.register_buffer(MARK, torch.empty(0, dtype=torch.uint8, device=device))
        self.register_buffer("unit", None)
        if scale == "magnitude":
            # Fresh latent weights have the mean size initial_bound / 2.
            self._initial_unit = self.gain / (self.initial_bound / 2) if fan_in else self.gain
            self.gain, self.unit = 1.0, torch.empty((), **kind)
        self._set_mark()
        self.reset_parameters()
        KNOWN.add(self)

    @cached_property
    def initial_bound(self) -> float:
        """√(1.5/(n + m)), the bound of fresh latent weights; n and m of one group and one bit."""
        fan_in = math.prod(self.weight.shape[1:]) // self.bits  # by shape, because FSDP may have sharded it
        return math.sqrt(1.5 / (fan_in + len(self.weight) // self.groups))

    def reset_parameters(self) -> None:
        """Draw latent weights uniformly within ±`initial_bound`; the bias becomes zero, scales the coefficients."""
        nn.init.uniform_(self.weight, -self.initial_bound, self.initial_bound)
        if self.unit is not None:
            self.unit.fill_(self._initial_unit)
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
        weights = self.weight.detach().reshape(self.weight.shape[0], self.bits, -1)
        return magnitudes(weights, self.unit, self.coefficients)

    def forward(self, x: Tensor) -> Tensor:
        """R for inputs x, recorded on the tape if there is one."""
        if isinstance(x, Proxy):  # torch.fx traces: the layer becomes one node of the graph
            return call_as_node(self, x)
        if x.is_nested:
            raise TypeError(
                f"{self.label or type(self).__name__} does not accept nested tensors; build nn.TransformerEncoder "
                "with enable_nested_tensor=False"
            )
        latent = self.latent_forward and self.training
        if self.gain == 1:
            output = self._map(x, self._effective_weight(latent=latent), self.bias)
        else:  # not folded into the weights: sums of ±1 are exact
            if self.scale is not None and self.bits == 1:
                factor: Tensor | float = self._per_channel(self.gain * self.scale[:, 0])
                weight = self.weight if latent else planes_of(self)
            else:
                factor, weight = self.gain, self._effective_weight(latent=latent)
            output = factor * self._map(x, weight)
            if self.bias is not None:
                output = output + self._per_channel(self.bias)
        if self.tape is not None and self.tape.wanted and self.training and self.weight.requires_grad:
            if torch.compiler.is_compiling() and not self.tape.sharded:
                return watch_output(output, x, self.weight.detach())  # a hook would break the graph
            if torch.compiler.is_compiling() or torch._C._get_tracing_state() is None:
                self.tape.watch(self, x, output)
        return output

    def num_rows(self, output_shape: Sequence[int]) -> int:
        """B, the number of rows that an output of this shape stands for."""
        return math.prod(output_shape) // len(self.weight)

    def count_rows(self, x: Tensor) -> int:
        """B for inputs x, by the shape of the outputs that they would give."""
        weight = torch.empty(len(self.weight), *self._kernel_shape, device="meta", dtype=x.dtype)
        return self.num_rows(self._map(torch.empty_like(x, device="meta"), weight).shape)

    def input_rows(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """The rows X (B, groups · bits · n) that the inputs stand for; with `at`, only the rows of these numbers.

        They are those of one plane, with the inputs of every group once per plane, times c_b.
        """
        rows = self.plain_rows(x, at)
        if self.bits == 1:
            return rows
        grouped = rows.reshape(len(rows), self.groups, rows.shape[1] // self.groups)
        # All outputs share their rows: planes with scales of their own count by the root mean square of these.
        scales = self.plane_scales
        scale = None if scales is None else scales.detach().square().mean(0).sqrt().to(rows)
        return torch.stack([c * grouped for c in (self.coefficients if scale is None else scale)], dim=2).flatten(1)

    @abstractmethod
    def plain_rows(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """The same for one plane, without its factor: (B, groups · n)."""

    @abstractmethod
    def grad_rows(self, grad: Tensor, at: Tensor | None = None) -> Tensor:
        """The output's gradient as rows (B, m), in the order of `input_rows`; with `at`, only these."""

    @abstractmethod
    def _map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def _per_channel(self, values: Tensor) -> Tensor:
        """One number per output channel, in a shape that goes with outputs."""
        return values

    def _effective_weight(self, *, latent: bool) -> Tensor:
        """Σ_b c_b · sign(Ω_b) without the dimension of the bits, or with Ω_b itself where `latent`."""
        planes = self.weight if latent else planes_of(self)
        if latent and self.unit is not None:
            planes = self.unit * planes
        elif self.scale is not None:
            planes = self._outer(self.scale) * planes
        if self.bits == 1:
            return planes
        if self.scale is not None or (self.unit is not None and not latent):
            return planes.sum(1)
        return torch.stack([c * plane for c, plane in zip(self.coefficients, planes.unbind(1), strict=True)]).sum(0)

    def plane_values(self) -> Tensor:
        """±1, with `scale="magnitude"` times the scales, in the shape of `weight`."""
        if self.unit is None:
            return sign(self.weight.detach())
        assert self.plane_scales is not None
        return scaled_signs(self.weight.detach(), self._outer(self.plane_scales))

    def _outer(self, scales: Tensor) -> Tensor:
        """Scales (m, bits) in a shape that goes with `weight`; not the other way round, which small networks feel."""
        outer = scales.shape if self.bits > 1 else scales.shape[:1]
        return scales.reshape(*outer, *(1,) * len(self._kernel_shape))

    @property
    def _kernel_shape(self) -> tuple[int, ...]:
        """The shape of one output unit's weights, without the bits."""
        shape = tuple(self.weight.shape[1:])
        return shape if self.bits == 1 else shape[1:]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight: Any = state_dict.get(prefix + "weight")
        if weight is not None and weight.dtype == torch.uint8:
            state_dict[prefix + "weight"] = self.latent_of(weight)
        mark: Any = state_dict.get(prefix + MARK)
        reason = None
        if prefix + "weight" in state_dict and mark is None:
            reason = (
                "the state must hold the latent weights of a binary layer, but holds those of a real-valued one; load "
                "it into the real-valued model, and convert or binarize that"
            )
        elif prefix + "weight" in state_dict and saved_options(mark) != self.options:
            pair = (saved_options(mark), self.options)
            saved, present = (", ".join(f"{name}={value!r}" for name, value in options.items()) for options in pair)
            reason = (
                f"the state is of a binary layer with {saved}, but the layer has {present}; "
                "build it with the same options, or take qpsbgd.load, which does"
            )
        if reason is None:
            super()._load_from_state_dict(state_dict, prefix, *args)
        else:
            args[-1].append(f"{prefix.rstrip('.') or type(self).__name__}: {reason}")  # the list of errors

    @property
    def packed_bits(self) -> Tensor:
        """The signs of the weight, eight in a byte: what a saved state may hold in place of the latent weights."""
        return torch.from_numpy(np.packbits((self.weight.detach() >= 0).cpu().numpy()))

    def latent_of(self, bits: Tensor) -> Tensor:
        """Latent weights with the signs of `packed_bits`, all of the size that fresh ones have on average."""
        shape = self.weight.shape
        signs = torch.from_numpy(np.unpackbits(bits.cpu().numpy(), count=shape.numel())).reshape(shape).bool()
        size = self.initial_bound / math.sqrt(3)
        return torch.where(signs, size, -size).to(bits.device, self.weight.dtype)

    def __str__(self) -> str:
        """How messages name the layer: by its path in the model where that is known."""
        return f"{self.label} ({type(self).__name__})" if self.label else repr(self)

    def _description(self, sizes: str, **usual: Any) -> str:
        """Sizes, gain and bias, and the options that are not as usual."""
        options = {"groups": 1, **usual, "bits": 1, "scaling": None}
        unusual = {name: getattr(self, name) for name in options if getattr(self, name) != options[name]}
        texts = [f", {name.replace('scaling', 'scale')}={value!r}" for name, value in unusual.items()]
        return f"{sizes}, gain={self.gain:.4g}, bias={self.bias is not None}{''.join(texts)}"

    @property
    def options(self) -> dict[str, Any]:
        """The options that a layer must share to load this one's state: bits, the kind of scale, and the gain."""
        return {"bits": self.bits, "scale": self.scaling, "gain": self.gain}

    def _set_mark(self) -> None:
        setattr(self, MARK, getattr(self, MARK).new_tensor(list(json.dumps(self.options).encode())))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self._set_mark()  # `to_empty` has left it without content
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def __getstate__(self) -> dict[str, Any]:
        # A copied or pickled layer is not recorded; a copied optimiser attaches its own tapes (see optim/).
        return {**self.__dict__, "tape": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        KNOWN.add(self)


def saved_options(mark: Tensor) -> dict[str, Any]:
    """The options in a layer's mark: its bits, the kind of its scale, and its gain."""
    return json.loads(bytes(mark.tolist()))


def label_layers(model: nn.Module) -> None:
    """Tell the binary layers of a model their paths in it, by which messages then name them, and that they are one."""
    shared = SharedPlanes()
    for name, module in model.named_modules():
        if isinstance(module, BinaryLayer):
            module.label, module.shared = name or module.label, shared


def call_as_node(module: nn.Module, x: Any) -> Any:
    """The module as one node of the graph that torch.fx traces."""
    names = {inner: name for name, inner in x.tracer.root.named_modules()}
    return x.tracer.create_proxy("call_module", names[module], (x,), {})


def guard_fused_paths(modules: Iterable[nn.Module]) -> None:
    """Make sure that these modules call the binary layers in them, instead of computing with their latent weights.

    `convert`, `binarize` and the optimisers call it. Call it yourself if you put a binary layer into torch's own
    transformer modules and only evaluate them.
    """
    for module in modules:
        binary = [name for name, child in module.named_children() if isinstance(child, BinaryLayer)]
        if binary and isinstance(module, nn.MultiheadAttention):
            raise TypeError(
                f"nn.MultiheadAttention reads {binary[0]}.weight directly, which in a binary layer is the real-valued "
                "latent weight; use F.scaled_dot_product_attention between binary layers instead"
            )
        if binary and isinstance(module, nn.TransformerEncoderLayer):
            # Turns off the fused evaluation path, which also reads .weight; the other path calls the layers.
            module.activation_relu_or_gelu = 0
