"""Processes for the runs of an experiment: those of this machine."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from qpsbgd.openmp import wait_passively
from qpsbgd_qubo.terminal import show_warning

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables for the threads of libraries, which read them when they are loaded; 1 unless the user sets them."""


@dataclass(frozen=True)
class Workers:
    """Processes that do jobs."""

    executor: Executor  # starts jobs
    count: int  # how many run at the same time


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """So many processes of this machine, started with the first jobs, each with one thread.

    What is still running at the end of the `with` block, or when Ctrl-C ends it, is stopped.
    """
    wait_passively()
    added = [name for name in THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    # A forked child of a process that used OpenMP hangs, so children start afresh.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(count, mp_context=context, initializer=_prepare_process)
    try:
        yield Workers(executor, count)
    finally:
        for name in added:
            del os.environ[name]
        for process in list((executor._processes or {}).values()):
            process.terminate()
        executor.shutdown(wait=False, cancel_futures=True)


def _prepare_process() -> None:
    torch.set_num_threads(1)
    warnings.showwarning = show_warning
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    # A parent that is killed cannot end its children.
    threading.Thread(target=end_with_parent, daemon=True).start()
