# ruff: noqa: E402
"""`max_qpu_seconds` is a promise about money: whatever may be charged is counted before it is sent."""

from lazy import Lazy, skip_without

skip_without("qpsbgd", "dimod", "dwave.system", "minorminer")

import contextlib
import copy
import dataclasses
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from crafted_rows import rewrite_row

from qpsbgd.testing import random_family
from qpsbgd_qubo import FamilySampler
from qpsbgd_qubo.annealers import ledger, recordings, sqlite_file, submissions
from qpsbgd_qubo.annealers.budget import Budget, BudgetSpent
from qpsbgd_qubo.annealers.ledger import Ledger
from qpsbgd_qubo.annealers.recordings import RecordingError
from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip, VirtualQPU

mocks, dwave = Lazy("dwave_mocks"), Lazy("qpsbgd_qubo.annealers.dwave")
leap = Lazy("qpsbgd_qubo.annealers.leap_hybrid")
PRICE = 8.5e-3 + 2 * 82e-6  # of a submission with two reads
FAMILY = random_family(4, 2, 8)


class Service(VirtualChip):
    """Counts what it takes; `faults` says which of its answers get lost, `report` what it says they cost."""

    def __init__(self, *, faults=(), **report):
        super().__init__(size=2)
        self.faults, self.report, self.taken = list(faults), report, 0

    def _anneal(self, h, couplers, reads, time, generator):
        return generator.choice(np.array([-1, 1], dtype=np.int8), size=(reads, len(h)))

    def sample(self, bqm, **parameters):
        self.taken += 1
        fault = self.faults.pop(0) if self.faults else None
        answer = super().sample(bqm, **parameters)
        answer.info["timing"].update(self.report)
        return LostAnswer(fault) if fault else answer


class LostAnswer:
    """What a sampler returns for a problem that it took and whose answer never comes."""

    def __init__(self, fault):
        self.fault = fault

    @property
    def record(self):
        raise self.fault


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(submissions.time, "sleep", lambda seconds: None)


@pytest.fixture
def solver_of(cache):
    def made(service, **options):
        return dwave.DWave(sampler=service, cache=cache, num_reads=2, copies=1, **options)

    return made


def test_reads_that_pass_the_limit_together_are_refused_before_the_first_is_paid(solver_of):
    service = Service()
    with pytest.raises(BudgetSpent, match="nothing was sent"):
        FamilySampler(solver_of(service, max_qpu_seconds=4.5 * PRICE)).sample(FAMILY.to_bqm(0), num_reads=5)
    assert service.taken == 0


def test_lost_answers_and_retries_are_counted(solver_of):
    service = Service(faults=[ConnectionError("lost"), TimeoutError("late")])
    solver = solver_of(service)
    solution = solver.solve(FAMILY)
    assert service.taken == solver.submissions == 3
    assert solver.qpu_seconds == pytest.approx(3 * PRICE)
    assert solution.stats["submissions"] == 1


def test_a_retry_beyond_the_limit_is_not_sent(solver_of):
    service = Service(faults=[ConnectionError("lost")] * 9)
    solver = solver_of(service, max_qpu_seconds=2.5 * PRICE)
    with pytest.raises(BudgetSpent, match=r"submissions would take .* they are not sent"):
        solver.solve(FAMILY)
    assert service.taken == solver.submissions == 2


@pytest.mark.parametrize("report", [float("nan"), -1e9, float("inf"), 0.0, "fast", None, True, np.float32("nan")])
def test_a_senseless_report_counts_by_the_estimate(solver_of, report):
    service = Service(qpu_access_time=report)
    solver = solver_of(service, max_qpu_seconds=2.5 * PRICE)
    solver.solve(FAMILY), solver.solve(FAMILY)
    assert solver.qpu_seconds == pytest.approx(2 * PRICE)
    with pytest.raises(BudgetSpent):
        solver.solve(FAMILY)
    assert service.taken == 2


@pytest.mark.parametrize(("microseconds", "counted"), [(50_000.0, 0.05), (10.0, PRICE)])
def test_the_larger_of_report_and_estimate_counts(solver_of, microseconds, counted):
    solver = solver_of(Service(qpu_access_time=microseconds))
    assert solver.solve(FAMILY).stats["qpu_seconds"] == pytest.approx(counted)
    assert solver.qpu_seconds == pytest.approx(counted)


