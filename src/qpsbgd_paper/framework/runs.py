"""Runs of an experiment: many small jobs over processes, each result kept as soon as it is there."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from qpsbgd.atomic import writing

Settings = Mapping[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """A job's settings and result; `reused` when an earlier call had made it."""

    settings: Settings
    result: Result
    reused: bool


class Workers:
    """Processes for jobs, started on the first job and shared by all that follow; torch has one thread in each.

    Use it in a `with` block: what still runs at its end, or when Ctrl-C ends it, is stopped.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            for process in list(self._pool._processes.values()):
                process.terminate()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def submit(self, work: Callable[..., Result], job: Settings) -> Future[Result]:
        """Start a job as soon as a process is free."""
        if self._pool is None:
            # A forked child of a process that used OpenMP hangs, so children start afresh.
            self._pool = ProcessPoolExecutor(
                self.count, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare_worker
            )
        return self._pool.submit(_timed, work, job)


def _prepare_worker() -> None:
    torch.set_num_threads(1)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for scipy's, which is loaded later
    with contextlib.suppress(ImportError):  # of scikit-learn; numpy would take all cores in every process
        threadpoolctl = importlib.import_module("threadpoolctl")
        threadpoolctl.threadpool_limits(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    # A parent that is killed cannot end its children.
    threading.Thread(target=end_with_parent, daemon=True).start()


def _timed(work: Callable[..., Result], job: Settings) -> Result:
    begin = time.process_time()  # of this process alone, however busy the machine is
    result = work(**job)
    return {**result, "seconds": round(time.process_time() - begin, 3)}


def run_jobs(
    work: Callable[..., Result],
    jobs: Sequence[Settings],
    *,
    folder: Path,
    workers: Workers | None = None,
    fresh: bool = False,
) -> Iterator[Finished]:
    """The results of work(**settings) for all jobs, in the order in which they are done.

    Every result becomes a file in `folder` at once, whole or not at all. A later call with the same settings reads
    it instead of computing it again, so that what was interrupted goes on where it stopped.

    Args:
        work: A function at a module's top level.
        jobs: Keyword arguments for `work`, of plain JSON types.
        folder: Where results are kept; made if it is not there.
        workers: Processes to use; without them jobs run here, one by one.
        fresh: Compute all anew; what is kept is replaced, one by one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for job in jobs:
        kept = None if fresh else _read(_path(folder, work, job), job)
        if kept is None:
            missing.append(job)
        else:
            yield Finished(job, kept, True)
    for job, result in _compute(work, missing, workers=workers):
        write_json(_path(folder, work, job), {"settings": dict(job), "made with": environment(), "result": result})
        yield Finished(job, result, False)


def _compute(
    work: Callable[..., Result], jobs: Sequence[Settings], *, workers: Workers | None
) -> Iterator[tuple[Settings, Result]]:
    if workers is None or workers.count <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield job, _timed(work, job)
        return
    waiting = {workers.submit(work, job): job for job in jobs}
    # What is left when a job fails is stopped by `Workers`: a future cancelled here would trip the pool's own thread.
    for done in as_completed(waiting):
        yield waiting[done], done.result()


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that the file is there whole or not at all, whatever happens meanwhile."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text so that the file is there whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, in a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        file.write(content)


def write_result(path: Path, content: Result) -> Path | None:
    """Write an experiment's result; one with other numbers is moved aside first, and its new place returned."""
    changing = ("made with", "seconds of training")
    older: Path | None = None
    if path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            before = {}
        after = json.loads(json.dumps(content))
        if any(before.get(key) != after.get(key) for key in {*before, *after} - {*changing}):
            names = (path.with_name(f"{path.stem}.{count}.json") for count in itertools.count(1))
            older = next(name for name in names if not name.exists())
            path.rename(older)
    write_text(path, json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")
    return older


def environment() -> dict[str, str]:
    """Versions and hardware that a result was made with."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "cpus": str(os.cpu_count())}
    for package in ("qpsbgd", "torch", "numpy", "numba"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _path(folder: Path, work: Callable[..., Result], job: Settings) -> Path:
    identity = json.dumps([version("qpsbgd"), work.__module__, work.__name__, job], sort_keys=True)
    return folder / f"{work.__module__.split('.')[-1]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


def _read(path: Path, job: Settings) -> Result | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["settings"] != json.loads(json.dumps(dict(job))):
            raise ValueError("it was made with other settings")
        result: Result = content["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a result of this job ({error}); delete it to compute it again") from error
    return result
