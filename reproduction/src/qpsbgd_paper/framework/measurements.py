"""Tools that benchmarks share: files for their results, and medians of times."""

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from qpsbgd_paper.framework.result_files import environment, write_json

Answer = TypeVar("Answer")


def publish(script: str, **content: Any) -> None:
    """Write results and what they were made with to results/NAME.json, or to the file that the command line names."""
    place = Path(script)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else place.parents[2] / "results" / f"{place.stem}.json"
    write_json(target, {"made with": environment(), **content})


def print_rows(rows: Iterable[Answer]) -> list[Answer]:
    """All rows, each printed as soon as it is measured."""
    measured = []
    for row in rows:
        print(row, flush=True)  # noqa: T201 - what a benchmark prints
        measured.append(row)
    return measured


def median_seconds(work: Callable[[], Answer], repeats: int, *, unmeasured: int = 1) -> tuple[float, Answer]:
    """The median time of a call, after some that are not measured since they may compile, and the last answer."""
    seconds = []
    for _ in range(unmeasured + repeats):
        start = time.perf_counter()
        answer = work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[unmeasured:]), answer
