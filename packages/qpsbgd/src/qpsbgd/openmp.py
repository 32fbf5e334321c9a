"""OpenMP, which torch uses: its wait policy, which must be set before torch is loaded, and forks."""

import functools
import os
import sys


def wait_passively() -> None:
    """Let torch's waiting threads sleep instead of spin, if torch is not loaded yet and the user has set no policy."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def guard_fork() -> None:
    """Raise in a fork of a process that has called this, where torch may hang; one thread gets as far as this."""
    if _guarding_process() != os.getpid() and sys.platform == "linux":
        raise RuntimeError(
            "this process is a fork of one that had already trained or solved on the CPU, and GNU OpenMP does not "
            'survive a fork; start processes with multiprocessing.get_context("spawn"), or fork before the first step'
        )


@functools.cache
def _guarding_process() -> int:
    """The process that called `guard_fork` first."""
    import torch

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    return os.getpid()
