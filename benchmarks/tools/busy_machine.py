"""One process that keeps a core busy, for measurements beside it."""

import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def beside_a_busy_process():
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()
