"""The interpreter ends while kernels run on threads that nobody waits for."""

import subprocess
import sys

PROGRAM = """
import threading, time
import numpy as np
from qpsbgd_qubo.kernels import NEVER, kernels

n, began = 300, threading.Event()
couplings = np.random.default_rng(0).standard_normal((n, n))
couplings += couplings.T
sites, hot = np.arange(n, dtype=np.int32), np.full(10**6, 1.0)

def work():
    spins = np.ones((4, n))
    fields, counts = spins @ couplings, np.zeros(4, np.int64)
    began.set()
    while True:
        if {annealing}:
            kernels.anneal(couplings, fields, spins, sites, hot, np.arange(1, 5, dtype=np.uint64), counts, NEVER, 2)
        else:
            kernels.search(couplings, fields, spins, np.zeros(4), counts, 2**62, 2**62, 2, 0, NEVER, 2)

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
began.wait()
time.sleep(0.1)
print("leaving")
"""


def test_a_daemon_thread_in_a_kernel_does_not_abort_the_process():
    for annealing in (True, False):
        program = PROGRAM.format(annealing=annealing)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


def test_a_fork_leaves_although_its_parent_was_in_a_kernel():
    program = PROGRAM.format(annealing=True).replace('print("leaving")', "") + (
        "import os, sys\npid = os.fork()\nif pid == 0:\n    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "3\n")
