import os
import subprocess
import sys
import textwrap
import warnings

import pytest

from qpsbgd.solvers import compilation

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP and /proc are Linux's")

SOLVE = """
import multiprocessing, os, threading
import numba, torch
from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family

family = random_family(60, 20, 30, scale=0.3)
def solve(_=None):
    return make_solver("descent", tabu=20).solve(family).energies.sum().item()
"""


def fresh_python(script, **environment):
    """What a new interpreter prints for the script; each thread setting holds for a whole process."""
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", SOLVE + textwrap.dedent(script)],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@LINUX
@pytest.mark.parametrize("by", ["call", "environment"])
def test_a_solve_leaves_torch_its_single_thread(by):
    script = f"""
    if {by == "call"}:
        torch.set_num_threads(1)
    def work():
        (torch.randn(1000, 1000) @ torch.randn(1000, 1000)).exp()
    # torch looks at its setting once more when it first works, which would hide a change made before.
    work()
    solve()
    print(torch.get_num_threads(), "omp_get_max_threads() : 1" in torch.__config__.parallel_info())
    before = len(os.listdir("/proc/self/task"))
    work()
    print(len(os.listdir("/proc/self/task")) - before)
    """
    environment = {"OMP_NUM_THREADS": "1"} if by == "environment" else {"NUMBA_NUM_THREADS": "2"}
    assert fresh_python(script, **environment) == ["1", "True", "0"]


THREE_THREADS = """
def found_by_three_threads():
    found = []
    workers = [threading.Thread(target=lambda: found.extend(solve() for _ in range(20))) for _ in range(3)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    return numba.threading_layer(), len(found), len(set(found))
"""


@pytest.fixture(scope="module")
def life():
    """A process with GNU OpenMP that forks, solves in three threads, and forks again."""
    return fresh_python(
        THREE_THREADS
        + """
torch.set_num_threads(2)
(torch.randn(500, 500) @ torch.randn(500, 500)).exp()
fork = multiprocessing.get_context("fork")
with fork.Pool(1) as pool:
    there = pool.apply_async(solve).get(timeout=60)
print(*found_by_three_threads(), there == solve())
with fork.Pool(1) as pool:
    try:
        pool.apply_async(solve).get(timeout=60)
    except RuntimeError as error:
        print('get_context("spawn")' in str(error))
""",
        NUMBA_THREADING_LAYER="omp",
    )


@LINUX
def test_three_python_threads_solve_at_the_same_time(life):
    assert life[:3] == ["omp", "60", "1"]


@LINUX
def test_a_fork_before_the_first_solve_can_solve(life):
    assert life[3] == "True"


@LINUX
def test_a_fork_after_a_solve_is_refused_with_what_to_do_instead(life):
    assert life[4:] == ["True"]


@LINUX
@pytest.mark.parametrize("width", [8, 64])
def test_a_fork_after_a_training_step_is_refused_with_what_to_do_instead(width):
    script = f"""
import multiprocessing, torch
from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear

def train(_=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(BinaryLinear({width}, {width}), torch.nn.Hardtanh(), BinaryLinear({width}, 4))
    optimizer = QPSBGD(model)
    model(torch.randn(4096, {width})).square().mean().backward()
    optimizer.step()

torch.set_num_threads(2)
train()
with multiprocessing.get_context("fork").Pool(1) as pool:
    try:
        pool.apply_async(train).get(timeout=60)
    except RuntimeError as error:
        print('get_context("spawn")' in str(error))
"""
    assert fresh_python(script, NUMBA_THREADING_LAYER="omp") == ["True"]


def test_three_python_threads_take_turns_where_the_layer_needs_it():
    script = THREE_THREADS + "print(*found_by_three_threads())"
    assert fresh_python(script, NUMBA_THREADING_LAYER="workqueue") == ["workqueue", "60", "1"]


@pytest.mark.parametrize(
    ("load", "policy", "warned"), [(0.0, None, False), (64.0, None, True), (64.0, "passive", False)]
)
def test_only_a_busy_machine_without_a_wait_policy_gives_a_warning(monkeypatch, load, policy, warned):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(compilation, "thread_count", lambda: 2)
    monkeypatch.setattr(compilation.time, "process_time", lambda: 30.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compilation._warn_if_waiting_costs()
    assert [("OMP_WAIT_POLICY=passive" in str(each.message)) for each in caught] == [True] * warned
