import json
import os
import signal
import time
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool

import pytest

from qpsbgd_paper.framework.runs import RunFailed, kept_results, run_jobs
from qpsbgd_paper.framework.workers import Workers, local_workers
from qpsbgd_qubo.annealers.budget import BudgetSpent

calls = []


def square(*, x, fail=False, seconds=0.0, options=None):
    calls.append(x)
    time.sleep(seconds)
    if fail == "budget":
        raise BudgetSpent("the next step would pass max_qpu_seconds = 2, of which 1.9 are spent")
    if fail == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fail:
        raise ValueError("planned")
    return {"square": x * x}


def results(jobs, folder, *, work=square, **options):
    done = run_jobs(work, jobs, experiment="toy", folder=folder, **options)
    return {one.settings["x"]: one for one in done}


def kept(folder):
    return sorted(json.loads(path.read_text(encoding="utf-8"))["settings"]["x"] for path in folder.glob("*.json"))


@pytest.fixture(scope="module")
def workers():
    with local_workers(2) as workers:
        yield workers


@pytest.mark.parametrize("count", [1, 2])
def test_every_job_is_done_once_and_kept(tmp_path, count, workers):
    jobs = [{"x": x} for x in range(5)]
    first = results(jobs, tmp_path, workers=workers if count == 2 else None)
    assert {x: done.result["square"] for x, done in first.items()} == {0: 0, 1: 1, 2: 4, 3: 9, 4: 16}
    assert not any(done.reused for done in first.values())
    calls.clear()
    again = results(jobs, tmp_path)
    assert calls == []
    assert all(done.reused for done in again.values())


def test_what_failed_is_done_again_and_what_was_done_is_not(tmp_path):
    with pytest.raises(RunFailed, match="planned"):
        results([{"x": 1}, {"x": 2, "fail": True}, {"x": 3}], tmp_path)
    calls.clear()
    assert set(results([{"x": 1}, {"x": 2}, {"x": 3}], tmp_path)) == {1, 2, 3}
    assert calls == [2, 3]


@pytest.mark.parametrize("count", [1, 2])
def test_a_failure_names_the_experiment_and_the_settings(tmp_path, count, workers):
    jobs = [{"x": 1, "options": {"lr": 0.5}, "fail": True}, {"x": 2}]
    with pytest.raises(RunFailed) as failure:
        results(jobs, tmp_path, workers=workers if count == 2 else None)
    text = str(failure.value)
    assert text.startswith("toy: the run with x 1, options {'lr': 0.5}, fail True failed: ValueError: planned.")
    assert "Finished runs are kept" in text


def test_what_others_are_doing_when_one_fails_is_finished_and_kept_and_nothing_new_begins(tmp_path, workers):
    jobs = [{"x": 1, "fail": True}, {"x": 2, "seconds": 0.5}, {"x": 3}, {"x": 4}]
    with pytest.raises(RunFailed, match="planned"):
        results(jobs, tmp_path, workers=workers)
    assert kept(tmp_path) == [2]


def test_a_run_whose_budget_is_spent_is_not_done_and_says_how_to_go_on(tmp_path):
    options = {"solver": {"name": "dwave", "max_qpu_seconds": 2}}
    with pytest.raises(RunFailed) as failure:
        results([{"x": 1, "options": options}, {"x": 2, "fail": "budget"}], tmp_path)
    text = str(failure.value)
    assert "toy: the run with x 2" in text and "was stopped" in text
    assert "of which 1.9 are spent" in text
    assert "not counted as done" in text and "what was paid is kept: raise --option max_qpu_seconds" in text
    assert kept(tmp_path) == [1]


def test_a_finished_run_is_not_paid_for_again_under_another_limit(tmp_path):
    jobs = [{"x": 1, "options": {"solver": {"name": "dwave", "max_qpu_seconds": limit}}} for limit in (2, 3)]
    results(jobs[:1], tmp_path)
    calls.clear()
    assert results(jobs[1:], tmp_path)[1].reused
    assert calls == []
    results([{"x": 1, "options": {"solver": {"name": "leap-hybrid", "max_qpu_seconds": 2}}}], tmp_path)
    assert calls == [1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: text.replace('"square": 9', '"square": 8'),
        lambda text: text.replace('"square"', '"squarf"'),
        lambda text: text.replace('"result"', '"resulu"'),
        lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != "sha256"}),
    ],
    ids=["cut", "digit", "name", "key", "no checksum"],
)
def test_a_damaged_run_is_named_and_done_again(tmp_path, damage):
    results([{"x": 3}], tmp_path)
    (path,) = tmp_path.glob("*.json")
    whole = path.read_text(encoding="utf-8")
    path.write_text(damage(whole), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{path.name} is damaged.*qpsbgd run toy"):
        kept_results(square, [{"x": 3}], experiment="toy", folder=tmp_path)
    with pytest.warns(UserWarning, match=rf"{path.name} is damaged.*the run with x 3 is done again"):
        (done,) = results([{"x": 3}], tmp_path).values()
    assert not done.reused and done.result["square"] == 9
    assert kept_results(square, [{"x": 3}], experiment="toy", folder=tmp_path)[0]["square"] == 9


def test_results_that_are_not_there_are_not_computed(tmp_path):
    results([{"x": 1}], tmp_path)
    calls.clear()
    with pytest.raises(FileNotFoundError, match=r"1 of 2 runs of toy are not in .* `qpsbgd run toy`"):
        kept_results(square, [{"x": 1}, {"x": 2}], experiment="toy", folder=tmp_path)
    assert calls == []


def test_a_killed_process_is_a_clear_error_and_what_was_finished_is_kept(tmp_path):
    jobs = [{"x": 1}, {"x": 2, "fail": "killed", "seconds": 0.3}, {"x": 3}, {"x": 4}]
    with pytest.raises(RunFailed) as failure, local_workers(2) as workers:
        results(jobs, tmp_path, workers=workers)
    text = str(failure.value)
    assert "toy: a process was killed" in text and "x 2, fail 'killed'" in text
    assert "Finished runs are kept" in text and "Fewer --workers" in text
    assert 1 in kept(tmp_path) and 2 not in kept(tmp_path)
    with local_workers(2) as workers:
        assert set(results([{"x": x} for x in range(1, 5)], tmp_path, workers=workers)) == {1, 2, 3, 4}


class Broken(Executor):
    """The executor of a process that was killed before its first job."""

    def submit(self, work, *arguments):
        raise BrokenProcessPool


def test_a_process_that_was_killed_before_it_had_a_job_is_reported(tmp_path):
    with pytest.raises(RunFailed, match=r"a process was killed.*x 1.*Fewer --workers"):
        results([{"x": 1}, {"x": 2}], tmp_path, workers=Workers(Broken(), 1))
