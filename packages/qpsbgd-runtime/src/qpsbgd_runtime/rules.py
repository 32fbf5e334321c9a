"""What the parts of operations that come from a file must be: a right checksum does not say who wrote it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

Rules = Iterator[tuple[bool, str]]
"""Whether something holds, and what the operation must have for it; what is behind a rule relies on it."""


def are_axes(axes: Any) -> bool:
    """Whether these are dimensions, counted from either end."""
    return are_whole(axes, least=-8, most=7)


def is_end(axis: Any) -> bool:
    """Whether this is the first dimension, the last one or None."""
    return axis is None or are_whole((axis,), least=-1, most=0)


def are_whole(numbers: Any, *, least: int, most: int = 2**31 - 1) -> bool:
    """Whether this is a tuple of integers in a range."""
    return isinstance(numbers, tuple) and all(type(n) is int and least <= n <= most for n in numbers)


def are_finite(values: Any) -> bool:
    """Whether this is an array of finite numbers in float32."""
    return isinstance(values, np.ndarray) and values.dtype == np.float32 and bool(np.isfinite(values).all())


def is_list(values: Any, *types: str) -> bool:
    """Whether this is an array (n,) of one of these types, n ≥ 1."""
    return isinstance(values, np.ndarray) and values.ndim == 1 and len(values) > 0 and values.dtype in types
