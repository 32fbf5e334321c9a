"""Compiled loops on as many threads as torch has."""

from __future__ import annotations

import functools
import os
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numba
import torch

from qpsbgd.compiled import compiled, instruction
from qpsbgd.openmp import guard_fork
from qpsbgd.solvers import IMPORTED_IN

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def threads() -> Iterator[None]:
    """Run the kernels inside on as many threads as torch uses; torch's own setting stays as it is.

    Several Python threads may be inside at once; where numba's threading layer does not allow that, they take turns.

    Raises:
        RuntimeError: The process is a fork of one that had already run kernels, which GNU OpenMP does not survive.
    """
    layer = _launched()
    if layer == "omp":
        guard_fork()
    # The workqueue layer aborts the process when two Python threads run kernels at the same time.
    with _ONE_AT_A_TIME if layer == "workqueue" else nullcontext():
        before = numba.get_num_threads()
        numba.set_num_threads(thread_count())
        try:
            yield
        finally:
            numba.set_num_threads(before)


@functools.cache
def _launched() -> str:
    """The threading layer of numba, whose threads are launched at the first call."""
    # Launching calls omp_set_num_threads with all cores. torch reads the same setting, but it belongs to the calling
    # thread alone, so another thread makes the call.
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(numba.get_num_threads).result()
    layer: str = numba.threading_layer()  # type: ignore[attr-defined]
    if layer == "omp":
        _warn_if_waiting_costs()
    return layer


def thread_count() -> int:
    """How many threads kernels run on: as many as torch uses, one in a fork."""
    if os.getpid() != IMPORTED_IN:
        # If torch used OpenMP before the fork, a parallel region here would wait for ever for threads that are gone.
        return 1
    return min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]


def _warn_if_waiting_costs() -> None:
    """Warn if OpenMP's threads, which wait by spinning, compete with other processes for the cores."""
    count, cores = thread_count(), os.cpu_count() or 1
    if "OMP_WAIT_POLICY" in os.environ or count == 1 or not hasattr(os, "getloadavg"):
        return
    # The load of the last minute, less all that this process can have added to it.
    others = os.getloadavg()[0] - time.process_time() / 60
    if others + count > cores + 0.5:
        warnings.warn(
            f"other processes keep {others:.1f} of {cores} cores busy and the solver uses {count} threads, which spin "
            "while they wait: training may be many times slower. Set OMP_WAIT_POLICY=passive before Python starts, or "
            "call torch.set_num_threads with fewer threads.",
            UserWarning,
            stacklevel=2,
        )


__all__ = ["compiled", "instruction", "thread_count", "threads"]
