import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A folder for tiles that all tests here share, since a search for them takes seconds."""
    return tmp_path_factory.getbasetemp() / "tiles"
