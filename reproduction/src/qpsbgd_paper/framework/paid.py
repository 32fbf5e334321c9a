"""Answers that are paid for: a run keeps them in a file until its result is written, so that none is paid for twice."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from typing import Any

PAID = ("dwave", "leap-hybrid")  # solvers whose answers cost money

_FILES: ContextVar[Iterator[Path] | None] = ContextVar("files of the run's recordings", default=None)


@contextmanager
def keeping_answers(result: Path) -> Iterator[None]:
    """Within the block, solvers that are paid for, or whose QPU time is limited, record beside that result file."""
    token = _FILES.set(result.with_suffix(".chip" if not number else f".{number}.chip") for number in count())
    try:
        yield
    finally:
        _FILES.reset(token)


def with_record(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A solver's options, with `record` where its answers are to be kept.

    A run must make its solvers in the same order each time: the first gets the first file, and so on.
    """
    files = _FILES.get()
    limited = name == "virtual-qpu" and options.get("max_qpu_seconds") is not None
    if files is None or "record" in options or not (name in PAID or limited):
        return dict(options)
    return {**options, "record": next(files)}


def delete_answers(result: Path) -> None:
    """Delete the recordings beside that result file."""
    with os.scandir(result.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(result.stem)]
    for name in names:
        if name.endswith((".chip", ".chip-journal")):
            result.with_name(name).unlink()
