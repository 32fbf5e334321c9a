"""Binary layers in Hugging Face checkpoints: import this module, and `from_pretrained` loads them as what they are."""

from __future__ import annotations

from typing import Any

from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from qpsbgd.nn.saving import with_binary_layers


@register_quantization_config("qpsbgd")
class BinaryConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """The entry of config.json for a model with binary layers; `convert` and `binarize` put it there.

    Args:
        layers: Options of the binary layers, by name.
        quant_method: Always "qpsbgd".
    """

    def __init__(self, layers: dict[str, dict[str, Any]], quant_method: str = "qpsbgd") -> None:
        self.layers, self.quant_method = layers, quant_method


@register_quantizer("qpsbgd")
class BinaryQuantizer(HfQuantizer):  # type: ignore[misc]
    """Makes the binary layers of a saved model before transformers loads their weights."""

    requires_calibration = True  # a real-valued checkpoint is for `convert` and `binarize`, not for `from_pretrained`
    is_trainable = is_qat_trainable = is_compileable = True

    def is_serializable(self) -> bool:
        """True: latent weights and scales are saved as they are."""
        return True

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        layers, prefix = self.quantization_config.layers, f"{model.base_model_prefix}."
        names = {name for name, _ in model.named_modules()}
        if not names & set(layers):  # saved with a head and loaded without, or the other way round
            cut = {name.removeprefix(prefix): options for name, options in layers.items() if name.startswith(prefix)}
            put = {prefix + name: options for name, options in layers.items()}
            layers = next((part for part in (cut, put) if names & set(part)), layers)
        with_binary_layers(model, layers)
