"""Hugging Face models that say in their configuration which of their layers are binary."""

from __future__ import annotations

from typing import Any

from torch import nn

from qpsbgd.nn.layers import BinaryLayer


def declare(model: nn.Module) -> None:
    """Have the Hugging Face models inside a model save that and how they are binary."""
    for module in reversed(list(model.modules())):  # a model and its base share their configuration: the model's stays
        names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__}
        if "transformers.modeling_utils.PreTrainedModel" in names:
            from qpsbgd.nn.huggingface import BinaryConfig

            config: Any = module.config
            config.quantization_config = BinaryConfig(layers=layer_options(module))


def layer_options(model: nn.Module) -> dict[str, dict[str, Any]]:
    """What `saving.with_binary_layers` needs to make the binary layers of a model, by name."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BinaryLayer)}
    return {name: {**layer.options, "bias": layer.bias is not None} for name, layer in layers.items()}
