import numpy as np
import pytest

from qpsbgd_qubo.annealers.frame_file import FrameFile, RecordingError

KINDS = ("header", "answer")


def test_frames_are_read_where_they_were_written(tmp_path):
    path, places = tmp_path / "new" / "folder" / "run.chip", []
    numbers = np.arange(5, dtype=np.int16)
    file = FrameFile(path, kinds=KINDS)
    assert (file.size, file.torn) == (0, 0)
    places.append(file.append("header", {"a": 1}))
    places.append(file.append("answer", {"b": [2]}, numbers=numbers, none=np.zeros((0, 3))))
    places.append(file.append("answer", {}))
    assert places == sorted(set(places)) and file.size == path.stat().st_size
    for reader in (file, FrameFile(path, kinds=KINDS)):
        assert reader.read(places[0]) == ({"a": 1}, {})
        meta, arrays = reader.read(places[1])
        assert meta == {"b": [2]} and arrays["numbers"].dtype == np.int16 and arrays["none"].shape == (0, 3)
        assert arrays["numbers"].tolist() == numbers.tolist()
    fresh = FrameFile(path, kinds=KINDS)
    assert fresh.scan() == list(zip(("header", "answer", "answer"), places, strict=True))
    assert (fresh.size, fresh.torn) == (file.size, 0)
    assert fresh.append("answer", {"c": 3}) == file.size


def test_a_file_is_made_in_a_folder_that_is_there(tmp_path):
    assert FrameFile(tmp_path / "a", kinds=KINDS).append("header", {}) == FrameFile(tmp_path / "b", kinds=KINDS).append(
        "header", {}
    )


def test_bytes_behind_the_last_frame_are_counted_and_written_over(tmp_path):
    file = FrameFile(tmp_path / "run.chip", kinds=KINDS)
    first, second = file.append("header", {}), file.append("answer", {"x": 1})
    whole = file.path.read_bytes()
    for kept in (second + 1, second + 50, len(whole) - 1):
        file.path.write_bytes(whole[:kept])
        torn = FrameFile(file.path, kinds=KINDS)
        assert torn.scan() == [("header", first)]
        assert (torn.size, torn.torn) == (kept, kept - second)
        assert torn.append("answer", {"x": 1}) == second and torn.torn == 0
        assert file.path.read_bytes() == whole


def test_two_writers_and_unknown_kinds_are_refused(tmp_path):
    one, other = (FrameFile(tmp_path / "run.chip", kinds=KINDS) for _ in range(2))
    one.append("header", {})
    with pytest.raises(RecordingError, match="was changed by another run"):
        other.append("header", {})
    other.scan()
    other.append("answer", {})
    with pytest.raises(RecordingError, match="was changed by another run"):
        one.append("answer", {})
    with pytest.raises(RecordingError, match=r"damaged at byte \d+ \(there are no frames of kind 'answer'\)"):
        FrameFile(tmp_path / "run.chip", kinds=("header",)).scan()
    with pytest.raises(RecordingError, match=r"its checksum is wrong"):
        one.read(3)


def test_every_changed_byte_of_a_frame_is_told_by_its_checksum(tmp_path):
    file = FrameFile(tmp_path / "run.chip", kinds=KINDS)
    first = file.append("header", {"a": [1, 2]}, numbers=np.arange(3))
    second = file.append("answer", {})
    whole = file.path.read_bytes()
    for at in range(first, second, 11):
        file.path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(RecordingError, match=rf"damaged at byte {first} \(its checksum is wrong\)"):
            file.read(first)
        assert file.read(second) == ({}, {})
