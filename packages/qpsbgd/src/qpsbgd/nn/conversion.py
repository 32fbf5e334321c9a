"""Networks of torch's own layers as binary networks."""

import copy
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList, type_before_parametrizations

from qpsbgd.nn.attention import ProjectedAttention
from qpsbgd.nn.convolutions import BinaryConv1d, BinaryConv2d
from qpsbgd.nn.experts import ExpertLayers
from qpsbgd.nn.layers import BinaryLayer, Gain, Scale, guard_fused_paths, label_layers
from qpsbgd.nn.linear import BinaryLinear
from qpsbgd.nn.recurrent import UnrolledRecurrent
from qpsbgd.nn.straight_through import sign

_CONVERTED = (nn.Linear, nn.Conv1d, nn.Conv2d)
_LINEAR = ("transformers.pytorch_utils.Conv1D", "torch_geometric.nn.dense.linear.Linear")
"""Linear layers of other packages, which need not be installed; the first has a transposed weight."""
_WEIGHTED = (nn.Linear, _ConvNd, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
_REAL = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, BinaryLayer, ParametrizationList, NonDynamicallyQuantizableLinear)
"""Modules with more than vectors that are not named: tables, norms, and parts of modules that are named themselves."""
ADAPTER = "it is an adapter of another layer; merge it first if it is to become binary"
_BLOCK = re.compile(r"\d+\.")  # in names, the number of a block


def convert(
    model: nn.Module,
    *,
    first: bool = True,
    last: bool = True,
    bits: int = 1,
    scale: Scale | Literal["auto"] = "auto",
    gain: Gain | None = None,
    skip: Collection[str] = (),
) -> nn.Module:
    """A copy of a model with binary layers in place of its linear layers and convolutions.

    Converted are nn.Linear, nn.Conv1d and nn.Conv2d, transformers' Conv1D and experts, and torch_geometric's Linear.
    nn.MultiheadAttention, which reads its weights instead of calling layers, becomes a `ProjectedAttention` with four
    binary layers.

    Biases are kept. The weights become latent weights with the same signs and the root mean square of new ones;
    with several bits they are rounded to the nearest level. If all weights are zero, new ones are drawn. With
    scales, the binary weights of an output unit have the mean size of its real ones, so that residual branches and
    activations keep their sizes. The copy has to be trained: it does not compute what the model computes.

    Every other weight matrix stays real-valued, and one warning lists them with the reason: other kinds of
    layers, matrices held directly by a module, layers that share their weight, have hooks, or compute their weight, as
    under weight norm. Embeddings stay real too and are listed only if a layer shares their weight; so do parameters
    (1, …, …) that are added to every sample, such as positions.

    Args:
        model: The model, or a single layer.
        first: Whether to convert the first of these layers, in the order of `model.modules()`. There is none after an
            embedding, which stays real-valued.
        last: Whether to convert the last of them; in a transformer without a head there is none.
        bits: Planes of binary weights, 1 to 8.
        scale: "magnitude" for scales computed from the latent weights, "learned" for trained ones, None for one
            constant `gain` per layer, as in the paper. "auto" is "magnitude" for models with norms, which make up for
            the sizes of weights, and "learned" for others.
        gain: Only if `scale` is None: "fan_in" for 1/√n (the default), or a number.
        skip: Names of modules, as in `model.named_modules()`, that stay real-valued with all layers inside.

    Raises:
        ValueError: The model has lazy layers without shapes, `skip` names a module that it does not have, a weight is
            not finite, or nothing would be converted.

    Examples:
        >>> from torch import nn
        >>> from qpsbgd.nn import convert
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [type(module).__name__ for module in convert(model, last=False)]
        ['BinaryLinear', 'ReLU', 'Linear']
    """
    if scale == "auto":
        scale = "magnitude" if any(map(is_norm, model.modules())) else "learned"
    if gain is not None and scale is not None:
        raise ValueError(f"gain belongs to layers without scales: give scale=None with gain={gain!r}, or leave it out")
    options: dict[str, Any] = {"bits": bits, "scale": scale, "gain": "fan_in" if gain is None else gain}

    def is_skipped(name: str) -> bool:
        return any(name == out or name.startswith(f"{out}.") for out in skip)

    if unknown := sorted(set(skip) - {name for name, _ in model.named_modules()}):
        raise ValueError(f"skip names modules that the model does not have: {', '.join(unknown)}")
    model = expose_layers(copy_model(model), is_skipped, recurrent=False)
    named = dict(model.named_modules())
    if lazy := [name for name, module in named.items() if any(map(is_lazy, module._parameters.values()))]:
        raise ValueError(f"lazy layers have no shape yet: {', '.join(lazy)}; run a batch through the model first")
    beginning, end = outer_layers({module: name for name, module in named.items()})
    left = {*(() if first else beginning), *(() if last else end)}
    wanted = {name: module for name, module in named.items() if module not in left and not is_skipped(name)}
    reasons = reasons_to_stay(model, wanted)
    layers = {name: module for name, module in wanted.items() if is_converted(module) and name not in reasons}
    stay = format_reasons(reasons)
    if not layers:
        raise ValueError(
            "there is nothing to convert: no nn.Linear, nn.Conv1d or nn.Conv2d is left after first, last and skip"
            + (f"; these stay real-valued: {stay}" if stay else "")
        )
    converted = replace_modules(model, {layer: _binary(layer, name, options) for name, layer in layers.items()})
    if stay:
        warnings.warn(f"these layers stay real-valued: {stay}; name them in skip if that is intended", stacklevel=2)
    label_layers(converted)
    attach_hf_config(converted, latents=True)
    return converted


