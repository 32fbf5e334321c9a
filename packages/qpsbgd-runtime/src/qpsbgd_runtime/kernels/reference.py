"""The kernels of inference in plain numpy, for reading, for testing, and for machines without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qpsbgd_runtime.kernels.reference_bits import bit_layer, byte_layer, dense_signs, dense_sums
from qpsbgd_runtime.kernels.reference_real import real_steps

__all__ = ["bit_layer", "byte_layer", "dense_signs", "dense_sums", "real_steps"]
__all__ += [f"prepare_{name}" for name in __all__]


def _preparing(kernel: Callable[..., Any], place: int = 0) -> Callable[..., Callable[[Any, Any], Any]]:
    """A function that takes the kernel's arguments and gives one of the inputs, at that place, and outputs alone."""

    def prepare(*arguments: Any) -> Callable[[Any, Any], Any]:
        before, after = arguments[:place], arguments[place + 1 : -1]
        return lambda inputs, out: kernel(*before, inputs, *after, out)

    return prepare


prepare_bit_layer, prepare_byte_layer = _preparing(bit_layer), _preparing(byte_layer)
prepare_dense_signs, prepare_dense_sums = _preparing(dense_signs), _preparing(dense_sums)
prepare_real_steps = _preparing(real_steps, 5)
