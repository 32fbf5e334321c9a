import gzip
import importlib.util
import os

import numpy as np
import pytest
from suite import *  # noqa: F403

OPTIONAL = ("dimod", "dwave", "gurobipy", "scipy", "torch", "qpsbgd", "joblib", "distributed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test skips where it meets an optional package that is not installed."""
    try:
        return (yield)
    except ImportError as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        name = (getattr(missing, "name", None) or "").split(".")[0]
        if name not in OPTIONAL or importlib.util.find_spec(name) is not None:
            raise
        pytest.skip(f"needs {name}")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A folder for tiles that all tests here share, in all processes, since a search for them takes seconds."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "tiles"


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