@pytest.mark.parametrize(("microseconds", "limit"), [(float("nan"), None), (-5.0, 1.0), (float("inf"), 1.0)])
def test_nothing_is_sent_on_a_senseless_estimate(solver_of, microseconds, limit):
    service = Service()
    service.solver = SimpleNamespace(estimate_qpu_access_time=lambda qubits, **_: microseconds)
    with pytest.raises(ValueError, match="estimated QPU time must be"):
        solver_of(service, max_qpu_seconds=limit).solve(FAMILY)
    assert service.taken == 0


def test_threads_that_share_a_solver_share_its_limit(solver_of):
    class Slow(Service):
        def sample(self, bqm, **parameters):
            threading.Event().wait(0.005)
            return super().sample(bqm, **parameters)

    service = Slow()
    solver = solver_of(service, max_qpu_seconds=5.5 * PRICE)
    outcomes = []

    def once():
        try:
            solver.solve(FAMILY)
            outcomes.append("solved")
        except BudgetSpent:
            outcomes.append("refused")

    threads = [threading.Thread(target=once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 3 + ["solved"] * 5
    assert service.taken == solver.submissions == 5


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        *(
            lambda solver, changes=changes: dataclasses.replace(solver, **changes)
            for changes in ({"seed": 3}, {"num_reads": 2}, {"max_qpu_seconds": 3.4 * PRICE})
        ),
    ],
)
def test_a_copy_also_with_other_options_counts_together_with_the_original(solver_of, copied):
    service = Service()
    solver = solver_of(service, max_qpu_seconds=3.5 * PRICE)
    solver.solve(FAMILY)
    other = copied(solver)
    other.solve(FAMILY), solver.solve(FAMILY)
    for each in (solver, other):
        assert each.submissions == 3
        with pytest.raises(BudgetSpent):
            each.solve(FAMILY)
    assert service.taken == 3


def test_solvers_of_several_processes_share_a_ledger_in_a_file(solver_of, tmp_path):
    path = tmp_path / "qpu.ledger"
    script = (
        "import sys; from qpsbgd_qubo.annealers.budget import Budget, BudgetSpent\n"
        "from qpsbgd_qubo.annealers.ledger import Ledger\n"
        "budget, taken = Budget(Ledger(sys.argv[1]), limit=10.0), 0\n"
        "try:\n"
        "    while True:\n"
        "        (bill,) = budget.reserve([0.0625])\n"
        "        bill.sent, taken = True, taken + 1\n"
        "        budget.settle(bill, 0.0625)\n"
        "except BudgetSpent:\n"
        "    print(taken)\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE) for _ in range(3)]
    taken = [int(run.communicate()[0]) for run in runs]
    assert sum(taken) == Ledger(path).submissions == 160
    assert Ledger(path).qpu_seconds == pytest.approx(10.0)
    with pytest.raises(BudgetSpent):
        solver_of(Service(), ledger=path, max_qpu_seconds=10.0).solve(FAMILY)


@pytest.mark.parametrize("damage", [1, 50, 4096, 6000, -20, b"{}", b"\xff\xfe"])
def test_a_ledger_that_was_cut_or_damaged_lifts_no_limit(tmp_path, damage):
    path = tmp_path / "qpu.ledger"
    Budget(Ledger(path)).reserve([0.4])
    path.write_bytes(damage if isinstance(damage, bytes) else path.read_bytes()[:damage])
    with pytest.raises(ValueError, match=r"qpu.ledger .*damaged.* restore a copy"):
        Budget(Ledger(path), limit=1.0).reserve([0.1])


@pytest.mark.parametrize("before", [0, 1])
def test_a_process_killed_while_it_changes_a_ledger_changes_nothing_and_holds_up_nobody(tmp_path, before):
    path = tmp_path / "qpu.ledger"
    for _ in range(before):
        Budget(Ledger(path)).reserve([0.4])
    script = (
        "import contextlib, os, signal, sys; from qpsbgd_qubo.annealers import ledger\n"
        "transaction = ledger.transaction\n"
        "@contextlib.contextmanager\n"
        "def killed(*arguments, **options):\n"
        "    with transaction(*arguments, **options) as connection:\n"
        "        yield connection\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "ledger.transaction = killed\n"
        "with ledger.Ledger(sys.argv[1]).changing() as counts: counts.submissions += 1\n"
    )
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -signal.SIGKILL
    assert Ledger(path).submissions == before
    Budget(Ledger(path)).reserve([0.4])
    assert (Ledger(path).submissions, Ledger(path).qpu_seconds) == (before + 1, 0.4 * (before + 1))


def test_a_ledger_on_a_full_disk_sends_nothing_and_counts_what_it_had(solver_of, tmp_path, monkeypatch):
    path, service = tmp_path / "qpu.ledger", Service()
    solver = solver_of(service, ledger=path)
    solver.solve(FAMILY)
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "transaction", full)
        with pytest.raises(OSError, match=r"qpu\.ledger was not changed: database or disk is full"):
            solver.solve(FAMILY)
    assert service.taken == solver.submissions == 1
    solver.solve(FAMILY)
    assert service.taken == solver.submissions == 2


