"""Programs and functions in processes of their own, which may crash, hang or starve; for attacks.py and mutants.py."""

import contextlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import traceback
from pathlib import Path


def output(code, **settings):
    """What a program prints in an environment with other settings; None leaves a variable out. None if it fails."""
    changed = {name: value for name, value in (os.environ | settings).items() if value is not None}
    done = subprocess.run([sys.executable, "-c", code], env=changed, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def in_fork(function, *arguments, log=None, patience=None):
    """What a function returns in a fork of this process, which itself never solves; None if it does not end well.

    Args:
        log: A file for what it prints.
        patience: Seconds after which it is killed, with all that it has started.
    """
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            if patience is not None:
                os.setsid()
            if log is not None:
                with Path(log).open("wb") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
            there.send(function(*arguments))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    there.close()
    found = None
    with contextlib.suppress(EOFError):
        if here.poll(patience):
            found = here.recv()
        else:
            os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return found


def limit(memory, seconds):
    """Let this process have so many bytes more than now, and end it after so many seconds."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory,) * 2)
    signal.alarm(seconds)
