"""Runs of an experiment: many small jobs over processes, each result kept as soon as it is there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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


def run_jobs(
    work: Callable[..., Result], jobs: Sequence[Settings], *, folder: Path, workers: int = 1
) -> Iterator[Finished]:
    """The results of work(**settings) for all jobs, in the order in which they are done.

    Every result becomes a file in `folder` at once, whole or not at all. A later call with the same settings reads
    it instead of computing it again, so that what was interrupted goes on where it stopped.

    Args:
        work: A function at a module's top level; torch has one thread in it when there are several workers.
        jobs: Keyword arguments for `work`, of plain JSON types.
        folder: Where results are kept; made if it is not there.
        workers: Processes to use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for job in jobs:
        kept = _read(_path(folder, work, job), job)
        if kept is None:
            missing.append(job)
        else:
            yield Finished(job, kept, True)
    for job, result in _compute(work, missing, workers=workers):
        write_json(_path(folder, work, job), {"settings": dict(job), "made with": environment(), "result": result})
        yield Finished(job, result, False)


def _compute(
    work: Callable[..., Result], jobs: Sequence[Settings], *, workers: int
) -> Iterator[tuple[Settings, Result]]:
    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield job, work(**job)
        return
    # A forked child of a process that used OpenMP hangs, so children start afresh.
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        waiting = {pool.submit(work, **job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    except BaseException:
        # Also when the caller stops listening or presses Ctrl-C: what runs is ended, what is done is kept.
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that the file is there whole or not at all, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text so that the file is there whole or not at all."""
    with writing(path) as file:
        file.write(text.encode())


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
