"""The solvers' compiled kernels, built from the C++ sources beside this file; plain Python where none were built.

`kernels` is the compiled module, or `reference` with the same functions. Arrays must be contiguous and of the type that
a kernel names; shapes and indices are checked at every call. Kernels release the GIL, look at their `stop` flag at
least every millisecond, and raise what a signal's handler raises, as Ctrl-C does.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

kernels: Any
KIND = "compiled"  # what `kernels` is, for `stats`
if importlib.util.find_spec("qpsbgd_qubo.kernels._kernels") is not None:
    from qpsbgd_qubo.kernels import _kernels as kernels
else:
    from qpsbgd_qubo.kernels import reference as kernels

    KIND = "reference"
    warnings.warn(
        "qpsbgd was installed without its compiled kernels, because no C++ compiler or no Python headers were found: "
        "solvers run in plain Python, hundreds of times slower, and find and prove less. Install both (on Debian and "
        "Ubuntu: apt install g++ python3-dev), then run pip install --force-reinstall --no-deps --no-cache-dir qpsbgd.",
        RuntimeWarning,
        stacklevel=2,
    )

NEVER: Array = np.zeros(1, np.uint8)  # a `stop` flag that is never set
NEVER.flags.writeable = False


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


__all__ = ["KIND", "NEVER", "Array", "kernels", "thread_count"]
