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


def test_the_checksums_are_those_of_the_files_in_the_data_folder(real_data):
    assert {files.state(name, real_data) for name in files.CHECKSUMS} == {"right"}
    assert {name.split("/")[0] for name in files.CHECKSUMS} == set(files.ORIGINS)


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


def test_a_file_missing_in_a_named_folder_is_not_downloaded(named, origin, publish, monkeypatch, tmp_path):
    publish({NAME: CONTENT}, origin=origin.address)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("QPSBGD_DATA", str(empty))
    with pytest.raises(FileNotFoundError) as caught:
        files.locate(NAME)
    for part in (NAME, str(empty / NAME), origin.address + "toy/", f"qpsbgd data fetch toy --data {empty}"):
        assert part in str(caught.value)
    assert origin.asked == [] and list(empty.iterdir()) == []


@pytest.mark.parametrize("broken", [CONTENT[:-1], CONTENT[:-1] + b"?", b""])
def test_a_broken_file_in_a_named_folder_is_refused_and_left_alone(named, broken):
    (named / NAME).write_bytes(broken)
    with pytest.raises(ValueError, match=r"published toy/numbers.*qpsbgd data fetch toy"):
        files.locate(NAME, data=named)
    assert (named / NAME).read_bytes() == broken


def test_a_download_goes_to_the_cache_and_happens_once(publish, origin, cache):
    publish({NAME: CONTENT}, origin=origin.address)
    assert files.locate(NAME) == files.locate(NAME) == cache / NAME
    assert (cache / NAME).read_bytes() == CONTENT
    assert origin.asked == ["/" + NAME]
    assert listing(cache) == [NAME]
    assert (cache / NAME).stat().st_mode & 0o777 == 0o644


def test_a_download_that_is_cut_short_leaves_nothing(publish, origin, cache):
    publish({NAME: CONTENT}, origin=origin.address)
    origin.cut_short = True
    with pytest.raises(OSError, match="could not download toy/numbers"):
        files.locate(NAME)
    assert listing(cache) == []


def test_without_network_it_is_said_which_file_to_put_where(publish, cache, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    publish({NAME: CONTENT})
    with pytest.raises(OSError) as caught:
        files.locate(NAME)
    for part in ("could not download toy/numbers", f"put it at {cache / NAME}", "QPSBGD_DATA", "http://127.0.0.1:9/"):
        assert part in str(caught.value)
