"""Compiled loops: numba's compiler with a cache on disk, and as many threads as torch has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
import torch
from numba import njit

Function = Callable[..., Any]


def compiled(**options: Any) -> Callable[[Function], Function]:
    """`numba.njit` that keeps what it compiled on disk, or only in memory where no folder can be written."""

    def decorate(function: Function) -> Function:
        try:
            result: Function = njit(cache=True, **options)(function)
        except RuntimeError:
            result = njit(**options)(function)
        return result

    return decorate


@contextmanager
def threads() -> Iterator[None]:
    """Let the kernels use as many threads as torch does."""
    before = numba.get_num_threads()
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        numba.set_num_threads(before)