@contextlib.contextmanager
def full(path, kind, *, write=False):
    """A transaction on a disk without space."""
    with sqlite_file.transaction(path, kind, write=write) as connection:
        yield connection
        if write:
            connection.execute("PRAGMA max_page_count = 1")
            connection.execute("CREATE TABLE more AS SELECT zeroblob(10000000)")


@pytest.mark.parametrize("reason", ["in use", "a folder", "no journal"])
def test_a_ledger_that_cannot_be_changed_is_noticed_before_anything_is_sent(solver_of, tmp_path, spoiled, reason):
    path, service = tmp_path / "qpu.ledger", Service()
    Budget(Ledger(path)).reserve([0.4])
    spoiled(path, reason)
    with pytest.raises(OSError, match=r"qpu\.ledger"):
        solver_of(service, ledger=path).solve(FAMILY)
    assert service.taken == 0


@pytest.mark.parametrize("ledger", [3, 0.5, True])
def test_a_ledger_is_a_ledger_or_a_path(solver_of, ledger):
    with pytest.raises(TypeError, match="ledger must be"):
        solver_of(Service(), ledger=ledger)


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, float("inf"), "much"])
def test_a_state_with_a_senseless_count_is_refused(solver_of, seconds):
    solver = solver_of(Service())
    with pytest.raises((TypeError, ValueError), match="qpu_seconds must be"):
        solver.load_state_dict({**solver.state_dict(), "qpu_seconds": seconds})


@pytest.mark.parametrize("seconds", [-1e9, float("inf"), 0.0, b"", "much"])
def test_a_recorded_answer_with_a_senseless_time_lifts_no_limit(solver_of, tmp_path, seconds):
    path, service = tmp_path / "run.chip", Service()
    solver_of(service, record=path).solve(FAMILY)
    rewrite_row(path, "answers", 1, seconds=seconds)
    with pytest.raises(RecordingError, match="seconds must be"):
        solver_of(service, record=path, max_qpu_seconds=2.5 * PRICE).solve(FAMILY)
    assert service.taken == 1


@pytest.fixture
def spoiled(request, monkeypatch):
    """A function that makes a file unfit to be changed, for a reason."""

    def spoil(path, reason):
        journal = path.with_name(f"{path.name}-journal")
        match reason:
            case "a folder":
                path.unlink(), path.mkdir()
            case "below a file":
                path.unlink(), path.parent.rename(path.parent.with_name("away")), path.parent.write_text("a file")
            case "no journal":
                journal.unlink(missing_ok=True), journal.mkdir()
            case "full":
                monkeypatch.setattr(recordings, "transaction", full)
            case "in use":
                monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.01)
                other = sqlite3.connect(path, isolation_level=None)
                other.execute("BEGIN IMMEDIATE")
                request.addfinalizer(other.close)
            case "a text":
                path.write_text("weights")
            case "cut":
                path.write_bytes(path.read_bytes()[:-20])
            case "a ledger":
                path.unlink(), Budget(Ledger(path)).reserve([0.4])

    return spoil


SOLVERS = ("dwave", "leap-hybrid", "virtual-qpu")
REASONS = ("in use", "full", "no journal", "a folder", "below a file", "a text", "cut", "a ledger")


