"""Programs and functions in processes of their own, which may crash or starve; for attacks.py."""

import contextlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

FORKS = multiprocessing.get_context("fork")


def output(code, **settings):
    """What a program prints in an environment with other settings; None leaves a variable out. None if it fails."""
    changed = {name: value for name, value in (os.environ | settings).items() if value is not None}
    done = subprocess.run([sys.executable, "-c", code], env=changed, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def in_fork(function, *arguments):
    """What a function returns in a fork of this process, which itself never solves; None if it does not end well."""
    here, there = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=lambda: there.send(function(*arguments)))
    child.start()
    there.close()
    found = None
    with contextlib.suppress(EOFError):
        found = here.recv()
    child.join()
    return found


def limit(memory, seconds):
    """Let this process have so many bytes more than now, and end it after so many seconds."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory,) * 2)
    signal.alarm(seconds)
