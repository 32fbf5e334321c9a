"""Networks that qpsbgd has packed, with one bit per weight, run without torch."""

from __future__ import annotations

import os
from pathlib import Path

from qpsbgd_runtime.packed_model import PackedModel

__version__ = "0.1.0"

__all__ = ["PackedModel", "__version__", "load_packed"]


def load_packed(path: str | os.PathLike[str]) -> PackedModel:
    """The model that `qpsbgd.deploy.pack` wrote: a function of numpy rows (B, …) with outputs (B, …) in float32.

    Raises:
        ValueError: The file is not a packed model, of another version, or damaged.
        OSError: It cannot be read.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from qpsbgd.deploy import load_packed, pack
        >>> from qpsbgd.nn import BinaryLinear
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     packed = pack(BinaryLinear(8, 2), f"{folder}/network.safetensors")
        ...     load_packed(f"{folder}/network.safetensors")(np.ones((3, 8), np.float32)).shape
        (3, 2)
    """
    from qpsbgd_runtime.packed_file import load  # which needs safetensors

    return load(Path(path))
