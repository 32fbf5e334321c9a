import json
import re
import subprocess
import sys
import time

import pytest

from qpsbgd.experiments.runs import run_jobs, write_json, write_text

calls = []


def square(*, x, fail=False):
    calls.append(x)
    if fail:
        raise RuntimeError("planned")
    return {"square": x * x}


def results(jobs, folder, **options):
    return {done.settings["x"]: done for done in run_jobs(square, jobs, folder=folder, **options)}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_done_once_and_kept(tmp_path, workers):
    jobs = [{"x": x} for x in range(4)]
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


def test_an_interrupted_demo_keeps_its_runs_and_goes_on(tmp_path):
    command = [sys.executable, "-m", "qpsbgd.cli", "demo", "--out", str(tmp_path), "--seeds", "1", "--epochs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("runs/*.json"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(2)
    output, _ = process.communicate(timeout=60)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.json")}
    assert process.returncode == 130, output
    assert "Finished runs are kept" in output
    assert len(kept) >= 3

    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "are used where they fit" in finished.stdout
    assert all(path.stat().st_mtime_ns == made for path, made in kept.items())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "QP-SBGD" in page
    assert not re.search(r"(src|href)=.?http|url\(http|@import", page), "the page must need no network"
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["digits"]["rows"]
