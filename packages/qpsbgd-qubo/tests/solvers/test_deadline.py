import signal
import threading

from qpsbgd_qubo.solvers.deadline import best_on_interrupt, deadline, report


def test_a_deadline_passes_at_once_later_or_never():
    with deadline(None) as passed:
        assert not passed[0]
    with deadline(0) as passed:
        assert passed[0]
    with deadline(0.01) as passed:
        while not passed[0]:
            pass


def test_no_time_is_over_before_any_timer_runs(monkeypatch):
    monkeypatch.setattr("threading.Timer.start", lambda timer: None)
    with deadline(0) as passed:
        assert passed[0]
    with deadline(1) as passed:
        assert not passed[0]


def test_ctrl_c_sets_the_flags_of_the_searches_that_still_run():
    with best_on_interrupt() as interruption, deadline(None) as outer:
        with deadline(None) as inner:
            assert [id(flag) for flag in interruption.flags] == [id(outer), id(inner)]
        assert [id(flag) for flag in interruption.flags] == [id(outer)]
        signal.raise_signal(signal.SIGINT)
        assert interruption.came and outer[0] == 1 and not inner[0]
        with deadline(None) as late:
            assert late[0]
    assert not interruption.flags


def test_progress_is_told_to_whoever_asks_for_it():
    told = []
    report(1.0, 2, 3.0)
    with best_on_interrupt():
        report(1.0, 2, 3.0)
    with best_on_interrupt(lambda *what: told.append(what)):
        report(1.0, 2, 3.0)
    assert told == [(1.0, 2, 3.0)]


def test_on_another_thread_ctrl_c_is_left_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with best_on_interrupt(), deadline(None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before] == [signal.getsignal(signal.SIGINT)]
