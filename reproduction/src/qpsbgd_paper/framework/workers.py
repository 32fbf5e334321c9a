"""Processes for the runs of an experiment."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import torch

from qpsbgd_qubo.console import show_warning

if TYPE_CHECKING:
    from typing import Self

Answer = TypeVar("Answer")

ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    # Read once, when the libraries are loaded: one thread per process, and threads that wait must not spin.
    {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
)
"""Environment variables of new processes, where the user has not set them."""


class Pool(ABC):
    """Something that does jobs; use it in a `with` block, at whose end it is stopped.

    `lost` are the errors of a job whose process was killed, `advice` says what to do then, and `shares_disk` whether
    jobs see the files of this machine.
    """

    lost: ClassVar[tuple[type[BaseException], ...]]
    advice: ClassVar[str]
    shares_disk: ClassVar[bool]

    @property
    @abstractmethod
    def count(self) -> int:
        """How many jobs run at the same time, at least one."""

    @abstractmethod
    def takes(self, jobs: int) -> bool:
        """Whether so many jobs are worth submitting; else the caller does them, one by one."""

    @abstractmethod
    def submit(self, work: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        """Start work(*arguments) as soon as a process is free."""

    @abstractmethod
    def everywhere(self, work: Callable[[], None]) -> None:
        """Call work() wherever jobs will look for what it leaves on disk."""

    @abstractmethod
    def stop(self) -> None:
        """End what is running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@final
class Workers(Pool):
    """Processes for jobs, started with the first job and shared by all that follow; torch has one thread in each.

    What is still running at the end of the `with` block, or when Ctrl-C ends it, is stopped.
    """

    lost = (BrokenProcessPool,)
    advice = "Fewer --workers need less memory"
    shares_disk = True

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    @property
    def count(self) -> int:
        """The number of processes."""
        return self._count

    def takes(self, jobs: int) -> bool:
        """Several jobs, if there are several processes."""
        return min(jobs, self.count) > 1

    def submit(self, work: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        """Start work(*arguments) as soon as a process is free; where one was killed, the answer is that error."""
        with _environment():
            if self._pool is None:
                # A forked child of a process that used OpenMP hangs, so children start afresh.
                self._pool = ProcessPoolExecutor(
                    self._count, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare
                )
            try:
                return self._pool.submit(work, *arguments)
            except BrokenProcessPool as error:
                lost: Future[Answer] = Future()
                lost.set_exception(error)
                return lost

    def everywhere(self, work: Callable[[], None]) -> None:
        """Call work() here: the processes see the same disk."""
        work()

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
    warnings.showwarning = show_warning
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    # A parent that is killed cannot end its children.
    threading.Thread(target=end_with_parent, daemon=True).start()
