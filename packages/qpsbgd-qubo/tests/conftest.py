import gzip

import numpy as np
import pytest
from suite import *  # noqa: F403


@pytest.fixture
def write(tmp_path):
    """Writes text, bytes or arrays into a file, compressed if its name ends in .gz, and gives the path."""

    def written(name, content):
        path = tmp_path / name
        if isinstance(content, dict):
            np.savez(path, **content)
            return path
        whole = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(whole) if name.endswith(".gz") else whole)
        return path

    return written


@pytest.fixture
def assignments():
    """All 0/1 assignments (2ⁿ, n) of n variables."""
    return lambda n: np.array(list(np.ndindex(*[2] * n)))


@pytest.fixture
def values_of():
    """The problem's own value of every 0/1 assignment (k, n), from its spins."""
    return lambda problem, bits: np.array(
        [-problem.model.energy(2 * row - 1) if problem.maximize else problem.model.energy(2 * row - 1) for row in bits]
    )
