import os
from pathlib import Path

import pytest
from suite import *  # noqa: F403

from qpsbgd_paper.datasets.files import locate


@pytest.fixture
def published(monkeypatch):
    """A function that makes sure that a published file is there, and skips the test where it is not."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    if "QPSBGD_DATA" not in os.environ and beside.is_dir():
        monkeypatch.setenv("QPSBGD_DATA", str(beside))

    def present(file):
        if "QPSBGD_DATA" not in os.environ:
            pytest.skip("QPSBGD_DATA names no folder with the published data")
        try:
            locate(file)
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return present
