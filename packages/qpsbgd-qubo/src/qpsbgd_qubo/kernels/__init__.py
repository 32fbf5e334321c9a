"""The solvers' compiled kernels, built from the C++ sources next to this file; `_kernels.pyi` says what each does.

Arrays must be contiguous and of the type that a kernel names; shapes and indices are checked at every call. Kernels
release the GIL, look at their `stop` flag at least every millisecond, and raise what a signal's handler raises, as
Ctrl-C does.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

try:
    from qpsbgd_qubo.kernels import _kernels as kernels
except ImportError as error:
    raise ImportError(
        "qpsbgd-qubo has no compiled kernels for this Python: install a C++ compiler and Python's headers (on Debian "
        "and Ubuntu: apt install g++ python3-dev), then run pip install --force-reinstall --no-deps --no-cache-dir "
        f"qpsbgd-qubo ({error})"
    ) from error

Array = np.ndarray[Any, Any]

NEVER: Array = np.zeros(1, np.uint8)  # a `stop` flag that is never set
NEVER.flags.writeable = False
CACHE_LINE = 64  # bytes


def aligned(array: Array) -> Array:
    """A contiguous copy that begins where a line of the cache does: kernels are up to a fifth faster on those."""
    memory = np.empty(array.nbytes + CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % CACHE_LINE
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def thread_count() -> int:
    """How many threads kernels run on: as many as torch uses, and no more than the process may use processors.

    Where torch is not loaded, that is OMP_NUM_THREADS if set. Affinity and the limits of containers count.
    """
    torch = sys.modules.get("torch")
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    wanted = torch.get_num_threads() if torch is not None else int(setting) if setting.isdigit() else 0
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(wanted or affinity, affinity, _container_limit()))


@functools.cache
def _container_limit() -> int:
    """The processors that Linux control groups allow, rounded up."""
    for name in ("cpu.max", "cpu/cpu.cfs_quota_us"):
        try:
            numbers = (Path("/sys/fs/cgroup") / name).read_text().split()
            period = numbers[1:] or (Path("/sys/fs/cgroup") / "cpu/cpu.cfs_period_us").read_text().split()
        except OSError:
            continue
        if numbers[0].isdigit() and int(numbers[0]) > 0:
            return max(1, -(-int(numbers[0]) // int(period[0])))
    return sys.maxsize


__all__ = ["NEVER", "Array", "aligned", "kernels", "thread_count"]
