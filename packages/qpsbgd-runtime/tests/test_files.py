import errno
import os
import resource
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from qpsbgd_runtime.files import write_atomically


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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
    old = os.umask(mask)
    try:
        write_atomically(tmp_path / "a", b"new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    assert (tmp_path / "a").read_bytes() == b"new"


def test_an_existing_file_keeps_its_permissions(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o600)
    write_atomically(tmp_path / "a", b"new")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("target", ["there/a", "there/new"])
def test_a_link_is_kept_and_what_it_points_to_is_written(tmp_path, target):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a").write_bytes(b"old")
    (tmp_path / "link").symlink_to(target)
    write_atomically(tmp_path / "link", b"new")
    assert str((tmp_path / "link").readlink()) == target
    assert (tmp_path / target).read_bytes() == b"new"
    assert names(tmp_path) == ["link", "there"]


def test_a_link_to_itself_is_refused_and_kept(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match="choose another path") as caught:
        write_atomically(tmp_path / "link", b"new")
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "link").is_symlink() and names(tmp_path) == ["link"]


def test_a_folder_in_the_way_is_refused_and_kept(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError, match=r"choose another path.*/a'$"):
        write_atomically(tmp_path / "a", b"new")
    assert names(tmp_path) == ["a"]


def test_a_missing_folder_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"check that its folder exists.*/no/a'$"):
        write_atomically(tmp_path / "no" / "a", b"new")


def test_a_read_only_folder_leaves_the_old_file_and_says_what_to_do():
    with read_only_folder() as folder:
        with pytest.raises(PermissionError, match=r"nothing was changed; choose another path.*/a'$"):
            write_atomically(folder / "a", b"new")
        assert (folder / "a").read_bytes() == b"old"
        assert names(folder) == ["a"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"nothing was changed.*has space.*/a'$") as caught:
            write_atomically(tmp_path / "a", bytes(300_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


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
