import copy
import hashlib

import pytest

from qpsbgd_paper.report.page import page
from qpsbgd_paper.report.summaries import file_name, read_summary
from qpsbgd_paper.report.tables import claims_table, main_tables, options_tables, other_tables
from qpsbgd_qubo.files.atomic import with_checksum


def with_seal(rest):
    """A file with a right checksum, whatever its content."""
    return b'{"sha256": "%s", %s' % (hashlib.sha256(rest).hexdigest().encode(), rest)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/x",
        "a/b",
        "a\\b",
        "x\0y",
        "",
        ".",
        "..",
        ".hidden",
        "a" * 300,
        "a b",
        "ü",
        "C:x",
        "x\n",
        "con",
        "NUL.x",
        "lpt1",
    ],
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
        (with_checksum({"no": 1}), "experiment: Field required"),
        (with_checksum({"experiment": "toy"}), "title: Field required"),
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


def test_no_flipped_bit_of_a_summary_goes_unnoticed(toy, tmp_path):
    whole = with_checksum(toy)
    for bit in range(0, 8 * len(whole), 1 + len(whole) // 40):
        damaged = whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :]
        (tmp_path / "x.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x\.json is not a result of `qpsbgd run`"):
            read_summary(tmp_path / "x.json")


def mutants(content):
    """The content with every part of it replaced by values of other types, and every entry left out, each in turn."""

    def places(part, path=()):
        entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, entry in entries:
            yield (*path, key)
            yield from places(entry, (*path, key))

    for *path, last in places(content):
        for value in (None, -(10**400), 1e308, "1", [[0]], {"x": 1}, ...):
            changed = copy.deepcopy(content)
            part = changed
            for key in path:
                part = part[key]
            if value is ...:
                del part[last]
            else:
                part[last] = value
            yield changed


def test_a_result_of_other_types_is_refused_in_one_line_or_shown(toy, study, tmp_path):
    """All mutants are read; of those that are taken, every fortieth is drawn, which takes longest."""
    path, taken, refused = tmp_path / "x.json", [], 0
    for changed in (*mutants(toy), *mutants(study)):
        path.write_bytes(with_checksum(changed))
        try:
            taken.append(read_summary(path))
        except ValueError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 400 and len(taken) > 150
    for summary in taken:
        for tables in (main_tables, other_tables, options_tables):
            tables(summary)
        claims_table(summary)
    for summary in taken[::40]:
        try:
            page([summary], title="T")
        except ValueError as error:
            assert "cannot be drawn" in str(error) and "\n" not in str(error)
