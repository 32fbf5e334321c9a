import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from qpsbgd_qubo.files import atomic
from qpsbgd_qubo.files.atomic import check_writable, writing


def write(path, content):
    with writing(path) as file:
        file.write(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def umask(mask):
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


@contextmanager
def file_size_limit(size):
    """A real error of the system in the middle of writing, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only_folder():
    """A folder that this process may read but not write, also if it is root's."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a").write_bytes(b"old")
        folder.chmod(0o555)
        try:
            if user == 0:
                os.seteuid(65534)
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_that_the_umask_allows(tmp_path, mask, mode):
    with umask(mask):
        write(tmp_path / "a", b"new")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_an_existing_file_keeps_its_permissions(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o600)
    write(tmp_path / "a", b"new")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("target", ["there/a", "there/new"])
def test_a_link_is_kept_and_what_it_points_to_is_written(tmp_path, target):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a").write_bytes(b"old")
    (tmp_path / "link").symlink_to(target)
    write(tmp_path / "link", b"new")
    assert str((tmp_path / "link").readlink()) == target
    assert (tmp_path / target).read_bytes() == b"new"
    assert names(tmp_path) == ["link", "there"]


def test_a_link_to_itself_is_refused_and_kept(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match="choose another path") as caught:
        write(tmp_path / "link", b"new")
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "link").is_symlink()


def test_a_folder_in_the_way_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError, match=r"choose another path.*/a'"), writing(tmp_path / "a"):
        raise AssertionError("writing began")
    assert names(tmp_path) == ["a"]


def test_a_missing_folder_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"check that its folder exists.*/no/a'$"):
        write(tmp_path / "no" / "a", b"new")


def test_a_read_only_folder_leaves_the_old_file_and_says_what_to_do():
    with read_only_folder() as folder:
        with pytest.raises(PermissionError, match=r"choose another path.*/a'$"):
            write(folder / "a", b"new")
        with pytest.raises(PermissionError):
            check_writable(folder / "a")
        assert (folder / "a").read_bytes() == b"old"
        assert names(folder) == ["a"]


def test_a_full_disk_leaves_the_old_file_and_says_what_to_do(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with (
        file_size_limit(100_000),
        pytest.raises(OSError, match=r"nothing was changed.*has space.*/a'$") as caught,
    ):
        write(tmp_path / "a", bytes(300_000))
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


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
    write(tmp_path / "a", b"new")
    left = names(tmp_path)
    assert left[0] == ".a.notes"
    assert left[1].startswith(".b.")
    assert left[2:] == ["a"]


def test_the_temporary_file_of_a_writer_at_work_is_left_alone(tmp_path):
    with writing(tmp_path / "a") as slow:
        slow.write(b"slow")
        write(tmp_path / "a", b"fast")
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
            write(tmp_path / "a", b"fast")
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
    write(tmp_path / "a", b"new")
    assert removed
    assert (tmp_path / "a").read_bytes() == b"new"


def test_file_and_folder_are_both_synchronised_around_the_rename(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda number: events.append(stat.S_IFMT(os.fstat(number).st_mode)) or sync(number)
    )
    monkeypatch.setattr(Path, "replace", lambda self, target: events.append("rename") or replace(self, target))
    write(tmp_path / "a", b"new")
    assert events == [stat.S_IFREG, "rename", stat.S_IFDIR]


def test_a_device_is_written_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_writable(tmp_path / "pipe")
    write(tmp_path / "pipe", b"new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_check_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "a")
    assert names(tmp_path) == []
    with pytest.raises(IsADirectoryError):
        check_writable(tmp_path)
