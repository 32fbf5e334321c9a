"""Binary layers in Hugging Face checkpoints: import this module, and `from_pretrained` loads them as binary layers."""

from typing import Any

import torch
from torch import nn
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from qpsbgd.nn.layers import BinaryLayer
from qpsbgd.nn.saving import with_binary_layers


@register_quantization_config("qpsbgd")
class BinaryConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """The entry of config.json for a model with binary layers; `convert` and `binarize` put it there.

    Args:
        layers: Options of the binary layers, by name.
        latents: Save latent weights, from which training can continue. False, as in a model that `binarize` made, saves
            bits where no optimiser of ours holds the layer and its scale is not that of the latent weights.
        quant_method: Always "qpsbgd".
    """

    def __init__(self, layers: dict[str, dict[str, Any]], latents: bool = True, quant_method: str = "qpsbgd") -> None:
        self.layers, self.latents, self.quant_method = layers, latents, quant_method


@register_quantizer("qpsbgd")
class BinaryQuantizer(HfQuantizer):  # type: ignore[misc]
    """Makes the binary layers of a saved model before transformers loads their weights."""

    requires_calibration = True  # a real-valued checkpoint is for `convert` and `binarize`, not for `from_pretrained`
    is_trainable = is_qat_trainable = is_compileable = True

    def __init__(self, quantization_config: BinaryConfig, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self._weights: dict[BinaryLayer, nn.Parameter] = {}  # of layers whose bits are being loaded

    def is_serializable(self) -> bool:
        """True: latent weights or bits are saved, with the scales."""
        return True

    def get_state_dict_and_metadata(self, model: Any) -> tuple[Any, dict[str, str]]:
        """The state with bits where these suffice; None where all is saved as it is."""
        config = model.config.quantization_config
        config.layers = _options(model)
        if config.latents:
            return None, {}
        state = model.state_dict()
        for name, layer in _binary_layers(model).items():
            config.layers[name]["packed"] = packed = layer.tape is None and layer.scaling != "magnitude"
            if packed:
                state[f"{name}.weight"] = layer.packed_bits
        return state, {}

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        layers, prefix = self.quantization_config.layers, f"{model.base_model_prefix}."
        names = {name for name, _ in model.named_modules()}
        if not names & set(layers):  # saved with a head and loaded without, or the other way round
            cut = {name.removeprefix(prefix): options for name, options in layers.items() if name.startswith(prefix)}
            put = {prefix + name: options for name, options in layers.items()}
            layers = next((part for part in (cut, put) if names & set(part)), layers)
        options = {name: {k: v for k, v in each.items() if k != "packed"} for name, each in layers.items()}
        with_binary_layers(model, options)
        for name, layer in _binary_layers(model).items():
            if layers[name].get("packed"):
                self._weights[layer] = weight = layer.weight
                bits = torch.empty(-(-weight.numel() // 8), dtype=torch.uint8, device=weight.device)
                layer.weight = nn.Parameter(bits, requires_grad=False)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        for layer, weight in self._weights.items():
            bits, layer.weight = layer.weight.detach(), weight
            layer.weight = nn.Parameter(layer.latent_of(bits), weight.requires_grad)
        self._weights.clear()
        return model


def attach_model_config(model: Any, *, latents: bool) -> None:
    """Have a model save which of its layers are binary, and how, and either latent weights or bits."""
    model.config.quantization_config = config = BinaryConfig(layers=_options(model), latents=latents)
    if not latents:
        model.hf_quantizer = BinaryQuantizer(config)


def _binary_layers(model: nn.Module) -> dict[str, BinaryLayer]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, BinaryLayer)}


def _options(model: nn.Module) -> dict[str, dict[str, Any]]:
    return {name: {**layer.options, "bias": layer.bias is not None} for name, layer in _binary_layers(model).items()}
