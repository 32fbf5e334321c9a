import hashlib

import pytest

from qpsbgd_paper.framework.checksums import with_checksum
from qpsbgd_paper.report.summaries import file_name, read_summary


def with_seal(rest):
    """A file with a right checksum, whatever its content."""
    return b'{"sha256": "%s", %s' % (hashlib.sha256(rest).hexdigest().encode(), rest)


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a\\b", "x\0y", "", "..", ".hidden", "a" * 300, "ü", "x\n"],
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name, study, toy, tmp_path):
    with pytest.raises(ValueError, match="cannot be part of a file name"):
        file_name("study", name)
    study["figures"][0]["name"] = name
    path = tmp_path / "study.json"
    for summary in (study, {**toy, "experiment": name}, {**toy, "series": [{"key": name, "label": "x"}]}):
        path.write_bytes(with_checksum(summary))
        with pytest.raises(ValueError, match="cannot be part of a file name") as refused:
            read_summary(path)
        assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_names_that_experiments_have_are_taken():
    assert file_name("gap-options", "first_layer.v2") == "gap-options-first_layer.v2"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "must begin with"),
        (b'{"experiment": "toy", "title": "T"}', "must begin with"),
        (with_checksum({"experiment": "toy", "title": "T"})[:-9], "its checksum does not fit"),
        (b"\xff\xfe\x00", "must begin with"),
        (with_seal(b'"a": ' + b"[" * 100_000), "recursion"),
        (with_seal(b'"a": \xff}'), "not JSON"),
        (b"[1, 2]", "must begin with"),
        (with_checksum({"no": 1}), "it has no experiment"),
        (with_checksum({"experiment": "toy"}), "it has no title"),
    ],
)
def test_a_damaged_or_foreign_file_gets_one_line_that_names_it(content, reason, tmp_path):
    path = tmp_path / "toy.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as refused:
        read_summary(path)
    assert str(refused.value).startswith(f"{path} is not a result of `qpsbgd run`: ")
    assert "\n" not in str(refused.value)


def test_null_is_a_figure_that_is_not_finite(toy, study, tmp_path):
    row = toy["cases"][0]["rows"][0]
    row["values"]["score"] = [None, 0.5]
    row["curves"]["curve"]["mean"][1] = row["curves"]["curve"]["deviation"][1] = None
    for summary in (toy, study):
        (tmp_path / "x.json").write_bytes(with_checksum(summary))
        assert read_summary(tmp_path / "x.json") == summary
