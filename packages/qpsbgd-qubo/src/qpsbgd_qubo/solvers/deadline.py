"""What ends a search early: a clock that compiled kernels can look at while they run, and Ctrl-C."""

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
    flags: dict[int, Array] = field(default_factory=dict)  # of all searches that run, on any thread
    # Called now and then by searches that have one with the lowest energy so far, the rounds made and the seconds left
    report: Callable[[float, int, float], None] | None = None

    def end(self) -> None:
        """End all searches that run, and those that begin later."""
        self.came = True
        for flag in list(self.flags.values()):
            flag.fill(1)


_CURRENT: ContextVar[tuple[Interruption, ...]] = ContextVar("interruptions", default=())  # the innermost last


@contextmanager
def best_on_interrupt(report: Callable[[float, int, float], None] | None = None) -> Iterator[Interruption]:
    """Inside, the first Ctrl-C lets solvers return the best they have; the second raises KeyboardInterrupt as always.

    It acts on solvers that can be stopped: those with a `deadline`, as in all searches but "quantum-annealing".
    """
    interruption = Interruption(report=report)

    def handle(*_: object) -> None:
        interruption.end()
        signal.signal(signal.SIGINT, before)

    token = _CURRENT.set((*_CURRENT.get(), interruption))
    before = signal.getsignal(signal.SIGINT)
    # A handler that was not installed by Python is None here and could not be put back.
    handled = threading.current_thread() is threading.main_thread() and before is not None
    if handled:
        signal.signal(signal.SIGINT, handle)
    try:
        yield interruption
    finally:
        _CURRENT.reset(token)
        if handled:
            signal.signal(signal.SIGINT, before)


@contextmanager
def ended_by_exceptions() -> Iterator[None]:
    """An exception that leaves it ends what was begun inside, also on threads that run in a copy of the context."""
    inside = Interruption()
    token = _CURRENT.set((*_CURRENT.get(), inside))
    try:
        yield
    except BaseException:
        inside.end()
        raise
    finally:
        _CURRENT.reset(token)


def report(energy: float, rounds: int, left: float) -> None:
    """Tell whoever asked in `best_on_interrupt` how far a search has got."""
    for current in _CURRENT.get():
        if current.report is not None:
            current.report(energy, rounds, left)


@contextmanager
def deadline(seconds: float | None) -> Iterator[Array]:
    """A flag (1,) that turns from 0 to 1, also for running kernels, at the end of the time or by Ctrl-C."""
    passed, current = np.zeros(1, np.uint8), _CURRENT.get()
    for interruption in current:
        interruption.flags[id(passed)] = passed
    if seconds == 0 or any(interruption.came for interruption in current):
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
        for interruption in current:
            del interruption.flags[id(passed)]
