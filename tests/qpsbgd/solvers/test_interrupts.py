"""Ctrl-C at a bad moment leaves nothing broken behind."""

import os
import subprocess
import sys

import pytest

SCRIPT = """\
import signal, sys
from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family

family = random_family(24, 6, 40)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
try:
    make_solver("descent").solve(family)
    print("finished")
except KeyboardInterrupt:
    print("interrupted")
signal.setitimer(signal.ITIMER_REAL, 0)
for name in ("descent", "annealing", "exact"):
    print(name, float(make_solver(name).solve(family).energies.sum()))
"""


def lines(seconds, folder):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(seconds)], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.xfail(reason="numba: 'duplicate registration' after an interrupted compilation", strict=False)
@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.5, 3.0])
def test_a_first_solve_that_is_interrupted_leaves_later_ones_as_they_are(tmp_path, seconds):
    expected = lines(1000, tmp_path / "whole")[1:]
    assert lines(seconds, tmp_path / "interrupted")[1:] == expected
