"""The compiled kernels of inference, built from the C++ sources beside this file; plain numpy where none were built."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

kernels: Any
if importlib.util.find_spec("qpsbgd_runtime.kernels._kernels") is not None:
    from qpsbgd_runtime.kernels import _kernels as kernels
else:
    from qpsbgd_runtime.kernels import reference as kernels

    warnings.warn(
        "packed models run without compiled kernels, because no C++ compiler or no Python headers were "
        "found: they give the same outputs in plain numpy, far slower. Install both (on Debian and Ubuntu: "
        "apt install g++ python3-dev), then install the package again.",
        RuntimeWarning,
        stacklevel=2,
    )

__all__ = ["kernels"]
