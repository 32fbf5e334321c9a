"""The compiled kernels of inference, built from the C++ sources next to this file; `kernels.hpp` documents them."""

from __future__ import annotations

from typing import Any

try:
    from qpsbgd_runtime.kernels import _kernels
except ImportError as error:
    raise ImportError(
        f"qpsbgd-runtime has no working compiled kernels ({error}): install a wheel of it, or a C++ compiler and "
        "Python's headers (on Debian and Ubuntu: apt install g++ python3-dev), and then the package again"
    ) from error

kernels: Any = _kernels

__all__ = ["kernels"]
