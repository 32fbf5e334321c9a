"""A clock that compiled kernels can look at while they run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@contextmanager
def deadline(seconds: float | None) -> Iterator[Array]:
    """A flag of shape (1,) that turns from 0 to 1 when the time is up; it stays 0 for None.

    Kernels see it change if they release the GIL.
    """
    passed = np.zeros(1, np.uint8)
    if seconds is None:
        yield passed
        return
    if seconds == 0:
        passed.fill(1)
    # A thread cannot wait for longer than this, which is some centuries.
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), passed.fill, (1,))
    timer.daemon = True
    timer.start()
    try:
        yield passed
    finally:
        timer.cancel()
