import pytest

from qpsbgd_paper.framework.checksums import with_checksum, without_checksum
from qpsbgd_paper.framework.result_files import as_json, write_json


def test_what_is_no_json_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_json_does_not_have_become_null():
    value = {"a": [1, 2.5, float("nan")], "b": (float("inf"), "text", None), "c": {"d": -float("inf")}, "e": True}
    assert as_json(value) == {"a": [1, 2.5, None], "b": [None, "text", None], "c": {"d": None}, "e": True}


def test_no_flipped_bit_of_json_under_its_checksum_goes_unnoticed():
    whole = with_checksum({"title": "ü", "values": [1.5, None, {"a": "b"}]})
    assert without_checksum(whole) == {"title": "ü", "values": [1.5, None, {"a": "b"}]}
    for bit in range(8 * len(whole)):
        with pytest.raises(ValueError, match=r"must begin with \{\"sha256|checksum does not fit"):
            without_checksum(whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :])
