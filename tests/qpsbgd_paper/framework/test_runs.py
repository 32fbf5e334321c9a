import json

import pytest

from qpsbgd_paper.framework.runs import Workers, run_jobs, write_json, write_text

calls = []


def square(*, x, fail=False):
    calls.append(x)
    if fail:
        raise RuntimeError("planned")
    return {"square": x * x}


def results(jobs, folder, **options):
    return {done.settings["x"]: done for done in run_jobs(square, jobs, folder=folder, **options)}


@pytest.mark.parametrize("count", [1, 2])
def test_every_job_is_done_once_and_kept(tmp_path, count):
    jobs = [{"x": x} for x in range(4)]
    with Workers(count) as workers:
        first = results(jobs, tmp_path, workers=workers)
    assert {x: done.result["square"] for x, done in first.items()} == {0: 0, 1: 1, 2: 4, 3: 9}
    assert not any(done.reused for done in first.values())
    calls.clear()
    again = results(jobs, tmp_path)
    assert calls == []
    assert all(done.reused for done in again.values())


def test_what_failed_is_done_again_and_what_was_done_is_not(tmp_path):
    with pytest.raises(RuntimeError, match="planned"):
        results([{"x": 1}, {"x": 2, "fail": True}, {"x": 3}], tmp_path)
    calls.clear()
    assert set(results([{"x": 1}, {"x": 2}, {"x": 3}], tmp_path)) == {1, 2, 3}
    assert calls == [2, 3]


def test_a_damaged_result_is_refused_with_its_path(tmp_path):
    results([{"x": 1}], tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="delete it"):
        results([{"x": 1}], tmp_path)


def test_results_tell_what_they_were_made_with(tmp_path):
    results([{"x": 1}], tmp_path)
    (path,) = tmp_path.glob("*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["settings"] == {"x": 1}
    assert {"torch", "qpsbgd", "python", "machine"} <= set(content["made with"])


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_text(target, "new")
    assert json.loads(target.read_text(encoding="utf-8")) == {"old": 1}
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_no_json_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_results_of_the_processes_are_those_of_one(tmp_path):
    jobs = [{"x": x} for x in range(5)]
    alone = {x: done.result["square"] for x, done in results(jobs, tmp_path / "a").items()}
    with Workers(2) as workers:
        shared = {x: done.result["square"] for x, done in results(jobs, tmp_path / "b", workers=workers).items()}
        assert workers.submit(square, {"x": 9}).result()["square"] == 81, "the processes serve later jobs too"
    assert shared == alone


def test_results_tell_how_long_they_took(tmp_path):
    (done,) = results([{"x": 1}], tmp_path).values()
    assert done.result["seconds"] >= 0
