import pytest

from qpsbgd_paper.framework.result_files import as_json, write_json


def test_what_is_no_json_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_json_does_not_have_become_null():
    value = {"a": [1, 2.5, float("nan")], "b": (float("inf"), "text", None), "c": {"d": -float("inf")}, "e": True}
    assert as_json(value) == {"a": [1, 2.5, None], "b": [None, "text", None], "c": {"d": None}, "e": True}
