"""OpenMP's wait policy, which must be set before the first library that uses OpenMP is loaded."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Let waiting OpenMP threads of this process and its children sleep, unless the user has set a policy.

    By default they spin for a while, against whatever else runs: beside one busy process that made small networks 40
    times slower. It has no effect where torch or numpy are loaded already.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
