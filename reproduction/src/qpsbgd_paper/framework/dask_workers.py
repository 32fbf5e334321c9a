"""The runs of an experiment on a Dask cluster; results come back to this machine."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

from qpsbgd import __version__
from qpsbgd_paper.framework.workers import Workers

try:
    import distributed
    from distributed.scheduler import KilledWorker
except ImportError as error:
    raise ImportError("--dask needs dask.distributed: pip install './reproduction[dask]'") from error

dask: Any = distributed  # most of it has no types

CONNECT_SECONDS = 10


@contextmanager
def dask_workers(address: str) -> Iterator[Workers]:
    """The workers of the Dask cluster whose scheduler has this address, such as "tcp://host:8786"; they share no disk.

    They may come and go: Dask gives a lost one's job to another. At the end, what has not begun is cancelled.
    """
    try:
        client = dask.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ConnectionError(
            f"there is no Dask scheduler at {address!r} ({error}): give the address that `dask scheduler` prints, "
            "such as tcp://host:8786"
        ) from error
    with client:
        _check_workers(client, address)
        executor = client.get_executor(pure=False)
        try:
            yield Workers(
                executor,
                count=lambda: max(1, len(client.nthreads())),
                everywhere=lambda work: _call_on_workers(client, work),
                lost=(KilledWorker, CancelledError),
                advice="See the logs of the Dask workers: one may lack memory, or the scheduler may have been stopped",
                shares_disk=False,
            )
        finally:
            if client.status != "closed":
                executor.shutdown(wait=False)


def _check_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError as error:
        raise ConnectionError(
            f"the Dask scheduler at {address!r} has no workers: start some with `dask worker {address} --nthreads 1`"
        ) from error
    for worker, details in client.get_versions(packages=["qpsbgd"])["workers"].items():
        version = details["packages"].get("qpsbgd")
        if version != __version__:
            raise RuntimeError(
                f"the Dask worker {worker} needs qpsbgd {__version__}, as here, and has {version or 'none'}: "
                "install 'qpsbgd[paper,dask]' there in this version and start it again"
            )


def _call_on_workers(client: Any, work: Callable[[], object]) -> None:
    # As a task: what `Client.run` calls blocks the worker's connections, for a download too long.
    calls = [
        client.submit(_named, work, workers=[address], allow_other_workers=True, pure=False)
        for address in client.nthreads()
    ]
    client.gather(calls)


def _named(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as error:
        raise RuntimeError(f"on the Dask worker {dask.get_worker().address}: {error}") from error
