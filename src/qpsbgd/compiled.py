"""Compiled loops: numba's compiler with a cache on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.extending import intrinsic

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


def instruction(function: Function) -> Function:
    """`numba.extending.intrinsic`: a function that writes the LLVM code of calls in compiled code."""
    result: Function = intrinsic(function)
    return result
