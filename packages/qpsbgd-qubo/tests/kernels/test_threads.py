import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import qpsbgd_qubo.kernels
from qpsbgd_qubo.kernels import NEVER, kernels, thread_count

PROGRAM = """
import json, multiprocessing, os, threading
import numpy as np
from qpsbgd_qubo.kernels import NEVER, kernels
from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.testing import random_family

family, found = random_family(60, 20, 30, scale=0.3), {}
def solve(_=None):
    return make_solver("descent", tabu=20).solve(family).energies.sum().item()
def search(_=None):
    couplings = np.ones((300, 300)) - np.eye(300)
    spins = np.ones((8, 300))
    flips = np.zeros(8, np.int64)
    kernels.search(couplings, spins @ couplings, spins, np.zeros(8), flips, 10**6, 100, 2, 0, NEVER, 2)
    return spins.sum(), len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 2

if hasattr(os, "fork"):
    fork = multiprocessing.get_context("fork")
    with fork.Pool(1) as pool:
        found["a fork before a solve"] = pool.apply_async(solve).get(timeout=60) == solve()
    with fork.Pool(1) as pool:
        found["a fork after a solve"] = pool.apply_async(solve).get(timeout=60) == solve()
    here = search()
    with fork.Pool(1) as pool:
        there = pool.apply_async(search).get(timeout=60)
    found["threads of a fork"] = here[0] == there[0] and there[1] > 1
answers = []
workers = [threading.Thread(target=lambda: answers.extend(solve() for _ in range(20))) for _ in range(3)]
for worker in workers: worker.start()
for worker in workers: worker.join()
found["three threads"] = len(answers), len(set(answers))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def seen():
    """What a new interpreter sees: the processor's threads are its own, and torch's have not been used."""
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=kept, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def long_search(n=2000):
    """A search that nothing but a flag or a signal ends."""
    couplings = np.random.default_rng(0).standard_normal((n, n))
    couplings = couplings + couplings.T
    np.fill_diagonal(couplings, 0)
    spins = np.ones((1, n))
    fields = spins @ couplings
    return couplings, fields, spins, np.full(1, 1e-9), np.zeros(1, np.int64), 2**62, 2**62, 5, 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_forks_solve_whether_or_not_their_parent_has(seen):
    assert seen["a fork before a solve"] is True
    assert seen["a fork after a solve"] is True


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_fork_has_threads_of_its_own(seen):
    assert seen["threads of a fork"] is True


def test_three_python_threads_solve_at_the_same_time(seen):
    assert seen["three threads"] == [60, 1]


@pytest.mark.parametrize(
    ("setting", "affinity", "limit", "expected"),
    [("", 8, 99, 8), ("3", 8, 99, 3), ("3,2", 8, 99, 3), ("16", 8, 99, 8), ("", 8, 2, 2), ("many", 4, 99, 4)],
)
def test_the_number_of_threads_without_torch(monkeypatch, setting, affinity, limit, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(affinity), raising=False)
    monkeypatch.setattr(qpsbgd_qubo.kernels, "_container_limit", lambda: limit)
    assert thread_count() == expected


def test_a_flag_ends_a_search_from_another_thread():
    stop = np.zeros(1, np.uint8)
    timer = threading.Timer(0.1, stop.fill, (1,))
    timer.start()
    kernels.search(*long_search(), stop, 1)
    timer.join()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGALRM")
@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_signals_handler_raises_ends_a_search(threads):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    couplings, fields, spins, threshold, flips, *limits = long_search()
    two = (np.repeat(part, 2, axis=0) for part in (fields, spins, threshold, flips))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            kernels.search(couplings, *two, *limits, NEVER, threads)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_waiting_threads_sleep():
    work = [
        np.repeat(part, 2, axis=0) if part.ndim != 2 or part.shape[0] == 1 else part for part in long_search(50)[:5]
    ]
    kernels.search(*work, 10**6, 1000, 5, 0, NEVER, 2)
    time.sleep(0.05)
    begin = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begin < 0.1


def test_without_compiled_kernels_importing_says_in_one_line_what_to_do():
    script = "import sys; sys.modules['qpsbgd_qubo.kernels._kernels'] = None; from qpsbgd_qubo import solve"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert re.search(r"^ImportError: .*install a C\+\+ compiler.*apt install g\+\+", done.stderr.splitlines()[-1])