def copy_model(model: nn.Module) -> nn.Module:
    """A copy of a model, also with weights that hooks compute from parameters, as under pruning."""
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in held if value.grad_fn is not None})


def outer_layers(names: Mapping[nn.Module, str]) -> tuple[list[nn.Module], list[nn.Module]]:
    """The first layer and the last, each in a list; no first after embeddings, and no last among equal blocks."""
    order = [module for module in names if is_converted(module)]
    before = itertools.takewhile(lambda module: module not in order[:1], names)
    if not any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in before):
        return order[:1], order[-1:]
    places = [_BLOCK.sub("", names[module]) for module in order]
    return [], [module for module in order[-1:] if places.count(places[-1]) == 1]


def reasons_to_stay(model: nn.Module, named: Mapping[str, nn.Module]) -> dict[str, str]:
    """Why modules with weight matrices cannot become binary, by name."""
    uses, adapters = parameter_uses(model), _adapters(model)
    reasons = {
        name: ADAPTER if module in adapters else _reason_to_stay(module, uses)
        for name, module in named.items()
        if module not in adapters or is_converted(module)
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _adapters(model: nn.Module) -> set[nn.Module]:
    """Modules that peft has added to a layer, which it calls `base_layer`."""
    adapters: set[nn.Module] = set()
    for module in model.modules():
        if base := dict(module.named_children()).get("base_layer"):
            adapters |= {*module.modules()} - {module, *base.modules()}
    return adapters


def _reason_to_stay(module: nn.Module, uses: Counter[nn.Parameter]) -> str:
    if is_converted(module):
        return _refusal(module, uses)
    kind = type(module).__name__
    if isinstance(module, _REAL):
        return ""
    if isinstance(module, _WEIGHTED):
        return f"{kind} has no binary form"
    shapes = [(name, p.shape) for name, p in module._parameters.items() if p is not None and not is_lazy(p)]
    # (1, …, …) is rather added to every sample than a weight.
    held = [name for name, shape in shapes if sum(n > 1 for n in shape) > 1 and shape[0] > 1]
    if held and isinstance(module, torch.jit.ScriptModule):
        return "its code is fixed by TorchScript; pass the model as it was before"
    return f"{kind} holds {', '.join(held)} itself" if held else ""


def format_reasons(reasons: Mapping[str, str]) -> str:
    """Names by reason, as text."""
    names: dict[str, list[str]] = {}
    for name, why in reasons.items():
        names.setdefault(why, []).append(name or 'the model, "" by name')
    return "; ".join(f"{', '.join(group)} ({why})" for why, group in names.items())


def attach_hf_config(model: nn.Module, *, latents: bool) -> None:
    """Have the Hugging Face models inside a model save which layers are binary, and their latent weights or bits."""
    for module in reversed(list(model.modules())):  # a model and its base share their configuration: the model's stays
        names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__}
        if "transformers.modeling_utils.PreTrainedModel" in names:
            from qpsbgd.nn.huggingface import attach_model_config

            attach_model_config(module, latents=latents)


def expose_weights(module: nn.Module) -> nn.Module | None:
    """Attention, a recurrent network or experts with weights as layers; None for others, or without such a form."""
    if type(module) is nn.MultiheadAttention and ProjectedAttention.fits(module):
        return ProjectedAttention.of(module)
    if ExpertLayers.fits(module):
        return ExpertLayers(module)
    return UnrolledRecurrent(module) if isinstance(module, nn.RNNBase) and UnrolledRecurrent.fits(module) else None


def expose_layers(model: nn.Module, is_skipped: Callable[[str], bool], *, recurrent: bool) -> nn.Module:
    """The model with weights as layers in attention and recurrent networks, where nothing is lost."""
    uses = parameter_uses(model)
    replacements: dict[nn.Module, nn.Module] = {}
    for name, module in model.named_modules():
        if is_skipped(name) or (isinstance(module, nn.RNNBase) and not recurrent):
            continue
        shared = any(uses[p] > 1 for p in module.parameters())
        if not shared and not any(map(_has_hooks, module.modules())) and (layers := expose_weights(module)) is not None:
            replacements[module] = layers
    return replace_modules(model, replacements)


