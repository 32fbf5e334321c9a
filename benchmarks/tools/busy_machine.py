"""What does one other busy process cost, and what does OpenMP's wait policy have to do with it?

Medians on two threads, every row in a process of its own: on an otherwise idle machine and beside one process that
keeps a core busy; with OMP_WAIT_POLICY=passive, as our commands set it, and without it. Measured are the forward and
backward pass of a network 64-128-10, a whole training step of it with QP-SBGD, and `auto` on a layer of 128 × 128.

    python benchmarks/tools/busy_machine.py        writes benchmarks/results/busy_machine.json
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager, nullcontext

REPEATS, THREADS = 60, 2


def measure():
    """All figures in this process, as JSON on standard output."""
    import torch
    from torch import nn

    from qpsbgd import QPSBGD
    from qpsbgd.nn import BinaryLinear
    from qpsbgd.solvers import make_solver
    from qpsbgd.testing import random_family
    from qpsbgd_paper.framework.measurements import median_seconds

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(64, 128), nn.Hardtanh(), BinaryLinear(128, 10))
    inputs, targets = torch.randn(32, 64), torch.randint(0, 10, (32,))
    optimizer = QPSBGD(model, lr=0.003)

    def passes():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()

    def step():
        passes()
        optimizer.step()

    step()
    layer, auto = random_family(128, 128, 64), make_solver("auto")
    work = {"passes_ms": passes, "step_ms": step, "auto_ms": lambda: auto.solve(layer)}
    print(json.dumps({name: 1e3 * median_seconds(one, REPEATS, unmeasured=3)[0] for name, one in work.items()}))


@contextmanager
def beside_a_busy_process():
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


def measured():
    others = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for policy in ("passive", None):
        environment = others | ({"OMP_WAIT_POLICY": policy} if policy else {})
        for busy in (False, True):
            with beside_a_busy_process() if busy else nullcontext():
                command = [sys.executable, __file__, "--measure"]
                done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            yield {"policy": policy or "not set", "busy": busy, **json.loads(done.stdout.splitlines()[-1])}


def main():
    from qpsbgd_paper.framework.measurements import publish, shown

    publish(__file__, settings={"threads": THREADS}, results=shown(measured()))


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["--measure"] else main()
