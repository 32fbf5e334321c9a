"""What every test suite of the repository does first: a conftest.py takes it over by `from suite import *`."""

import os
import signal
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded

# Assertions are rewritten once, not at every start: that takes longer than all else in collecting the tests.
sys.dont_write_bytecode = False

import pytest
from hypothesis import settings

try:
    import torch
except ImportError:
    torch = None

__all__ = ["no_waiting_for_the_disk", "repeatable"]

# A shell's background job inherits Ctrl-C as ignored, and tests of interrupts would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines stall now and then, and a test must say the same twice.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def repeatable():
    if torch is None:
        yield
        return
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the whole stack for every device that is missing
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """No test sees whether a file would outlast a power cut, and to make sure of it takes milliseconds per file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which raises for closed files, too
        yield
