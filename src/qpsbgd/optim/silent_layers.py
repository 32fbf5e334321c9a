"""Layers that an optimiser holds but does not train, because they record nothing: each is reported once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from qpsbgd.nn import BinaryLayer
from qpsbgd.optim.layerwise import callers_level

_SILENT_STEPS = 10
"""Steps after which a layer that has never recorded anything is reported."""


class SilentLayers:
    """Counts the steps of an optimiser, and remembers which layers were heard and which were reported."""

    def __init__(self) -> None:
        self._steps = 0
        self._heard: set[BinaryLayer] = set()
        self._reported: set[BinaryLayer] = set()

    def report(self, layers: Iterable[BinaryLayer], recorded: set[BinaryLayer]) -> None:
        """Warn once about each trainable layer that is not being trained."""
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
            warnings.warn(f"{layer} is not trained: it {reason}", stacklevel=callers_level())
