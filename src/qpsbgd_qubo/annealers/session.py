"""An annealer solver's connection, its cost so far and its position in a recording."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from qpsbgd_qubo.annealers.budget import Budget
from qpsbgd_qubo.annealers.submissions import Link

T = TypeVar("T")


class Session:
    """One connection to a service, opened when it is first needed, and the count of what was sent through it.

    `place` is where to go on in the recording: the `place` of another session.
    """

    def __init__(self, budget: Budget, *, place: dict[str, Any] | None = None) -> None:
        self.budget = budget
        self._place = place or {}
        self._opened: tuple[Any, Link] | None = None
        self._known: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def open(self, make: Callable[[], tuple[Any, Link]]) -> tuple[Any, Link]:
        """The sampler and the link to it: the open ones, or else those that `make` opens."""
        with self._lock:
            if self._opened is None:
                sampler, link = make()
                try:
                    link.load_state_dict(self._place)
                except BaseException:
                    link.close()
                    raise
                self._opened = sampler, link
            return self._opened

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, worked out once per connection."""
        with self._lock:
            if key not in self._known:
                self._known[key] = make()
            return cast("T", self._known[key])

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """One thread at a time; after a failure, recorded answers are given again instead of bought again."""
        with self._lock:
            before = self.place
            try:
                yield
            except BaseException:
                self.place = before
                raise

    @property
    def place(self) -> dict[str, Any]:
        """How far the recording was used; empty without one."""
        return self._place if self._opened is None else self._opened[1].state_dict()

    @place.setter
    def place(self, place: dict[str, Any]) -> None:
        if self._opened is not None:
            self._opened[1].load_state_dict(place)
        self._place = place

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        with self._lock:
            if self._opened is not None:
                self._place = self.place
                self._opened[1].close()
                self._opened = None
                self._known.clear()

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the interpreter much is gone already
            self.close()
