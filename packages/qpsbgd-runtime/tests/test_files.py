import os
import subprocess
import sys

import pytest
from atomic_files import *  # noqa: F403
from atomic_files import names

from qpsbgd_runtime.files import write_atomically


@pytest.fixture
def write():
    return write_atomically


def test_an_interrupt_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"old")

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_device_is_written_and_not_replaced():
    code = (
        "from pathlib import Path; from qpsbgd_runtime.files import write_atomically as w; w(Path('/dev/stdout'), b'x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"x"
