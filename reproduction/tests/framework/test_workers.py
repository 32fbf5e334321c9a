import os

import torch

from qpsbgd_paper.framework.workers import ENVIRONMENT, Workers, _environment


def seen_by_a_worker():
    return {name: os.environ.get(name) for name in ENVIRONMENT}, torch.get_num_threads()


def test_workers_start_with_one_thread_that_does_not_spin_while_it_waits(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    with Workers(1) as workers:
        environment, threads = workers.submit(seen_by_a_worker).result()
    assert environment == {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    assert threads == 1
    assert not set(ENVIRONMENT) & set(os.environ), "this process keeps its own"


def test_what_the_user_has_set_is_left_as_it_is(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with _environment():
        assert (os.environ["OMP_WAIT_POLICY"], os.environ["OMP_NUM_THREADS"]) == ("active", "1")
    assert os.environ["OMP_WAIT_POLICY"] == "active"
