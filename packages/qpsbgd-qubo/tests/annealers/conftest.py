import os

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A folder for tiles that all tests here share, in all processes, since a search for them takes seconds."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "tiles"
