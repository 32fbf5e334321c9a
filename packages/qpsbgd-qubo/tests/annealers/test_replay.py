# ruff: noqa: E402
from lazy import skip_without

skip_without("torch", "qpsbgd", "dimod", "dwave.system", "dwave.graphs", "minorminer")

import contextlib
import copy
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import torch
from crafted_rows import rows
from rewriting import rewritten

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear
from qpsbgd_qubo.annealers import recordings, submissions, tiles
from qpsbgd_qubo.annealers.recordings import RecordingError
from qpsbgd_qubo.annealers.replay import Replay
from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip, VirtualQPU
from qpsbgd_qubo.testing import SOLVER_CHECKS, random_family

STEPS = 6


@pytest.fixture
def record(tmp_path, cache):
    """A recording of three answers, and the families and spins in it."""
    path = tmp_path / "run.chip"
    families = [random_family(4, 3, 8, seed=seed) for seed in range(3)]
    solver = VirtualQPU(size=3, cache=cache, num_reads=5, record=path)
    spins = [solver.solve(family).spins for family in families]
    return path, families, spins


def training(solver, *, state=None, kill_at=None):
    """Weights after STEPS steps; or, if killed in a step, the checkpoint from before it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(BinaryLinear(10, 4), torch.nn.Tanh(), BinaryLinear(4, 2))
    optimizer = QPSBGD(model, lr=0.1, solver=solver)
    batches = torch.randn(STEPS, 8, 10)
    first = 0
    if state is not None:
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(first, STEPS):
        checkpoint = copy.deepcopy({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
        optimizer.zero_grad()
        model(batches[step]).square().sum().backward()
        optimizer.step()
        if step == kill_at:
            return checkpoint
    return torch.cat([layer.weight.detach().flatten() for layer in (model[0], model[2])])


@pytest.mark.parametrize("check", SOLVER_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_recorder_and_replay_pass_every_check(cache, tmp_path, check):
    path = tmp_path / "checks.chip"
    check(VirtualQPU(size=4, cache=cache, record=path))
    check(Replay(path))


def test_a_replay_gives_the_recorded_answers_and_uses_no_chip(record, monkeypatch):
    path, families, spins = record

    def refuse(*_, **__):
        raise AssertionError("used")

    monkeypatch.setattr(VirtualChip, "__init__", refuse)
    monkeypatch.setattr(tiles, "_search_in_process", refuse)
    solver = Replay(path)
    for family, answer in zip(families, spins, strict=True):
        solution = solver.solve(family)
        assert np.array_equal(solution.spins, answer)
        assert solution.stats["qpu_seconds"] > 0.008
        assert solution.stats["solver"] == "replay"
    with pytest.raises(RecordingError, match="ends after 3 answers"):
        solver.solve(families[0])


def test_a_replay_refuses_another_problem(record):
    path, families, _ = record
    solver = Replay(path)
    with pytest.raises(RecordingError, match=r"answer 0 .* its fields or couplings differ"):
        solver.solve(families[1])
    with pytest.raises(RecordingError, match="other qubits"):
        solver.solve(random_family(4, 2, 8))
    assert solver.solve(families[0]).spins.shape == (4, 3)


@pytest.mark.parametrize("killed_at", [2, STEPS - 1])
def test_a_run_killed_at_any_step_and_resumed_ends_with_the_same_weights(cache, tmp_path, killed_at):
    def virtual(name):
        return VirtualQPU(size=4, cache=cache, num_reads=3, sweeps=8, descent=False, record=tmp_path / name)

    whole = training(virtual("whole"))
    replayed = Replay(tmp_path / "whole")
    checkpoint = training(replayed, kill_at=killed_at)
    assert np.array_equal(training(Replay(tmp_path / "whole"), state=checkpoint), whole)

    checkpoint = training(virtual("killed"), kill_at=killed_at)
    assert np.array_equal(training(virtual("killed"), state=checkpoint), whole)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def test_a_recorded_run_that_was_killed_is_given_its_answers_again_and_goes_on(cache, tmp_path, monkeypatch):
    """Only what is not in the file yet is sent, also where the run starts from the beginning."""
    path = tmp_path / "run.chip"
    options = {"size": 3, "cache": cache, "num_reads": 3, "record": path}
    families = [random_family(4, 3, 8, seed=seed) for seed in range(4)]
    first = VirtualQPU(**options)
    spins = [first.solve(family).spins for family in families[:2]]
    state = first.state_dict()
    spins.append(first.solve(families[2]).spins)  # after the checkpoint; then it is killed

    sent = []
    sample = VirtualChip.sample
    monkeypatch.setattr(VirtualChip, "sample", lambda self, *a, **k: sent.append(1) or sample(self, *a, **k))
    resumed = VirtualQPU(**options)
    resumed.load_state_dict(state)
    assert np.array_equal(resumed.solve(families[2]).spins, spins[2])
    assert not sent
    resumed.solve(families[3])
    assert len(sent) == 1
    again = VirtualQPU(**options)
    assert all(np.array_equal(again.solve(f).spins, s) for f, s in zip(families, spins, strict=False))
    assert len(sent) == 1


def killed(path, cache, *, answers, how):
    """Record so many answers in a process that is killed by the line `how` with the last."""
    script = (
        "import os, signal, sys\n"
        "from contextlib import contextmanager\n"
        "from pathlib import Path\n"
        "from qpsbgd_qubo.testing import random_family\n"
        "from qpsbgd_qubo.annealers import recordings\n"
        "from qpsbgd_qubo.annealers.virtual_qpu import VirtualQPU\n"
        "solver = VirtualQPU(size=3, cache=Path(sys.argv[2]), num_reads=5, record=sys.argv[1])\n"
        "for seed in range(int(sys.argv[3])): solver.solve(random_family(4, 3, 8, seed=seed))\n"
        "transaction = recordings.transaction\n"
        "def die(*arguments): os.kill(os.getpid(), signal.SIGKILL)\n"
        "@contextmanager\n"
        "def half_written(*arguments, write=False):\n"
        "    with transaction(*arguments, write=write) as connection:\n"
        "        yield connection\n"
        "        if write:\n"
        "            connection.execute('PRAGMA cache_size = 1')\n"  # pages go to the disk at once
        "            for column in ('fields', 'spins'):\n"
        "                connection.execute(f'UPDATE answers SET {column} = zeroblob(300000)')\n"
        "            die()\n"
        f"{how}\n"
        "solver.solve(random_family(4, 3, 8, seed=int(sys.argv[3])))\n"
    )
    command = [sys.executable, "-c", script, path, cache, str(answers - 1)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "how",
    [
        "recordings.Recording._add = die",
        "recordings.transaction = half_written",
        "recordings.Recording._prepare = die",
    ],
    ids=["before", "within", "before it was sent"],
)
def test_a_process_killed_as_an_answer_is_written_loses_no_other(record, cache, tmp_path, how):
    path, families, spins = record
    killed(tmp_path / "killed", cache, answers=3, how=how)
    assert len(recordings.Recording(tmp_path / "killed")) == 2
    replay = Replay(tmp_path / "killed")
    assert all(np.array_equal(replay.solve(f).spins, s) for f, s in zip(families[:2], spins, strict=False))
    solver = VirtualQPU(size=3, cache=cache, num_reads=5, record=tmp_path / "killed")
    assert all(np.array_equal(solver.solve(f).spins, s) for f, s in zip(families, spins, strict=True))
    assert rows(tmp_path / "killed") == rows(path)


def test_a_process_killed_as_it_makes_the_file_holds_up_nobody(record, cache, tmp_path):
    killed(tmp_path / "killed", cache, answers=1, how="recordings.transaction = half_written")
    solver = VirtualQPU(size=3, cache=cache, num_reads=5, record=tmp_path / "killed")
    assert all(np.array_equal(solver.solve(f).spins, s) for f, s in zip(*record[1:], strict=True))
    assert rows(tmp_path / "killed") == rows(record[0])


def test_a_recording_that_was_cut_is_refused(record, cache):
    path, families, _ = record
    whole = path.read_bytes()
    for length in (1, 50, 3000, 4096, 10000, len(whole) - 4096, len(whole) - 20, len(whole) - 1):
        rewritten(path, whole[:length])
        for solver in (lambda: Replay(path), lambda: VirtualQPU(size=3, cache=cache, num_reads=5, record=path)):
            with pytest.raises(RecordingError, match=r"run\.chip .*damaged: .*sqlite3 FILE \.recover"):
                solver().solve(families[0])


def test_a_damaged_page_is_refused(record, cache):
    """Otherwise wrong answers might be given, or good ones written over."""
    path, families, _ = record
    with contextlib.closing(sqlite3.connect(path)) as connection:
        pages = [page for (page,) in connection.execute("SELECT rootpage FROM sqlite_master")]
    whole = path.read_bytes()
    for page in pages:
        for begin, damage in ((0, bytes(4096)), (3, b"\xff"), (5, b"\1\1")):
            at = 4096 * (page - 1) + begin
            rewritten(path, whole[:at] + damage + whole[at + len(damage) :])
            with pytest.raises(RecordingError, match="damaged"):
                Replay(path).solve(families[0])
            with pytest.raises(RecordingError, match="damaged"):
                VirtualQPU(size=3, cache=cache, num_reads=5, record=path).solve_all([*families, random_family(4, 3, 8)])


def test_a_recording_is_not_gone_on_with_under_other_options(record, cache):
    path, families, _ = record
    with pytest.raises(RecordingError, match=r"num_reads = 5, .*num_reads = 6"):
        VirtualQPU(size=3, cache=cache, num_reads=6, record=path).solve(families[0])
    with pytest.raises(RecordingError, match="recorded with chip"):
        VirtualQPU(size=2, cache=cache, num_reads=5, record=path).solve(families[0])
    with pytest.raises(RecordingError, match="was recorded with virtual"):
        VirtualQPU(size=3, cache=cache, num_reads=5, record=path, h_error=0.5).solve(families[0])


def test_a_file_that_is_not_a_recording_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="option `record`"):
        Replay(tmp_path / "none")
    (tmp_path / "text").write_text("weights\n")
    with pytest.raises(RecordingError, match="not a recording"):
        Replay(tmp_path / "text")


def test_a_recorded_runs_state_needs_the_recording(record, cache):
    state = {"submissions": 2, "qpu_seconds": 1.0, "link": {"position": 2}}
    solver = VirtualQPU(size=3, cache=cache)
    solver.load_state_dict(state)
    with pytest.raises(ValueError, match="was `record` left out"):
        solver.solve(random_family(4, 3, 8))


def test_without_space_for_the_answers_nothing_is_sent(tmp_path, cache, monkeypatch):
    path, families, spins, refused = tmp_path / "run.chip", [], [], 0
    solver, transaction = VirtualQPU(size=3, cache=cache, num_reads=1000, sweeps=1, record=path), recordings.transaction
    for pages in range(1, 1000):  # of a disk that grows page by page
        if len(spins) == 3:
            break

        @contextlib.contextmanager
        def full(*arguments, write=False, pages=pages):
            with transaction(*arguments, write=write) as connection:
                connection.execute(f"PRAGMA max_page_count = {pages}")
                yield connection

        family = random_family(4, 3, 8, seed=len(spins))
        with monkeypatch.context() as patch:
            patch.setattr(recordings, "transaction", full)
            try:
                spins.append(solver.solve(family).spins)
                families.append(family)
            except OSError as error:
                assert "disk is full" in str(error)
                refused += 1
        assert solver.submissions == len(spins)
    assert refused > 10
    assert len(recordings.Recording(path)) == 3
    replay = Replay(path)
    assert all(np.array_equal(replay.solve(f).spins, s) for f, s in zip(families, spins, strict=True))


def test_an_interrupted_step_that_is_repeated_is_given_its_answers_again(tmp_path, cache, monkeypatch):
    """60 columns of 10 spins take several submissions; the interrupt comes while the third is read."""
    path = tmp_path / "run.chip"
    solver = VirtualQPU(size=4, cache=cache, num_reads=2, record=path)
    family = random_family(10, 60, 20)
    answers = submissions.Live.answers

    def interrupted(self, problems, ledger):
        for number, answer in enumerate(answers(self, problems, ledger)):
            if number == 2:
                raise KeyboardInterrupt
            yield answer

    with monkeypatch.context() as patch:
        patch.setattr(submissions.Live, "answers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            solver.solve(family)
    sent = solver.estimate([(10, 60)]).submissions
    assert solver.submissions == sent  # the two answers that came are in the file, the others are lost
    spins = solver.solve(family).spins
    assert solver.submissions == 2 * sent - 2
    replay = Replay(path)
    assert np.array_equal(replay.solve(family).spins, spins)
    assert replay.submissions == sent


def test_a_refused_state_is_refused_again(record):
    path, families, _ = record
    replay = Replay(path)
    replay.load_state_dict({"submissions": 9, "qpu_seconds": 1.0, "link": {"position": 9}})
    for _ in range(2):
        with pytest.raises(RecordingError, match="saved after answer 9"):
            replay.solve(families[0])


def test_a_replay_knows_no_other_widths(record):
    path, _, _ = record
    with pytest.raises(RecordingError, match="no layer of 5 inputs"):
        Replay(path).solve(random_family(5, 3, 8))
