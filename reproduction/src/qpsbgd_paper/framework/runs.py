"""Runs of an experiment: many small jobs, each result kept in a file as soon as it is there."""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from qpsbgd import __version__
from qpsbgd_paper.framework.checksums import with_checksum, without_checksum
from qpsbgd_paper.framework.paid import delete_answers, keeping_answers
from qpsbgd_paper.framework.result_files import as_json, environment, write_bytes
from qpsbgd_paper.framework.workers import Workers
from qpsbgd_qubo.annealers.budget import BudgetSpent, RecordingError

Settings = Mapping[str, Any]
Result = dict[str, Any]
Work = Callable[..., Result]
_Outcome = tuple[Result, dict[str, str]]  # a result, and what it was made with

GO_ON = "Finished runs are kept; the same command, without --fresh, goes on from here."


class RunFailed(RuntimeError):
    """A run raised an error or was stopped; the message names its settings and what to do."""


class DamagedRun(ValueError):
    """The file of a finished run is not as it was written."""


@dataclass(frozen=True)
class Finished:
    """A job's settings and result; `reused` when an earlier call had made it."""

    settings: Settings
    result: Result
    reused: bool


@dataclass(frozen=True)
class _Task:
    """A job that is still to do, and the file for its result."""

    work: Work
    job: Settings
    experiment: str
    path: Path


def run_jobs(
    work: Work,
    jobs: Sequence[Settings],
    *,
    experiment: str,
    folder: Path,
    workers: Workers | None = None,
    fresh: bool = False,
) -> Iterator[Finished]:
    """The results of work(**settings) for all jobs, in the order in which they are done.

    Every result becomes a file in `folder` at once, complete or not at all; a later call reads it, unless `fresh` or
    damaged. Where a job fails, no new one is started, those that are running are finished and kept, then RunFailed is
    raised. Answers that a job paid for are kept until its result is written. `work` is at a module's top level.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for job in jobs:
        path = _path(folder, work, job)
        try:
            kept = None if fresh else _read(path)
        except DamagedRun as error:
            warnings.warn(f"{error}: the run with {_describe(job)} is done again", stacklevel=2)
            kept = None
        if fresh:
            delete_answers(path)
        if kept is None:
            missing.append(_Task(work, job, experiment, path))
        else:
            yield Finished(job, kept, True)
    for task, (result, made_with) in _compute(missing, workers=workers):
        write_bytes(task.path, with_checksum({"settings": dict(task.job), "made with": made_with, "result": result}))
        delete_answers(task.path)
        yield Finished(task.job, result, False)


def kept_results(work: Work, jobs: Sequence[Settings], *, experiment: str, folder: Path) -> list[Result]:
    """The results of jobs that are done, in their order."""
    try:
        results = [_read(_path(folder, work, job)) for job in jobs]
    except DamagedRun as error:
        raise DamagedRun(f"{error}: `qpsbgd run {experiment}` with the same options does this run again") from error
    present = [result for result in results if result is not None]
    if len(present) < len(jobs):
        raise FileNotFoundError(
            f"{len(jobs) - len(present)} of {len(jobs)} runs of {experiment} are not in {folder}: run "
            f"`qpsbgd run {experiment}` first, with the same options"
        )
    return present


def _compute(tasks: Sequence[_Task], *, workers: Workers | None) -> Iterator[tuple[_Task, _Outcome]]:
    if workers is None:
        for task in tasks:
            yield task, _run(task)
        return
    queue = iter(tasks)
    running: dict[Future[_Outcome], _Task] = {}
    failures: list[RunFailed] = []
    killed: list[_Task] = []

    def begin() -> None:
        if failures or killed:
            return
        # No more than there are processes: what has not begun when a job fails must not begin afterwards.
        for task in islice(queue, workers.count - len(running)):
            try:
                running[workers.executor.submit(_run, task)] = task
            except BrokenProcessPool:
                killed.append(task)

    begin()
    while running:
        finished: list[tuple[_Task, _Outcome]] = []
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            task = running.pop(done)
            try:
                finished.append((task, done.result()))
            except RunFailed as failure:
                failures.append(failure)
            except BrokenProcessPool:
                killed.append(task)
        begin()  # first, so that no process waits while results are written
        yield from finished
    if killed:
        failures.append(RunFailed(_killed_message(killed)))
    if failures:
        raise RunFailed("\n".join(map(str, failures))) from failures[0]


def _run(task: _Task) -> _Outcome:
    begin = time.process_time()  # of this process alone, however busy the machine is
    which = f"{task.experiment}: the run with {_describe(task.job)}"
    try:
        with keeping_answers(task.path):
            result = task.work(**task.job)
    except BudgetSpent as error:
        raise RunFailed(
            f"{which} was stopped: {error}. It is not counted as done, but what was paid is kept: raise --option "
            "max_qpu_seconds and run the same command again, without --fresh, and it goes on from here"
        ) from error
    except RecordingError as error:
        raise RunFailed(
            f"{which} cannot go on from the answers that were paid for: {error}. To pay for them again, delete that "
            f"file. {GO_ON}"
        ) from error
    except Exception as error:
        raise RunFailed(f"{which} failed: {type(error).__name__}: {error}. {GO_ON}") from error
    return {**as_json(result), "seconds": round(time.process_time() - begin, 3)}, environment()


def _killed_message(tasks: Sequence[_Task]) -> str:
    which = "; or ".join(_describe(task.job) for task in tasks)
    return (
        f"{tasks[0].experiment}: a process was killed, perhaps for lack of memory, during the run with {which}. "
        f"{GO_ON} Fewer --workers need less memory"
    )


def _describe(job: Settings) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in job.items())


def _path(folder: Path, work: Work, job: Settings) -> Path:
    identity = json.dumps([__version__, work.__module__, work.__name__, _without_limits(job)], sort_keys=True)
    return folder / f"{work.__module__.split('.')[-1]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> Result | None:
    try:
        result: Result = without_checksum(path.read_bytes())["result"]
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedRun(f"{path} is damaged, {error}") from error
    return result


def _without_limits(settings: Any) -> Any:
    """Settings without what a run may spend: a finished run is the same under any limit."""
    if isinstance(settings, Mapping):
        limits = ("max_qpu_seconds", "ledger")
        return {key: _without_limits(value) for key, value in settings.items() if key not in limits}
    return settings
