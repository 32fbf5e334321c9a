import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from closeness import assert_close

from qpsbgd_qubo.solvers import best_on_interrupt, make_solver
from qpsbgd_qubo.testing import random_family

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C otherwise")


def press_soon(seconds=0.3):
    """Ctrl-C, a little later."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


LONG = {
    "portfolio": ({"time_limit": 60}, 300),
    "descent": ({"tabu": 2**40}, 300),
    "exact": ({"node_limit": 2**62, "time_limit": 60}, 100),
    "annealing": ({"sweeps": 10**7, "reads": 10**9}, 100),
}


@POSIX
@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_raises_soon(name):
    options, n = LONG[name]
    solver, family = make_solver(name, **options), random_family(n, 1, n, scale=0.1)
    timer = press_soon()
    with pytest.raises(KeyboardInterrupt):
        solver.solve(family)
    timer.join()


@POSIX
def test_ctrl_c_ends_the_searches_of_all_columns():
    program = (
        "from qpsbgd_qubo.solvers import make_solver\nfrom qpsbgd_qubo.testing import random_family\n"
        "family = random_family(300, 5, 300, scale=0.1)\nprint(flush=True)\n"
        "make_solver('portfolio', rounds=10**6).solve(family)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        try:
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in error


@POSIX
@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_gives_the_best_so_far_where_that_is_asked_for(name):
    options, n = LONG[name]
    solver, family = make_solver(name, **options), random_family(n, 1, n, scale=0.1)
    timer = press_soon()
    with best_on_interrupt() as interruption:
        solution = solver.solve(family)
    timer.join()
    assert interruption.came and not solution.proven_optimal.any()
    assert_close(solution.energies, family.energies(solution.spins))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@POSIX
def test_the_second_ctrl_c_raises():
    with pytest.raises(KeyboardInterrupt), best_on_interrupt() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.came
        os.kill(os.getpid(), signal.SIGINT)


def test_searches_report_how_far_they_are():
    told = []
    with best_on_interrupt(lambda *facts: told.append(facts)):
        make_solver("portfolio", rounds=3).solve(random_family(100, 1, 20))
    energies, rounds, left = zip(*told, strict=True)
    assert rounds == (1, 2, 3) and list(energies) == sorted(energies, reverse=True) and set(left) == {np.inf}


@pytest.mark.parametrize(
    ("name", "value"),
    [("auto", "problem.txt"), ("exact", {(0, 1): 1.0}), ("portfolio", np.eye(2)), ("descent", None)],
)
def test_what_is_not_a_family_is_refused_with_the_right_call(name, value):
    with pytest.raises(TypeError, match=r"use qpsbgd_qubo\.solve") as caught:
        make_solver(name).solve(value)
    assert f"got {type(value).__name__}" in str(caught.value)
