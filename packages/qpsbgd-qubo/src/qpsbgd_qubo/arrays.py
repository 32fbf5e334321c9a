"""Numpy arrays, or torch tensors where torch is loaded: what families do with both."""

import contextlib
import math
import sys
from typing import Any

import numpy as np


def is_tensor(value: object) -> bool:
    """Whether the value is a torch tensor; never loads torch, which whoever has made a tensor has loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def cast(value: Any, like: Any, *, dtype: str = "") -> Any:
    """The value as `like` is, a tensor on its device or an array; of its type, if `dtype` names no other."""
    dtype = dtype or type_name(like)
    if not is_tensor(like):
        return np.asarray(on_cpu(value), dtype=dtype, order="C")  # products of other layouts are slower
    torch = sys.modules["torch"]
    return (value if is_tensor(value) else torch.as_tensor(value)).to(like.device, getattr(torch, dtype))


def full_precision(like: Any) -> contextlib.AbstractContextManager[Any]:
    """Products of tensors as `like` is are computed in their own precision meanwhile, in an autocast block, too."""
    if not is_tensor(like):
        return contextlib.nullcontext()
    return sys.modules["torch"].autocast(like.device.type, enabled=False)


def full(shape: int | tuple[int, ...], value: Any, *, like: Any, dtype: str = "") -> Any:
    """An array or a tensor, as `cast` gives it, of one value."""
    dtype = dtype or type_name(like)
    if not is_tensor(like):
        return np.full(shape, value, dtype=dtype)
    shape = (shape,) if isinstance(shape, int) else shape
    return like.new_full(shape, value, dtype=getattr(sys.modules["torch"], dtype))


def on_cpu(value: Any) -> Any:
    """A tensor as an array, without a copy where it is on the CPU; anything else as it is."""
    return value.detach().cpu().numpy() if is_tensor(value) else value


def type_name(array: Any) -> str:
    """The name of an array's or a tensor's type, such as "float32"."""
    return str(array.dtype).removeprefix("torch.")


def largest(array: Any) -> float:
    """The largest |value|, NaN if there is one; numpy is several times faster than torch here."""
    values = on_cpu(array) if not is_tensor(array) or array.is_cpu else array
    return max(-float(values.min()), float(values.max()))


def largest_of_rows(array: Any) -> Any:
    """The largest |value| along the last dimension."""
    if not is_tensor(array):
        return abs(array).max(-1)
    return sys.modules["torch"].linalg.vector_norm(array, float("inf"), dim=-1)


def copied(array: Any) -> Any:
    """A copy by rows."""
    return array.contiguous().clone() if is_tensor(array) else array.copy(order="C")


def stack(parts: Any) -> Any:
    """The arrays or tensors, all of one shape, along a new first dimension."""
    if is_tensor(parts[0]):
        return sys.modules["torch"].stack(parts)
    return np.stack([np.asarray(part) for part in parts])


def real_floats(value: Any) -> Any:
    """A copy in float32 or float64, as a tensor, or of anything else as an array by rows."""
    if is_tensor(value):
        value = value.detach().clone()
        kind = "c" if value.is_complex() else "f" if value.is_floating_point() else "i"
    else:
        value = np.array(value, order="C")
        kind = value.dtype.kind
    if kind == "c":
        raise ValueError("a QUBO has real coefficients, got complex ones")
    if kind not in "fiub":
        raise ValueError(f"a QUBO has real coefficients, got {value.dtype}")
    if kind in "iu":
        check_whole_numbers(on_cpu(value))
    name = type_name(value) if kind == "f" else "float64"
    name = {"float16": "float32", "bfloat16": "float32", "float32": "float32"}.get(name, "float64")
    return to_type(value, name)


def check_whole_numbers(array: Any) -> None:
    """Raise ValueError if integers, of numpy or Python, are rounded in double precision, which holds all up to 2⁵³."""
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.dtype.itemsize < 8):
        return
    large = array[(array > LARGEST_EXACT) | (array < -LARGEST_EXACT)] if array.dtype.kind in "iu" else array.ravel()
    rounded = (each for each in large.tolist() if isinstance(each, int) and int(float(each)) != each)
    if (wrong := next(rounded, None)) is not None:
        raise ValueError(
            f"whole numbers must be exact in double precision, as all up to 2^53 are, got {wrong}; give floats to have "
            "them rounded, which may change what is optimal"
        )


def sums_are_exact(*parts: Any) -> bool:
    """Whether double precision holds every sum of these numbers; True if they are no small multiples of one unit.

    So an optimum among whole numbers and penalties of 10¹⁸ is not proven by sums in which units vanish.
    """
    sizes = np.concatenate([np.abs(on_cpu(part), dtype=np.float64).ravel() for part in parts])
    largest, exponent = float(sizes.max(initial=0.0)), math.frexp(sizes.max(initial=0.0))[1]
    sizes = np.ldexp(sizes, -exponent)  # so that their sum is in the range
    total, least = float(sizes.sum()), float(sizes.min(initial=np.inf, where=sizes > 0))
    may_be_integers = largest * len(sizes) > LARGEST_EXACT and largest < LARGEST_INTEGER
    if total <= least * LARGEST_EXACT / SMALL_MULTIPLE and not may_be_integers:
        return True
    mantissas, exponents = np.frexp(sizes[sizes > 0])
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    unit = float(np.ldexp((whole & -whole).astype(np.float64), exponents - 53).min(initial=np.inf))
    are_measured = least >= unit * SMALL_MULTIPLE and not (may_be_integers and math.ldexp(unit, exponent) >= 1)
    return are_measured or total <= unit * LARGEST_EXACT


LARGEST_EXACT = 2**53  # double precision holds all whole numbers up to this
LARGEST_INTEGER = 2**64  # larger multiples of 1 are numbers of measurements that were scaled
SMALL_MULTIPLE = 2**20
"""Numbers of measurements are larger multiples of their last bit, and an optimum among them is one up to rounding."""


def to_type(array: Any, name: str) -> Any:
    """The array or tensor in the type of this name."""
    if is_tensor(array):
        return array.to(getattr(sys.modules["torch"], name))
    return array.astype(name, copy=False)
