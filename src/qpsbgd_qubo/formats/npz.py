"""scipy's sparse matrices in numpy's `.npz` archives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qpsbgd_qubo.kernels import Array


def sparse_entries(arrays: Mapping[str, Array]) -> tuple[int, Array, Array, Array]:
    """n, rows, columns and values of a matrix (n, n) that `scipy.sparse.save_npz` wrote."""
    form = arrays["format"].item().decode(errors="replace")
    parts = {"csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "coo": ("row", "col")}.get(form)
    if parts is None:
        raise ValueError(f"a sparse matrix must be in the form csr, csc or coo, got {form!r}; convert it with .tocsr()")
    missing = {"data", "shape", *parts} - set(arrays)
    if missing:
        raise ValueError(f"a sparse matrix in the form {form} must have arrays {sorted(missing)}")
    shape, first, second = (_whole(arrays[name], name) for name in ("shape", *parts))
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"a sparse matrix must have shape (n, n), got {tuple(shape.tolist())}")
    if form != "coo":
        if len(second) != shape[0] + 1 or second[0] != 0 or second[-1] != len(first) or (np.diff(second) < 0).any():
            raise ValueError("indptr must ascend from 0 to the number of entries, one step per row or column")
        second = np.repeat(np.arange(len(second) - 1), np.diff(second))
    return int(shape[0]), second, first, arrays["data"]


def _whole(array: Array, name: str) -> Array:
    if (
        array.ndim != 1
        or not np.isfinite(array).all()
        or (array != np.floor(array)).any()
        or (abs(array) > 2**53).any()
    ):
        raise ValueError(f"{name} must be a list of whole numbers")
    return array.astype(np.int64)
