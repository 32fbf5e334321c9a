"""The kernels of inference in plain numpy, for reading, for testing, and for machines without a compiler."""

from qpsbgd_runtime.kernels.reference_bits import bit_layer, byte_layer, dense_signs, dense_sums
from qpsbgd_runtime.kernels.reference_real import real_steps

__all__ = ["bit_layer", "byte_layer", "dense_signs", "dense_sums", "real_steps"]
