"""torch's transformer encoders, whose own forward cannot be traced, written out as their parts in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from qpsbgd.deploy.modules import RefusedError


def _layer(layer: nn.TransformerEncoderLayer, src: Any, *masks: Any, **options: Any) -> Any:
    """Attention and two linear layers, each with a norm and a shortcut."""
    _check_masks(*masks, *options.values())
    if {"_sa_block", "_ff_block"} & set(vars(layer)):
        raise RefusedError("a TransformerEncoderLayer with blocks of its own cannot be deployed; subclass it instead")
    if not layer.self_attn.batch_first:
        raise RefusedError("a TransformerEncoderLayer must take the batch first: build it with batch_first=True")

    def attended(x: Any) -> Any:
        return layer.dropout1(layer.self_attn(x, x, x, need_weights=False)[0])

    def transformed(x: Any) -> Any:
        return layer.dropout2(layer.linear2(layer.dropout(layer.activation(layer.linear1(x)))))

    if layer.norm_first:
        src = src + attended(layer.norm1(src))
        return src + transformed(layer.norm2(src))
    src = layer.norm1(src + attended(src))
    return layer.norm2(src + transformed(src))


def _encoder(encoder: nn.TransformerEncoder, src: Any, *masks: Any, **options: Any) -> Any:
    """The layers one after the other, and a norm where there is one."""
    _check_masks(*masks, *options.values())
    for layer in encoder.layers:
        src = layer(src)
    return src if encoder.norm is None else encoder.norm(src)


def _check_masks(*given: Any) -> None:
    if any(one is not None and one is not False for one in given):
        raise RefusedError(
            "masks of a TransformerEncoder cannot be deployed; call it with its input alone, or write its layers with "
            "F.scaled_dot_product_attention"
        )


ENCODERS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.TransformerEncoderLayer: _layer,
    nn.TransformerEncoder: _encoder,
}
"""What is traced in place of these modules' own forward."""
