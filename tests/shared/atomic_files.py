"""What holds of files that are complete or not there at all; a fixture `write` writes bytes to a path.

A test module takes all of it over by `from atomic_files import *`.
"""

import errno
import os
import resource
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = [
    "names",
    "read_only_folder",
    "test_a_folder_in_the_way_is_refused_and_kept",
    "test_a_full_disk_leaves_the_old_file_and_says_what_to_do",
    "test_a_link_is_kept_and_what_it_points_to_is_written",
    "test_a_link_to_itself_is_refused_and_kept",
    "test_a_missing_folder_is_an_error_that_names_the_file",
    "test_a_new_file_has_the_permissions_that_the_umask_allows",
    "test_a_read_only_folder_leaves_the_old_file_and_says_what_to_do",
    "test_an_existing_file_keeps_its_permissions",
]


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
def test_a_new_file_has_the_permissions_that_the_umask_allows(tmp_path, write, mask, mode):
    old = os.umask(mask)
    try:
        write(tmp_path / "a", b"new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    assert (tmp_path / "a").read_bytes() == b"new"


def test_an_existing_file_keeps_its_permissions(tmp_path, write):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o600)
    write(tmp_path / "a", b"new")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("target", ["there/a", "there/new"])
def test_a_link_is_kept_and_what_it_points_to_is_written(tmp_path, write, target):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a").write_bytes(b"old")
    (tmp_path / "link").symlink_to(target)
    write(tmp_path / "link", b"new")
    assert str((tmp_path / "link").readlink()) == target
    assert (tmp_path / target).read_bytes() == b"new"
    assert names(tmp_path) == ["link", "there"]


def test_a_link_to_itself_is_refused_and_kept(tmp_path, write):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(OSError, match="choose another path") as caught:
        write(tmp_path / "link", b"new")
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "link").is_symlink() and names(tmp_path) == ["link"]


def test_a_folder_in_the_way_is_refused_and_kept(tmp_path, write):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError, match=r"choose another path.*/a'"):
        write(tmp_path / "a", b"new")
    assert names(tmp_path) == ["a"]


def test_a_missing_folder_is_an_error_that_names_the_file(tmp_path, write):
    with pytest.raises(FileNotFoundError, match=r"check that its folder exists.*/no/a'$"):
        write(tmp_path / "no" / "a", b"new")


def test_a_read_only_folder_leaves_the_old_file_and_says_what_to_do(write):
    with read_only_folder() as folder:
        with pytest.raises(PermissionError, match=r"nothing was changed; choose another path.*/a'$"):
            write(folder / "a", b"new")
        assert (folder / "a").read_bytes() == b"old"
        assert names(folder) == ["a"]


def test_a_full_disk_leaves_the_old_file_and_says_what_to_do(tmp_path, write):
    """A real error of the system in the middle of writing."""
    (tmp_path / "a").write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"nothing was changed.*has space.*/a'$") as caught:
            write(tmp_path / "a", bytes(300_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]
