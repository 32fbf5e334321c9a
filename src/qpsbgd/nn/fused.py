"""Binary layers inside torch's transformer modules, whose fused paths read `.weight` instead of calling the layer."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from qpsbgd.nn.layers import BinaryLayer


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


def watch_fused_paths() -> None:
    """Have torch report every binary layer that is put into another module."""
    register_module_module_registration_hook(_guard_fused_paths)
