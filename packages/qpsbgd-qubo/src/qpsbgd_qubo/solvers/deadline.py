"""What ends a search early: a clock that compiled kernels can look at while they run, and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np

from qpsbgd_qubo.kernels import Array


@dataclass
class Interruption:
    """What Ctrl-C ends."""

    came: bool = False  # whether it was pressed
    flags: list[Array] = field(default_factory=list)  # of all searches that run
    # Called now and then by searches that have one with the lowest energy so far, the rounds made and the seconds left
    report: Callable[[float, int, float], None] | None = None


_CURRENT: ContextVar[Interruption | None] = ContextVar("interruption", default=None)


@contextmanager
def best_on_interrupt(report: Callable[[float, int, float], None] | None = None) -> Iterator[Interruption]:
    """Inside, the first Ctrl-C lets solvers return the best they have; the second raises KeyboardInterrupt as always.

    It acts on solvers that can be stopped: those with a `deadline`, as in all searches but "quantum-annealing".
    """
    found = Interruption(report=report)

    def handle(*_: object) -> None:
        found.came = True
        for flag in found.flags:
            flag.fill(1)
        signal.signal(signal.SIGINT, before)

    token = _CURRENT.set(found)
    before = signal.getsignal(signal.SIGINT)
    # A handler that was not installed by Python is None here and could not be put back.
    handled = threading.current_thread() is threading.main_thread() and before is not None
    if handled:
        signal.signal(signal.SIGINT, handle)
    try:
        yield found
    finally:
        _CURRENT.reset(token)
        if handled:
            signal.signal(signal.SIGINT, before)


def report(energy: float, rounds: int, left: float) -> None:
    """Tell whoever asked in `best_on_interrupt` how far a search has got."""
    current = _CURRENT.get()
    if current is not None and current.report is not None:
        current.report(energy, rounds, left)


@contextmanager
def deadline(seconds: float | None) -> Iterator[Array]:
    """A flag of shape (1,) that turns from 0 to 1 when the time is up, or by Ctrl-C inside `best_on_interrupt`.

    Kernels see it change, since they release the GIL.
    """
    passed, current = np.zeros(1, np.uint8), _CURRENT.get()
    if current is not None:
        current.flags.append(passed)
    if seconds == 0 or (current is not None and current.came):
        passed.fill(1)
    timer = None
    if seconds is not None:
        # A thread cannot wait for longer than this, which is some centuries.
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), passed.fill, (1,))
        timer.daemon = True
        timer.start()
    try:
        yield passed
    finally:
        if timer is not None:
            timer.cancel()
        if current is not None:
            current.flags[:] = [flag for flag in current.flags if flag is not passed]