def replace_modules(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The model with other modules in the places of some."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in new:
                setattr(parent, name, new[child])
    guard_fused_paths(model.modules())
    return new.get(model, model)


def parameter_uses(model: nn.Module) -> Counter[nn.Parameter]:
    """How many modules hold each parameter."""
    return Counter(p for m in model.modules() for p in m._parameters.values() if p is not None)


def _has_hooks(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def is_converted(module: nn.Module) -> bool:
    """Whether a module is a layer of a kind that has a binary form: torch's own, and relatives of nn.Linear."""
    return type_before_parametrizations(module) in _CONVERTED or _path(module) in _LINEAR


def is_norm(module: nn.Module) -> bool:
    """Whether a module without parts is a norm, also of another library: they all say so in their names."""
    name, of_weights = type(module).__name__.lower(), type(module).__module__ == "torch.nn.utils.parametrizations"
    return "norm" in name and "normalize" not in name and not of_weights and not any(module.children())


def is_transposed(module: nn.Module) -> bool:
    """Whether a layer is transformers' Conv1D, a linear layer with a weight (n, m)."""
    return _path(module) == _LINEAR[0]


def _path(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _refusal(layer: nn.Module, uses: Counter[nn.Parameter]) -> str:
    """Why a layer of a kind that has a binary form stays real-valued; empty where it need not."""
    weight = layer._parameters.get("weight")
    if weight is None:
        return "its weight is computed from other parameters"
    if is_lazy(weight):
        return "it has no shape yet; run a batch through the model first"
    if not weight.numel() or not weight.is_floating_point():
        return f"its weight is {'complex' if weight.is_complex() else 'empty'}"
    if uses[weight] > 1:
        return "it shares its weight with another module"
    return "it has hooks, which would be lost" if _has_hooks(layer) else ""


def _binary(layer: nn.Module, name: str, options: dict[str, Any]) -> BinaryLayer:
    """The binary layer of the same shape, with the signs and the bias of `layer`."""
    parameter, bias = layer._parameters["weight"], layer._parameters["bias"]
    assert parameter is not None
    weight: Tensor = parameter.detach()
    if not weight.isfinite().all():
        raise ValueError(f"the weight of {name or 'the model'} holds NaN or infinite values")
    binary = binary_like(layer, bias=bias is not None, **options)
    weight = weight.T if is_transposed(layer) else weight
    with torch.no_grad():
        if weight.any():
            binary.weight.copy_(_latent(weight, binary))
            # With scales, the weights have the mean sizes of the real ones.
            sizes, levels = weight.flatten(1).abs().mean(1), binary.quantized_weight.flatten(1).abs()
            if binary.unit is not None:
                binary.unit.mul_(sizes.mean() / levels.mean())
            elif binary.scale is not None:
                binary.scale.mul_((sizes / (binary.gain * levels.mean(1)))[:, None])
        if bias is not None and binary.bias is not None:
            binary.bias.copy_(bias).requires_grad_(bias.requires_grad)
    for p in (binary.weight, binary.scale):
        if p is not None:
            p.requires_grad_(parameter.requires_grad)
    return binary.train(layer.training)


def binary_like(layer: nn.Module, *, bias: bool, **options: Any) -> BinaryLinear | BinaryConv1d | BinaryConv2d:
    """A binary layer of the same shape, device and precision, with these `options` and fresh weights."""
    weight: Any = layer.weight
    options |= {"device": weight.device, "dtype": weight.dtype}
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        kind = BinaryConv1d if isinstance(layer, nn.Conv1d) else BinaryConv2d
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
        return kind(layer.in_channels, layer.out_channels, *sizes, bias, layer.padding_mode, **options)
    inputs, outputs = weight.shape if is_transposed(layer) else weight.shape[::-1]
    return BinaryLinear(inputs, outputs, bias, **options)


def _latent(weight: Tensor, binary: BinaryLayer) -> Tensor:
    """Latent weights for real ones: what the planes before have left of them, with the rms of fresh latent weights."""
    rms = binary.initial_bound / math.sqrt(3)
    rest, planes = _with_unit_rms(weight.to(torch.promote_types(weight.dtype, torch.float32))), []
    for coefficient in binary.coefficients:
        planes.append((rms * _with_unit_rms(rest)).clamp(-1, 1))
        rest = rest - coefficient * sign(rest)
    return torch.stack(planes, 1).reshape(binary.weight.shape)


def _with_unit_rms(weight: Tensor) -> Tensor:
    """With root mean square one; zeros stay zeros."""
    largest = weight.abs().amax().clamp(min=torch.finfo(weight.dtype).tiny)  # squares of small weights underflow
    weight = weight / largest
    return weight / weight.square().mean().sqrt().clamp(min=torch.finfo(weight.dtype).tiny)
