import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from lazy import Lazy

from qpsbgd_paper.framework.runs import RunFailed, run_jobs

distributed, dask_module = Lazy("distributed"), Lazy("qpsbgd_paper.framework.dask_workers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs distributed"),
    pytest.mark.filterwarnings("default"),  # of Dask's own threads
]


def square(*, x, log=None, seconds=0.0, fail=False):
    """A run that says in a file that it was made; its result is drawn from x as a seed."""
    import torch

    if log is not None:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{x}\n")
    torch.manual_seed(x)
    time.sleep(seconds)
    if fail == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fail:
        raise ValueError("planned")
    return {"square": x * x, "drawn": float(torch.rand(()))}


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster


def results(jobs, folder, **options):
    done = run_jobs(square, jobs, experiment="toy", folder=folder, **options)
    return {one.settings["x"]: one for one in done}


def figures(found):
    return {x: {key: value for key, value in one.result.items() if key != "seconds"} for x, one in found.items()}


def test_runs_on_a_cluster_give_the_results_of_runs_here(cluster, tmp_path):
    jobs = [{"x": x} for x in range(6)]
    with dask_module.dask_workers(cluster.scheduler_address) as workers:
        assert workers.count() == 2
        there = results(jobs, tmp_path / "there", workers=workers)
        assert figures(there) == figures(results(jobs, tmp_path / "here"))
        assert len(list((tmp_path / "there").glob("*.json"))) == 6
        again = results(jobs, tmp_path / "there", workers=workers)
    assert all(one.reused for one in again.values())
    content = json.loads(next((tmp_path / "there").glob("*.json")).read_text(encoding="utf-8"))
    assert "torch" in content["made with"]


def test_a_killed_worker_loses_nothing(cluster, tmp_path):
    log = tmp_path / "log"
    jobs = [{"x": x, "log": str(log), "seconds": 0.3} for x in range(8)]
    finished = []
    with dask_module.dask_workers(cluster.scheduler_address) as workers:
        for one in run_jobs(square, jobs, experiment="toy", folder=tmp_path / "runs", workers=workers):
            finished.append(one.settings["x"])
            if len(finished) == 2:
                os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
                made = log.read_text(encoding="utf-8").split()
    assert sorted(finished) == list(range(8))
    all_made = log.read_text(encoding="utf-8").split()
    repeated = {x for x in all_made if all_made.count(x) > 1}
    assert len(all_made) <= 9 and not repeated & set(map(str, finished[:2])), "only what was under way is made again"
    assert made
    here = figures(results([{"x": x, "log": str(log), "seconds": 0.3} for x in range(8)], tmp_path / "runs"))
    assert here == {x: figures(results([{"x": x}], tmp_path / "here"))[x] for x in range(8)}


def test_a_run_that_fails_is_named_and_the_others_are_kept(cluster, tmp_path):
    jobs = [{"x": 1, "seconds": 0.2}, {"x": 2, "fail": True}, {"x": 3}, {"x": 4}]
    with dask_module.dask_workers(cluster.scheduler_address) as workers, pytest.raises(RunFailed) as failure:
        results(jobs, tmp_path, workers=workers)
    assert "toy: the run with x 2, fail True failed: ValueError: planned" in str(failure.value)
    assert len(list(tmp_path.glob("*.json"))) >= 1


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x", "127.0.0.1:port"])
def test_an_address_without_a_scheduler_is_told(address, monkeypatch):
    monkeypatch.setattr("qpsbgd_paper.framework.dask_workers.CONNECT_SECONDS", 1)
    with (
        pytest.raises(ConnectionError, match=r"there is no Dask scheduler at .*dask scheduler"),
        dask_module.dask_workers(address),
    ):
        pass


def test_without_dask_the_line_to_install_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    spec = importlib.util.find_spec("qpsbgd_paper.framework.dask_workers")
    with pytest.raises(ImportError, match=r"pip install './reproduction\[dask\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_run_that_kills_its_workers_is_named(tmp_path):
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as cluster,
        dask_module.dask_workers(cluster.scheduler_address) as workers,
        pytest.raises(RunFailed, match=r"a process was killed.*x 1.*See the logs of the Dask workers"),
    ):
        results([{"x": 1, "fail": "killed"}], tmp_path, workers=workers)
