"""Processes for the runs of an experiment."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar, final

import torch

Answer = TypeVar("Answer")

ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    # Read once, when the libraries are loaded: one thread per process, and threads that wait must not spin.
    {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
)
"""What processes are started with, where the user has not set it."""


@final
class Workers:
    """Processes for jobs, started with the first job and shared by all that follow; torch has one thread in each.

    Use it in a `with` block: what is still running at its end, or when Ctrl-C ends it, is stopped.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(self, work: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        """Start work(*arguments) as soon as a process is free; where one was killed, the answer is that error."""
        with _environment():
            if self._pool is None:
                # A forked child of a process that used OpenMP hangs, so children start afresh.
                self._pool = ProcessPoolExecutor(
                    self.count, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare
                )
            try:
                return self._pool.submit(work, *arguments)
            except BrokenProcessPool as error:
                lost: Future[Answer] = Future()
                lost.set_exception(error)
                return lost

    def stop(self) -> None:
        """End all processes; the next job starts new ones."""
        if self._pool is not None:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


@contextmanager
def _environment() -> Iterator[None]:
    added = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _prepare() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    # A parent that is killed cannot end its children.
    threading.Thread(target=end_with_parent, daemon=True).start()
