import subprocess
import sys

import pytest
from typer.testing import CliRunner

from qpsbgd_paper.cli import data as commands

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


CONTENTS = {"toy/one": b"1\n", "toy/two": b"22\n", "other/three": b"333\n"}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path, publish, origin):
    """An empty cache, and the toy files as the only published ones."""
    publish(CONTENTS, origin=origin.address)
    monkeypatch.setenv("QPSBGD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("QPSBGD_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def published_folder(tmp_path):
    """The folder whose files the server gives."""
    return tmp_path / "published"


def run(*arguments):
    return CliRunner().invoke(commands.app, [str(argument) for argument in arguments])


def test_fetch_fills_the_cache_and_check_is_content(cache):
    fetched = run("fetch")
    assert fetched.exit_code == 0 and f"3 files fetched, 0 were already there, in {cache}." in fetched.stdout
    assert {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()} == CONTENTS
    checked = run("check")
    assert checked.exit_code == 0 and "All 3 files" in checked.stdout
    assert "0 files fetched, 3 were already there" in run("fetch").stdout


def test_fetch_brings_only_the_data_sets_that_are_named_into_the_folder_that_is_named(cache, tmp_path):
    assert run("fetch", "other", "--data", tmp_path / "mine").exit_code == 0
    assert [path.name for path in (tmp_path / "mine").rglob("*") if path.is_file()] == ["three"]
    assert not cache.exists()


def test_check_lists_what_is_missing_or_wrong_and_fails(published_folder):
    (published_folder / "toy/one").write_bytes(b"?\n")
    (published_folder / "other/three").unlink()
    result = run("check", "--data", published_folder)
    assert result.exit_code == 1
    assert [line.split() for line in result.stdout.splitlines()][:2] == [
        ["wrong", str(published_folder / "toy/one")],
        ["missing", str(published_folder / "other/three")],
    ]
    assert "2 of 3 files are missing or wrong" in result.stdout


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_an_unknown_data_set_is_refused_with_the_known_ones(command):
    result = run(command, "tyo")
    assert result.exit_code == 2 and "'tyo'" in result.stderr and "toy" in result.stderr


def test_the_help_of_every_command_loads_neither_torch_nor_what_else_takes_long():
    code = (
        "import sys; from qpsbgd.cli.app import application; application(); "
        "print(sorted({'torch', 'numpy', 'scipy', 'dimod', 'matplotlib', 'sklearn', 'joblib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
