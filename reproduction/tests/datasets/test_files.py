import hashlib
import logging
import os
import sys

import pooch
import pytest

from qpsbgd_paper.datasets import files

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


NAME = "toy/numbers"
CONTENT = b"1 2 3\n" * 50_000


@pytest.fixture
def named(publish):
    return publish({NAME: CONTENT})


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_data_folder_has_the_published_files_and_no_others(real_data):
    names = set(files.FILES)
    assert {name: files.state(name, data=real_data) for name in names} == dict.fromkeys(names, "right")
    folders = {name.split("/")[0] for name in names}
    assert {f"{folder}/{path.name}" for folder in folders for path in (real_data / folder).iterdir()} == names


def test_every_published_file_has_an_address_that_ends_in_its_name():
    for file in files.FILES.values():
        assert file.origins
        assert all(o.startswith("https://") and o.endswith("/" + file.name.split("/")[1]) for o in file.origins)


def test_the_data_sets_have_the_published_files():
    assert {name: len(members) for name, members in files.datasets().items()} == {
        "mnist": 4,
        "adult": 2,
        "cora": 8,
        "citeseer": 8,
        "pubmed": 8,
    }


@pytest.mark.parametrize(
    ("argument", "environment"), [("here", None), (None, "here"), ("here", "elsewhere"), (None, "~/published")]
)
def test_a_file_is_found_in_the_folder_of_the_argument_or_else_of_the_environment(
    named, monkeypatch, argument, environment
):
    monkeypatch.setenv("HOME", str(named.parent))
    if environment is not None:
        monkeypatch.setenv("QPSBGD_DATA", environment.replace("here", str(named)))
    assert files.locate(NAME, data=named if argument else None) == named / NAME


def test_an_unknown_name_is_refused_with_the_known_ones(named):
    with pytest.raises(ValueError, match="'toy/nmubers', only: toy/numbers"):
        files.locate("toy/nmubers", data=named)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_file_missing_in_a_named_folder_is_not_downloaded(named, origin, publish, monkeypatch, tmp_path, how):
    publish({NAME: CONTENT}, origins=(origin.address,))
    empty = tmp_path / "empty"
    empty.mkdir()
    if how == "environment":
        monkeypatch.setenv("QPSBGD_DATA", str(empty))
    with pytest.raises(FileNotFoundError) as caught:
        files.locate(NAME, data=empty if how == "argument" else None)
    for part in (NAME, str(empty / NAME), origin.address + NAME, f"qpsbgd data fetch toy --data {empty}"):
        assert part in str(caught.value)
    assert origin.asked == [] and list(empty.iterdir()) == []


@pytest.mark.parametrize("broken", [CONTENT[:-1], CONTENT[:-1] + b"?", b""])
def test_a_broken_file_in_a_named_folder_is_refused_and_left_alone(named, broken):
    (named / NAME).write_bytes(broken)
    with pytest.raises(ValueError, match=r"published toy/numbers.*qpsbgd data fetch toy"):
        files.locate(NAME, data=named)
    assert (named / NAME).read_bytes() == broken


def test_a_file_is_hashed_once_until_it_changes(named, monkeypatch):
    hashed = []
    monkeypatch.setattr(files.hashlib, "sha256", lambda: hashed.append(1) or hashlib.new("sha256"))
    for _ in range(3):
        files.locate(NAME, data=named)
    assert len(hashed) == 1
    (named / NAME).write_bytes(CONTENT[:-1] + b"?")
    os.utime(named / NAME, ns=(1, 1))
    with pytest.raises(ValueError, match="not the published"):
        files.locate(NAME, data=named)
    assert len(hashed) == 2


def test_a_download_goes_to_the_cache_and_happens_once(publish, origin, cache):
    publish({NAME: CONTENT}, origins=(origin.address,))
    assert files.locate(NAME) == files.locate(NAME) == cache / NAME
    assert (cache / NAME).read_bytes() == CONTENT
    assert origin.asked == ["/" + NAME]
    assert listing(cache) == [NAME]
    assert (cache / NAME).stat().st_mode & 0o777 == 0o644


def test_a_file_in_the_cache_needs_neither_network_nor_pooch(named, cache, monkeypatch):
    (cache / NAME).parent.mkdir(parents=True)
    (cache / NAME).write_bytes(CONTENT)
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert files.locate(NAME) == cache / NAME


def test_a_partial_file_in_the_cache_is_fetched_again(publish, origin, cache):
    publish({NAME: CONTENT}, origins=(origin.address,))
    (cache / NAME).parent.mkdir(parents=True)
    (cache / NAME).write_bytes(CONTENT[:1000])
    assert files.locate(NAME).read_bytes() == CONTENT


def test_a_download_that_is_cut_short_leaves_nothing(publish, origin, cache):
    publish({NAME: CONTENT}, origins=(origin.address,))
    origin.cut_short = True
    with pytest.raises(OSError, match="could not download toy/numbers"):
        files.locate(NAME)
    assert listing(cache) == []


def test_a_download_with_another_content_leaves_nothing(publish, origin, cache):
    folder = publish({NAME: CONTENT}, origins=(origin.address,))
    (folder / NAME).write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(OSError, match="could not download toy/numbers"):
        files.locate(NAME)
    assert listing(cache) == []


def test_the_second_address_is_tried_when_the_first_fails(publish, origin, cache):
    publish({NAME: CONTENT}, origins=(origin.address + "nothing/", origin.address))
    assert files.locate(NAME).read_bytes() == CONTENT
    assert origin.asked == ["/nothing/" + NAME, "/" + NAME]


def test_without_network_it_is_said_which_file_to_put_where(publish, cache, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    publish({NAME: CONTENT})
    with pytest.raises(OSError) as caught:
        files.locate(NAME)
    for part in ("could not download toy/numbers", f"put it at {cache / NAME}", "QPSBGD_DATA", "http://127.0.0.1:9/"):
        assert part in str(caught.value)


def test_a_download_says_from_where_and_shows_a_bar(publish, origin, tmp_path, caplog, capsys, monkeypatch):
    publish({NAME: CONTENT}, origins=(origin.address,))
    monkeypatch.setattr(pooch.get_logger(), "handlers", [caplog.handler])
    with caplog.at_level(logging.INFO):
        files.fetch(NAME, data=tmp_path / "mine")
    assert (tmp_path / "mine" / NAME).read_bytes() == CONTENT
    assert f"Downloading data from '{origin.address}" in caplog.text
    assert "100%" in capsys.readouterr().err


def test_the_cache_is_where_the_system_keeps_caches(monkeypatch):
    monkeypatch.delenv("QPSBGD_CACHE")
    assert files.cache_folder().name == "qpsbgd"
