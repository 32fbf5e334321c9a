"""Pickles of published data sets, read without running anything: only classes that are listed can be named."""

import pickle
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, BinaryIO, cast, final

import numpy as np

Classes = Mapping[tuple[str, str], Any]
"""Objects that stand for the classes and functions a pickle names, by module and name."""

# Its module has been renamed; every array knows where it is now.
_RECONSTRUCT = cast(tuple[Any, ...], np.empty(0).__reduce__())[0]

ARRAYS: Classes = MappingProxyType(
    {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    }
)
"""Those of numpy's arrays."""


def unpickled(file: BinaryIO, *, classes: Classes = ARRAYS) -> Any:
    """The content of a pickle of Python 2 or 3."""
    try:
        return _Unpickler(file, classes).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # damaged bytes are taken for any instruction, and those fail in their own ways
        raise pickle.UnpicklingError(str(error) or type(error).__name__) from error


@final
class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, classes: Classes) -> None:
        super().__init__(file, encoding="latin1")
        self._classes = classes

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self._classes:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which published files do not: it may run code")
        return self._classes[module, name]
