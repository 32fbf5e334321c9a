import os

import torch

from qpsbgd_paper.framework.workers import THREADS, local_workers

VARIABLES = (*THREADS, "OMP_WAIT_POLICY")


def seen_by_a_worker():
    return {name: os.environ.get(name) for name in VARIABLES}, torch.get_num_threads()


def test_workers_start_with_one_thread_that_does_not_spin_while_it_waits(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with local_workers(1) as workers:
        environment, threads = workers.executor.submit(seen_by_a_worker).result()
    assert environment == {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    assert threads == 1
    assert not set(THREADS) & set(os.environ), "this process keeps its own"


def test_what_the_user_has_set_is_left_as_it_is(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with local_workers(1):
        assert [os.environ[name] for name in VARIABLES] == ["1", "2", "active"]
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("2", "active")
