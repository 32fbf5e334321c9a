import json

import pytest

from qpsbgd_paper.framework.result_files import as_json, write_json, write_result


def test_what_is_no_json_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_json_does_not_have_become_null():
    value = {"a": [1, 2.5, float("nan")], "b": (float("inf"), "text", None), "c": {"d": -float("inf")}, "e": True}
    assert as_json(value) == {"a": [1, 2.5, None], "b": [None, "text", None], "c": {"d": None}, "e": True}


def test_an_earlier_result_with_other_numbers_is_kept(tmp_path):
    path = tmp_path / "toy.json"
    assert write_result(path, {"a": 1, "made with": {"torch": "1"}}) is None
    assert write_result(path, {"a": 1, "made with": {"torch": "2"}}) is None
    assert write_result(path, {"a": 2}) == tmp_path / "toy.1.json"
    assert write_result(path, {"a": 3}) == tmp_path / "toy.2.json"
    numbers = [json.loads((tmp_path / f"toy{n}.json").read_text(encoding="utf-8"))["a"] for n in (".1", ".2", "")]
    assert numbers == [1, 2, 3]


def test_a_damaged_result_is_not_overwritten_but_moved(tmp_path):
    path = tmp_path / "toy.json"
    path.write_text("{", encoding="utf-8")
    assert write_result(path, {"a": 1}) == tmp_path / "toy.1.json"
    assert (tmp_path / "toy.1.json").read_text(encoding="utf-8") == "{"
