"""The binary layers that exist: found by their weights, from inside a compiled graph, too."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from qpsbgd.nn.layers import BinaryLayer

KNOWN: weakref.WeakSet[BinaryLayer] = weakref.WeakSet()
"""The binary layers that exist: what `layers_of` searches. A weight may be replaced, so the layers are kept."""


def layers_of(parameters: Iterable[Tensor]) -> list[BinaryLayer]:
    """The binary layers whose weights are among the parameters, in their order."""
    places = {parameter: place for place, parameter in enumerate(parameters)}
    layers = [layer for layer in list(KNOWN) if layer._parameters.get("weight") in places]
    return sorted(layers, key=lambda layer: places[layer.weight])


@torch.library.custom_op("qpsbgd::watch_output", mutates_args=())
def watch_output(output: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """A copy of the output of the binary layer with this weight, whose gradient goes by the layer's tape.

    A number in place of the weight would be a constant of the graph, and every one of many equal blocks compiled anew.
    """
    return output.clone()


@torch.library.custom_op("qpsbgd::record_pass", mutates_args=())
def _record_pass(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    place = weight.data_ptr()  # torch has made another object of the weight
    for layer in list(KNOWN):
        tape = layer.tape
        if tape is not None and tape.wanted and not tape.sharded and layer.weight.data_ptr() == place:
            tape.record(layer, x, grad)
    return grad.clone()


watch_output.register_fake(lambda output, x, weight: torch.empty_like(output))
_record_pass.register_fake(lambda grad, x, weight: torch.empty_like(grad))


def _keep_for_record(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _record(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _record_pass(grad, *ctx.saved_tensors), None, None


watch_output.register_autograd(_record, setup_context=_keep_for_record)
