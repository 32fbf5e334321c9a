"""Runs of an experiment: many small jobs, each result kept in a file as soon as it is there."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from qpsbgd.solvers.annealer.budget import BudgetSpent
from qpsbgd_paper.framework.result_files import as_json, environment, write_json
from qpsbgd_paper.framework.workers import Workers

Settings = Mapping[str, Any]
Result = dict[str, Any]
Work = Callable[..., Result]

GO_ON = "Finished runs are kept; the same command goes on from here."


class RunFailed(RuntimeError):
    """A run raised an error or was stopped; the message names its settings and what to do."""


@dataclass(frozen=True)
class Finished:
    """A job's settings and result; `reused` when an earlier call had made it."""

    settings: Settings
    result: Result
    reused: bool


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

    Every result becomes a file in `folder` at once, whole or not at all. A later call with the same settings reads
    it instead of computing it again, so that what was interrupted goes on where it stopped. Where a job fails, no new
    one is started, those that are running are finished and kept, then the failure is raised.

    Args:
        work: A function at a module's top level.
        jobs: Keyword arguments for `work`, of plain JSON types.
        experiment: Its name, for error messages.
        folder: Where results are kept; made if it is not there.
        workers: Processes to use; without them jobs run here, one by one.
        fresh: Compute all again; kept results are replaced one by one.

    Raises:
        RunFailed: A job raised an error, spent its budget, or its process was killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for job in jobs:
        kept = None if fresh else _read(_path(folder, work, job), job)
        if kept is None:
            missing.append(job)
        else:
            yield Finished(job, kept, True)
    for job, result in _compute(work, missing, experiment=experiment, workers=workers):
        write_json(_path(folder, work, job), {"settings": dict(job), "made with": environment(), "result": result})
        yield Finished(job, result, False)


def kept_results(work: Work, jobs: Sequence[Settings], *, experiment: str, folder: Path) -> list[Result]:
    """The results of jobs that are done, in their order.

    Raises:
        FileNotFoundError: Some are not done yet.
    """
    found = [_read(_path(folder, work, job), job) for job in jobs]
    present = [result for result in found if result is not None]
    if len(present) < len(jobs):
        raise FileNotFoundError(
            f"{len(jobs) - len(present)} of {len(jobs)} runs of {experiment} are not in {folder}: run "
            f"`qpsbgd run {experiment}` first, with the same options"
        )
    return present


def _compute(
    work: Work, jobs: Sequence[Settings], *, experiment: str, workers: Workers | None
) -> Iterator[tuple[Settings, Result]]:
    if workers is None or workers.count <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield job, _timed(work, job, experiment)
        return
    queue = iter(jobs)
    running: dict[Future[Result], Settings] = {}
    failed: list[RunFailed] = []
    killed: list[Settings] = []
    while True:
        if not failed and not killed:
            # No more than there are processes: what has not begun when a job fails must not begin afterwards.
            for job in islice(queue, workers.count - len(running)):
                running[workers.submit(_timed, work, job, experiment)] = job
        if not running:
            break
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(done)
            try:
                result = done.result()
            except RunFailed as failure:
                failed.append(failure)
            except BrokenProcessPool:
                killed.append(job)
            else:
                yield job, result
    if killed:
        workers.stop()
        failed.append(RunFailed(_killed(experiment, killed)))
    if failed:
        raise RunFailed("\n".join(map(str, failed))) from failed[0]


def _timed(work: Work, job: Settings, experiment: str) -> Result:
    begin = time.process_time()  # of this process alone, however busy the machine is
    try:
        result = work(**job)
    except BudgetSpent as error:
        raise RunFailed(
            f"{experiment}: the run with {_described(job)} was stopped: {error}. It is not counted as done. Finished "
            "runs are kept and not paid for again; the same command with a larger --option max_qpu_seconds goes on "
            "from here"
        ) from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise RunFailed(f"{experiment}: the run with {_described(job)} failed: {what}. {GO_ON}") from error
    return {**as_json(result), "seconds": round(time.process_time() - begin, 3)}


def _killed(experiment: str, jobs: Sequence[Settings]) -> str:
    which = "; or ".join(_described(job) for job in jobs)
    return (
        f"{experiment}: a process was killed, perhaps for lack of memory, during the run with {which}. "
        f"{GO_ON} Fewer --workers need less memory"
    )


def _described(job: Settings) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in job.items())


def _path(folder: Path, work: Work, job: Settings) -> Path:
    identity = json.dumps([version("qpsbgd"), work.__module__, work.__name__, _without_limits(job)], sort_keys=True)
    return folder / f"{work.__module__.split('.')[-1]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


def _read(path: Path, job: Settings) -> Result | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if _without_limits(content["settings"]) != json.loads(json.dumps(_without_limits(job))):
            raise ValueError("it was made with other settings")
        result: Result = content["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a result of this job ({error}); delete it to compute it again") from error
    return result


def _without_limits(settings: Any) -> Any:
    """Settings without what a run may spend: a finished run is the same under any limit."""
    if isinstance(settings, Mapping):
        return {key: _without_limits(value) for key, value in settings.items() if key != "max_qpu_seconds"}
    return settings
