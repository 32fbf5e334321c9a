import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from atomic_files import *  # noqa: F403
from atomic_files import names, read_only_folder

from qpsbgd_qubo.files import atomic
from qpsbgd_qubo.files.atomic import check_writable, writing


def _write(path, content):
    with writing(path) as file:
        file.write(content)


@pytest.fixture
def write():
    return _write


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), FileNotFoundError(2, "gone", "other")])
def test_an_error_while_writing_is_passed_on_and_leaves_the_old_file(tmp_path, error):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(type(error)) as caught, writing(tmp_path / "a") as file:
        file.write(b"half")
        raise error
    assert caught.value is error
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_what_killed_writers_left_is_removed_by_the_next(tmp_path):
    # The module alone: the package around it loads torch.
    script = (
        "import os, runpy, sys\nfrom pathlib import Path\n"
        "with runpy.run_path(sys.argv[1])['writing'](Path(sys.argv[2])) as file:\n"
        "    file.write(b'half')\n    os.kill(os.getpid(), 9)\n"
    )
    for name in ("a", "b"):
        command = [sys.executable, "-c", script, atomic.__file__, str(tmp_path / name)]
        killed = subprocess.run(command, check=False)
        assert killed.returncode == -signal.SIGKILL
    (tmp_path / ".a.notes").write_bytes(b"not ours")
    assert len(names(tmp_path)) == 3
    _write(tmp_path / "a", b"new")
    left = names(tmp_path)
    assert left[0] == ".a.notes"
    assert left[1].startswith(".b.")
    assert left[2:] == ["a"]


def test_the_temporary_file_of_a_writer_at_work_is_left_alone(tmp_path):
    with writing(tmp_path / "a") as slow:
        slow.write(b"slow")
        _write(tmp_path / "a", b"fast")
        assert (tmp_path / "a").read_bytes() == b"fast"
        assert len(names(tmp_path)) == 2
    assert (tmp_path / "a").read_bytes() == b"slow"
    assert names(tmp_path) == ["a"]


def test_what_another_machine_writes_is_left_alone(tmp_path, monkeypatch):
    with monkeypatch.context() as there:
        there.setattr(atomic, "MACHINE", "0" * 8)
        there.setattr(atomic, "_lock", lambda file, *, wait: True)  # its lock is not seen here
        with writing(tmp_path / "a") as slow:
            there.undo()
            _write(tmp_path / "a", b"fast")
            slow.write(b"slow")
    assert (tmp_path / "a").read_bytes() == b"slow"
    assert names(tmp_path) == ["a"]


def test_a_file_taken_for_a_leftover_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    lock, removed = atomic._lock, []

    def too_late(file, *, wait):
        if wait and not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        return lock(file, wait=wait)

    monkeypatch.setattr(atomic, "_lock", too_late)
    _write(tmp_path / "a", b"new")
    assert removed
    assert (tmp_path / "a").read_bytes() == b"new"


def test_file_and_folder_are_both_synchronised_around_the_rename(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda number: events.append(stat.S_IFMT(os.fstat(number).st_mode)) or sync(number)
    )
    monkeypatch.setattr(Path, "replace", lambda self, target: events.append("rename") or replace(self, target))
    _write(tmp_path / "a", b"new")
    assert events == [stat.S_IFREG, "rename", stat.S_IFDIR]


def test_a_device_is_written_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_writable(tmp_path / "pipe")
    _write(tmp_path / "pipe", b"new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_check_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "a")
    assert names(tmp_path) == []
    with read_only_folder() as folder, pytest.raises(PermissionError):
        check_writable(folder / "a")
    with pytest.raises(IsADirectoryError):
        check_writable(tmp_path)
