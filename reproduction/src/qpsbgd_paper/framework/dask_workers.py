"""The runs of an experiment on a Dask cluster; results come back to this machine."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, final

import torch

from qpsbgd import __version__
from qpsbgd_paper.framework.workers import Pool

try:
    import distributed
    from distributed.scheduler import KilledWorker
except ImportError as error:
    raise ImportError("--dask needs dask.distributed: pip install 'qpsbgd[dask]'") from error

Answer = TypeVar("Answer")
dask: Any = distributed  # most of it has no types

CONNECT_SECONDS = 10
_ONE_RUN = threading.Lock()
"""Held by the run of a worker process: runs share torch's random numbers, so a second one waits."""


@final
class DaskWorkers(Pool):
    """The workers of a Dask cluster, one job at a time in each; torch has one thread.

    Nothing is read from or written to a disk that the workers share. A worker that is lost costs what it was doing:
    Dask gives that job to another one. Workers may come and go.

    Args:
        address: Address of the scheduler, such as "tcp://host:8786".

    Raises:
        ConnectionError: There is no scheduler, or it has no workers.
        RuntimeError: A worker has no qpsbgd or another version.
    """

    lost = (KilledWorker, distributed.CancelledError)
    advice = "See the logs of the Dask workers: one may lack memory, or the scheduler may have been stopped"
    shares_disk = False

    def __init__(self, address: str) -> None:
        try:
            self._client = dask.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise ConnectionError(
                f"there is no Dask scheduler at {address!r} ({error}): give the address that `dask scheduler` prints, "
                "such as tcp://host:8786"
            ) from error
        try:
            self._check_workers(address)
        except BaseException:
            self._client.close()
            raise
        self._open: set[Any] = set()

    @property
    def count(self) -> int:
        """The number of worker processes now."""
        return max(1, len(self._client.nthreads()))

    def takes(self, jobs: int) -> bool:
        """All jobs, even a single one: data may be with the workers alone."""
        return True

    def submit(self, work: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        """Start work(*arguments) on a worker."""
        answer: Future[Answer] = Future()
        remote = self._client.submit(_alone, work, *arguments, pure=False)
        self._open.add(remote)
        remote.add_done_callback(partial(self._hand_over, answer))
        return answer

    def _hand_over(self, answer: Future[Any], remote: Any) -> None:
        try:
            result = remote.result()
        except BaseException as error:
            answer.set_exception(error)
        else:
            # Before anyone hears of it: Dask would compute again what is still wanted and lost with its worker.
            remote.release()
            answer.set_result(result)
        self._open.discard(remote)

    def everywhere(self, work: Callable[[], None]) -> None:
        """Call work() once on every worker."""
        calls = [
            self._client.submit(_prepared, work, workers=[address], allow_other_workers=True, pure=False)
            for address in self._client.nthreads()
        ]
        self._client.gather(calls)

    def stop(self) -> None:
        """Cancel what has not begun and leave the cluster; what runs ends on its worker, and its result is dropped."""
        if self._client.status != "closed":
            self._client.cancel(list(self._open))
            self._client.close()

    def _check_workers(self, address: str) -> None:
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError as error:
            raise ConnectionError(
                f"the Dask scheduler at {address!r} has no workers: start some with "
                f"`dask worker {address} --nthreads 1`"
            ) from error
        for worker, found in self._client.get_versions(packages=["qpsbgd"])["workers"].items():
            version = found["packages"].get("qpsbgd")
            if version != __version__:
                raise RuntimeError(
                    f"the Dask worker {worker} needs qpsbgd {__version__}, as here, and has {version or 'none'}: "
                    "install 'qpsbgd[paper,dask]' there in this version and start it again"
                )


def _alone(work: Callable[..., Answer], *arguments: Any) -> Answer:
    with _ONE_RUN:
        torch.set_num_threads(1)
        return work(*arguments)


def _prepared(work: Callable[[], None]) -> None:
    try:
        with _ONE_RUN:
            work()
    except Exception as error:
        raise RuntimeError(f"on the Dask worker {dask.get_worker().address}: {error}") from error