@pytest.fixture
def recorder(request, solver_of, cache, monkeypatch):
    """A function that makes a solver which records, and one that counts what was sent."""
    if request.param == "leap-hybrid":
        service = mocks.Service()
        options = {"sampler": service, "max_qpu_seconds": 99}
        return lambda path: leap.LeapHybrid(record=path, **options), lambda: len(service.sent)
    if request.param == "dwave":
        service = Service()
        return lambda path: solver_of(service, record=path), lambda: service.taken
    sent, sample = [], VirtualChip.sample
    monkeypatch.setattr(VirtualChip, "sample", lambda *args, **options: sent.append(1) or sample(*args, **options))
    return lambda path: VirtualQPU(size=2, cache=cache, num_reads=2, record=path), lambda: len(sent)


@pytest.mark.parametrize(("recorder", "reason"), [*zip(SOLVERS * 3, REASONS, strict=False)], indirect=["recorder"])
def test_a_recording_that_cannot_be_written_is_noticed_before_anything_is_sent(recorder, tmp_path, spoiled, reason):
    (solver, sent), path = recorder, tmp_path / "folder" / "run.chip"
    solver(path).solve(FAMILY)
    before = sent()
    spoiled(path, reason)
    with pytest.raises(RecordingError if reason in ("a text", "cut", "a ledger") else OSError, match="folder"):
        again = solver(path)
        again.solve(FAMILY), again.solve(random_family(4, 2, 8, seed=1))
    assert sent() == before == 1


@pytest.mark.parametrize(
    ("recorder", "reason"), [*zip(SOLVERS, ["full", "below a file", "in use"], strict=True)], indirect=["recorder"]
)
def test_a_recording_that_cannot_be_made_is_noticed_before_anything_is_sent(recorder, tmp_path, spoiled, reason):
    (solver, sent), path = recorder, tmp_path / "folder" / "run.chip"
    path.parent.mkdir(), path.touch()
    spoiled(path, reason)
    with pytest.raises(OSError, match="folder"):
        solver(path).solve(FAMILY)
    assert sent() == 0


def test_a_recording_of_another_run_is_noticed_before_anything_is_sent(solver_of, tmp_path):
    path, services = tmp_path / "run.chip", (Service(), Service())
    first, second = (solver_of(service, record=path) for service in services)
    second.connect(), first.solve(FAMILY)
    with pytest.raises(RecordingError, match="was changed by another run"):
        second.solve(FAMILY)
    assert [service.taken for service in services] == [1, 0]


def test_a_pickled_solver_goes_on_from_the_count(solver_of):
    solver = solver_of(Service(), max_qpu_seconds=2.5 * PRICE)
    solver.solve(FAMILY)
    other = pickle.loads(pickle.dumps(solver))
    assert (other.submissions, other.qpu_seconds) == (1, solver.qpu_seconds)
    other.solve(FAMILY)
    with pytest.raises(BudgetSpent):
        other.solve(FAMILY)
    assert solver.submissions == 1


def test_an_earlier_state_does_not_lower_the_count(solver_of):
    solver = solver_of(Service(), max_qpu_seconds=2.5 * PRICE)
    state = solver.state_dict()
    for _ in range(2):
        solver.load_state_dict(state)
        solver.solve(FAMILY)
    solver.load_state_dict(state)
    with pytest.raises(BudgetSpent):
        solver.solve(FAMILY)


@pytest.mark.parametrize("ledger", [None, "qpu.ledger"])
def test_recorded_answers_count_once_however_often_they_are_given(solver_of, tmp_path, ledger):
    service, families = Service(), [FAMILY, random_family(4, 2, 8, seed=1)]
    options = {"record": tmp_path / "run.chip", "ledger": ledger and tmp_path / ledger}
    solver = solver_of(service, **options)
    state = solver.state_dict()
    for _ in range(3):
        solver.load_state_dict(state)
        solver.solve(families[0]), solver.solve(families[1])
    assert service.taken == solver.submissions == 2
    again = solver_of(service, **options)
    again.solve(families[0]), again.solve(families[1])
    assert (again.submissions, again.qpu_seconds) == (2, pytest.approx(solver.qpu_seconds))


def test_submissions_are_reserved_all_or_none():
    budget = Budget(limit=1.0)
    bills = budget.reserve([0.4, 0.4])
    with pytest.raises(BudgetSpent):
        budget.reserve([0.1, 0.2])
    assert (budget.ledger.submissions, budget.ledger.qpu_seconds) == (2, 0.8)
    bills[0].sent = True
    budget.give_up(bills)
    assert (budget.ledger.submissions, budget.ledger.qpu_seconds) == (1, 0.4)
