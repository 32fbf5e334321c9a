"""Layers and other parameters that a run leaves untrained: every finding is a message, given once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.parallel.shards import local

_SILENT_STEPS = 10
"""Steps after which a layer that has never recorded anything is reported."""
_PATIENCE = 2
"""Steps, after the first, in which another optimiser has to change a parameter; then it is taken to have none."""
_NAMED = 4
"""Parameters that a message names; of the others it says how many there are."""


class SilentLayers:
    """Finds trainable layers that are not being trained."""

    def __init__(self) -> None:
        self._steps = 0
        self._heard: set[BinaryLayer] = set()
        self._reported: set[BinaryLayer] = set()

    def messages(self, layers: Iterable[BinaryLayer], recorded: set[BinaryLayer]) -> Iterator[str]:
        """One message per layer that has newly become silent."""
        self._steps += 1
        self._heard |= recorded
        for layer in layers:
            if layer in recorded or layer in self._reported or not layer.weight.requires_grad:
                continue
            if not layer.training:
                reason = "is in evaluation mode, so it records nothing; call train() on it, or freeze its weight"
            elif layer not in self._heard and self._steps >= _SILENT_STEPS:
                reason = (
                    f"has recorded nothing in {self._steps} steps: either no loss depends on it, or a module reads "
                    "its .weight instead of calling it"
                )
            else:
                continue
            self._reported.add(layer)
            yield f"{layer} is not trained: it {reason}"


class LeftBehind:
    """Finds parameters of the given model that have gradients, but that no optimiser changes.

    Their values are compared over the first few steps, so an optimiser beside this one need not be announced.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._first: dict[Tensor, tuple[int, Tensor]] = {}

    def messages(self, parameters: Mapping[Tensor, str], optimizer: str) -> Iterator[str]:
        """One if some of these parameters, with their names, are as they were at the first step."""
        self._steps += 1
        if self._steps == 1:
            self._first = {p: _state(p) for p in parameters if p.requires_grad and p.grad is not None}
        if self._steps != 1 + _PATIENCE:
            return
        left = [parameters[p] for p, first in self._first.items() if p in parameters and _is_still(p, first)]
        self._first = {}
        if left:
            more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            yield (
                f"{optimizer} trains the binary weights alone, and nothing has changed {len(left)} other "
                f"trainable parameters since its first step: {', '.join(left[:_NAMED])}{more}; give it real=True or "
                "real=dict(lr=…) to train them too, real=False to leave them as they are"
            )


def _state(parameter: Tensor) -> tuple[int, Tensor]:
    """A parameter's version, and some of its values for optimisers that write to `.data`, which has no version."""
    return parameter._version, local(parameter.detach()).reshape(-1)[:64].clone()


def _is_still(parameter: Tensor, first: tuple[int, Tensor]) -> bool:
    version, values = _state(parameter)
    return version == first[0] and values.device == first[1].device and torch.equal(values, first[1])
